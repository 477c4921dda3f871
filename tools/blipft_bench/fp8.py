"""Products in fp8 and in bf16: the same steps in turn, on one GPU, with long rows, where products dominate the step."""
import re

import make_demo

from . import auto, blipft, generate, inputs, table
from .machine import say

VOCABULARY = {"7b": 32000, "llama3-8b": 128256, "qwen2.5-7b": 152064}
# Llama 3 8B and Qwen2.5-7B have adapters of rank 8, as in NeMo AutoModel's benchmark.
LORA = ["adapter.kind=lora", "adapter.r=8", "adapter.targets=[q, k, v, o, mlp]"]
# expected: seconds of a step in bf16 on an H200. keys: keys of both runs; fp8_keys: keys of the run in fp8.
ROWS = [
    dict(name="7b-512", expected=(0.5,), model="7b", batch=4, tokens=512, accumulate=4),
    dict(name="7b-1024", expected=(1.0,), model="7b", batch=4, tokens=1024, accumulate=4),
    dict(name="qwen7b-1024", expected=(4.0,), model="qwen2.5-7b", batch=4, tokens=1024, accumulate=16, keys=["train.optim=adamw8bit"]),
    dict(name="8b-lora-4096", expected=(8.5,), model="llama3-8b", batch=2, tokens=4096, accumulate=16, keys=LORA, fp8_keys=["model.quantize=fp8"]),
    dict(name="blip2-64x1", expected=(0.33,), model="blip2", batch=64, tokens=50, accumulate=1),
]
NAMES = [row["name"] for row in ROWS]
TITLES = ["row", "bf16 s", "fp8 s", "ratio", "bf16 tokens/s", "fp8 tokens/s", "bf16 planned GiB", "fp8 planned GiB", "quantized weights"]


def write_model(folder, row, small):
    generate.write_llama(folder, small)    # it has the tokenizer
    config = auto.llama_config(row["model"], 32000 if small else VOCABULARY[row["model"]], small)
    config["max_position_embeddings"] = 8192
    if row["model"].startswith("qwen"):
        config.update(architectures=["Qwen2ForCausalLM"], model_type="qwen2")
    make_demo.write_json(str(folder / "config.json"), config)


def prepare(bench, row, small):
    """(model folder, data): texts that are longer than the rows; all tokens are labels."""
    folder = bench.out / "models" / row["model"]
    if row["model"] == "blip2":
        captions = inputs.write_data(bench.out / "data", inputs.PICTURES, inputs.PICTURE_SIZE)
        inputs.write_model(folder, None, captions, small)
        return folder, bench.out / "data"
    write_model(folder, row, small)
    data = bench.out / f"texts-{row['tokens']}.jsonl"
    inputs.write_long_texts(data, row["batch"] * row["accumulate"], blipft.tokens_of(row, small))
    return folder, data


def measure(bench, row, model, data, small, in_fp8):
    folder = blipft.fresh_folder(bench.out / f"{row['name']}-{'fp8' if in_fp8 else 'bf16'}")
    keys = [*row.get("keys", []), *(["train.matmul=fp8", *row.get("fp8_keys", [])] if in_fp8 else []),
            *(["train.fp8_least_size=1"] if in_fp8 and small else [])]
    result = blipft.run_rows(bench, row, folder, model, data, keys)
    kept = re.search(r"quantized weights (stay .*|are .*)$", (folder / "log.txt").read_text(errors="replace"), re.M)
    result["codes"] = kept[1] if kept else ""
    text = row["model"] != "blip2"
    result["tokens_s"] = row["batch"] * row["tokens"] * row["accumulate"] / result["step_s"] if text else None
    return result


def cells(row, entry):
    a, b = entry["bf16"], entry["fp8"]
    return [row["name"], f"{a['step_s']:.4f}", f"{b['step_s']:.4f}", f"{a['step_s'] / b['step_s']:.2f}",
            table.number(a["tokens_s"], ".0f"), table.number(b["tokens_s"], ".0f"), table.number(table.gib(a["planned_bytes"]), ".2f"),
            table.number(table.gib(b["planned_bytes"]), ".2f"), b["codes"]]


def run(bench, chosen):
    small = bench.arguments.cpu_smoke

    def measure_row(row, entry):
        model, data = prepare(bench, row, small)
        for kind in ("bf16", "fp8"):
            entry[kind] = measure(bench, row, model, data, small, kind == "fp8")
            say(f"{row['name']} {kind}: {blipft.line_of(entry[kind])}")

    bench.each(chosen, measure_row)
    lines = [cells(row, entry) for row, entry in zip(chosen, bench.record["rows"]) if "fp8" in entry]
    return table.print_results(bench.record, TITLES, lines, "fp8")
