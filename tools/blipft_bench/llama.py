"""LLaMA at full size on one to four GPUs, with texts of equal length; the same step in PyTorch."""
import json

import make_demo

from . import auto, blipft, families, generate, inputs, table
from .machine import say

LORA = ["adapter.kind=lora", "adapter.r=32", "adapter.targets=[q, k, v, o, mlp, head]"]
MIXED = "bf16-mixed"
# title: as the README names it. Samples of a step on each GPU: batch x accumulate, of `tokens` tokens. expected: seconds of a
# step on an H200 (blipft, PyTorch); torch: PyTorch's settings to try in turn until one fits, as batch and whether activations
# are recomputed; a row that PyTorch cannot run has none.
ROWS = [
    dict(name="7b-ddp", title="LLaMA 7B, DDP, 4", model="7b", strategy="ddp", batch=4, tokens=512, accumulate=1,
         expected=(0.2, 0.3), torch=[(4, False), (2, False), (4, True)]),
    dict(name="7b-fsdp", title="LLaMA 7B, FSDP, 4", model="7b", strategy="fsdp", batch=4, tokens=512, accumulate=1,
         expected=(0.2, 0.3), torch=[(4, False), (4, True)]),
    dict(name="7b-fsdp-8", title="LLaMA 7B, FSDP, 8", model="7b", strategy="fsdp", batch=8, tokens=512, accumulate=1,
         expected=(0.3, 0.4), torch=[(8, False), (4, False), (8, True)]),
    dict(name="7b-hybrid", title="LLaMA 7B, hybrid FSDP of 2, 4", model="7b", strategy="fsdp", batch=4, tokens=512, accumulate=1,
         expected=(0.2, 0.3), shard_ranks=2, torch=[(4, False), (4, True)]),
    dict(name="13b-fsdp", title="LLaMA 13B, FSDP, 4", model="13b", strategy="fsdp", batch=4, tokens=512, accumulate=1,
         expected=(0.4, 0.5), torch=[(4, False), (4, True)]),
    dict(name="7b-qlora", title="LLaMA 7B, QLoRA nf4, 4 x 4", model="7b", batch=4, tokens=512, accumulate=4, expected=(0.5, 1.5),
         keys=[*LORA, "model.quantize=nf4"]),
    dict(name="chess", title="LLaMA 7B, bf16-mixed, FSDP, 4 x 4", model="7b", strategy="fsdp", batch=4, tokens=512, accumulate=4,
         expected=(0.8, 1.2), precision=MIXED, torch=[(4, False), (2, False), (4, True)]),
    dict(name="7b-lora", title="LLaMA 7B, LoRA, 4 x 4", model="7b", batch=4, tokens=512, accumulate=4, expected=(0.45, 0.7),
         keys=LORA, lora=32, torch=[(4, False), (4, True)]),
    dict(name="7b-full", title="LLaMA 7B, all parameters, 4 x 4", model="7b", batch=4, tokens=512, accumulate=4,
         expected=(0.55, 0.65), torch=[(4, False), (2, False), (4, True)]),
]
NAMES = [row["name"] for row in ROWS]
TITLES = families.TITLES


def write_model(bench, row):
    folder = generate.write_llama(bench.out / "models" / row["model"], bench.smoke)   # for its tokenizer
    config = auto.llama_config(row["model"], 32000, bench.smoke)
    make_demo.write_json(str(folder / "config.json"), config)
    return folder


def measure(bench, row):
    folder, ranks = blipft.fresh_folder(bench.out / row["name"]), bench.ranks_of(row)
    inputs.write_long_texts(folder / "texts.jsonl", row["batch"] * row["accumulate"] * ranks, blipft.tokens_of(row, bench.smoke))
    keys = [f"parallel.shard_ranks={row['shard_ranks']}"] if "shard_ranks" in row else []
    return blipft.run_rows(bench, row, folder, write_model(bench, row), folder / "texts.jsonl", [*keys, *row.get("keys", [])])


def run(bench, chosen):
    def measure_row(row, entry):
        if row.get("strategy") and bench.ranks < 2:
            entry["skipped"] = "needs two GPUs or more"
            return
        entry["run"] = measure(bench, row)
        say(f"{row['name']}: {blipft.line_of(entry['run'])}")

    def measure_torch(row, entry):
        if row.get("torch") and bench.torch and "run" in entry:
            entry["torch"] = families.measure_torch(bench, row, bench.out / "models" / row["model"])
            say(f"{row['name']}: torch {json.dumps({key: entry['torch'].get(key) for key in ('step_s', 'error', 'skipped')})}")

    if bench.each(chosen, measure_row, bench.measure_ceilings):   # all rows of blipft run first, because PyTorch compiles for a long time
        bench.each(chosen, measure_torch)
    gemm, ran = bench.record.get("gemm_tflops"), [(row, entry) for row, entry in zip(chosen, bench.record["rows"]) if "run" in entry]
    status = table.print_results(bench.record, TITLES, [families.cells(row, entry, gemm) for row, entry in ran], "run")
    table.print_readme(bench.record, [
        dict(entry["run"], model=row["title"], gpus=bench.ranks_of(row), length=str(blipft.tokens_of(row, bench.smoke)),
             rate=entry["run"]["samples_s"] * blipft.tokens_of(row, bench.smoke), unit="tokens", torch=entry.get("torch"))
        for row, entry in ran])
    return status
