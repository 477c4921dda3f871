"""Families at full size on one GPU: LoRA on long texts, full training on pictures; the same step in PyTorch."""
import json

import make_demo
from blipft_golden.archive import copy_tokenizer

from . import blipft, generate, inputs, pytorch, table
from .commands import BenchError, Skipped, result_of
from .machine import ROOT, say, shown

SCRIPT = "tools/bench_families_torch.py"
LORA = ["adapter.kind=lora", "adapter.r=16", "adapter.targets=[all-linear]", "train.lr=1e-4"]
# shape: a folder of share/models; batch x accumulate samples a step, of `tokens` tokens; config: changes of its text
# model; expected: seconds of a step on an H200 (blipft, PyTorch); torch: the settings of PyTorch to try in turn until one fits, as batch and whether activations are recomputed.
ROWS = [
    dict(name="qwen3-8b-lora", expected=(4.2, 4.6), shape="qwen3-8b", batch=2, tokens=4096, accumulate=8, lora=16,
         torch=[(2, False), (1, False), (2, True)]),
    dict(name="phi-4-mini-lora", expected=(2.4, 2.7), shape="phi-4-mini", batch=2, tokens=4096, accumulate=8, lora=16,
         torch=[(2, False), (1, False), (2, True)]),
    dict(name="gemma-3-4b-lora", expected=(2.4, 3.5), shape="gemma-3-4b", batch=2, tokens=4096, accumulate=8, lora=16,
         torch=[(2, False), (1, False), (2, True)]),
    dict(name="gemma-3-4b-8k", expected=(1.2,), shape="gemma-3-4b", batch=1, tokens=8192, accumulate=4, lora=16),
    dict(name="gemma-3-4b-8k-no-window", expected=(1.4,), shape="gemma-3-4b", batch=1, tokens=8192, accumulate=4, lora=16,
         config={"sliding_window": 8192}),
    dict(name="blip2-flan-t5-xl", expected=(0.33, 0.37), shape="blip2-flan-t5-xl", batch=64, tokens=50, accumulate=1, pictures=True,
         torch=[(64, False), (32, False), (16, False)]),
    dict(name="instructblip-vicuna-7b", expected=(0.1,), shape="instructblip-vicuna-7b", batch=8, tokens=50, accumulate=1, pictures=True,
         keys=["data.prompt_template=a photo of"]),
    dict(name="instructblip-flan-t5-xl", expected=(0.1,), shape="instructblip-flan-t5-xl", batch=16, tokens=50, accumulate=1, pictures=True,
         keys=["data.prompt_template=a photo of"]),
]
NAMES = [row["name"] for row in ROWS]
TORCH_START, TORCH_STEPS = 70, 7  # seconds until layers are compiled, on an H200, and the steps of bench_families_torch.py
TITLES = ["row", "PyTorch best", "how", "blipft", "ratio", "TFLOP/s", "of GEMM rate", "planned GiB", "used GiB", "used / planned"]
SMALL_TEXT = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                  head_dim=32, layer_types=None, no_rope_layers=None, rope_scaling=None, rope_parameters=None)
SMALL_T5 = dict(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_decoder_layers=2, num_heads=2)
SMALL_VISION = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, image_size=56)
SMALL_QFORMER = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, encoder_hidden_size=64)


def text_part(config):
    return config.get("text_config", config)


def shrink(config):
    """A tiny model of the same family."""
    text = text_part(config)
    small = SMALL_T5 if text["model_type"] == "t5" else SMALL_TEXT
    text.update({key: value for key, value in small.items() if value is not None})
    for key in [key for key, value in small.items() if value is None]:
        text.pop(key, None)
    for part, values in (("vision_config", SMALL_VISION), ("qformer_config", SMALL_QFORMER)):
        if "qformer_config" in config:
            config[part].update(values)


def write_model(bench, row, small):
    folder = bench.out / "models" / row["name"]
    if row.get("pictures"):
        captions = inputs.write_data(bench.out / "data", inputs.PICTURES, inputs.PICTURE_SIZE)
        inputs.write_model(folder, None, captions, small)
    else:
        generate.write_llama(folder, small)   # only for its tokenizer
    config = json.loads((ROOT / "share/models" / row["shape"] / "config.json").read_text())
    config["dtype"] = "bfloat16"
    text_part(config).update(row.get("config", {}))
    if small:
        shrink(config)
    make_demo.write_json(str(folder / "config.json"), config)
    if config["model_type"] == "instructblip":
        copy_tokenizer("bert", folder / "qformer_tokenizer")
    return folder


def measure(bench, row, model, small):
    folder = blipft.fresh_folder(bench.out / row["name"])
    data = bench.out / "data"
    if not row.get("pictures"):
        data = folder / "texts.jsonl"
        inputs.write_long_texts(data, row["batch"] * row["accumulate"], blipft.tokens_of(row, small))
    return blipft.run_rows(bench, row, folder, model, data, [*(LORA if row.get("lora") else []), *row.get("keys", [])])


def measure_torch(bench, row, model):
    """The first of its settings that fits; {error} if none does."""
    result, ranks = {}, bench.ranks_of(row)
    strategy = ["--strategy", row.get("strategy", "single"), "--shard-ranks", str(row.get("shard_ranks", ranks))] if ranks > 1 else []
    for attempt, (batch, recompute) in enumerate(row["torch"]):
        command = [bench.torch["python"], *pytorch.launch(ranks), str(ROOT / SCRIPT), "--model", shown(model), "--batch", str(batch), "--accumulate",
                   str(row["batch"] * row["accumulate"] // batch), "--tokens", str(row["tokens"]), "--lora", str(row.get("lora", 0)),
                   *row.get("options", []), *strategy, *(["--recompute"] if recompute else []), *(["--mixed"] if row.get("precision") == "bf16-mixed" else [])]
        log = bench.out / row["name"] / f"torch-{attempt}.log"
        try:
            measured = bench.run(command, log, bench.gpus[:ranks], TORCH_START + TORCH_STEPS * row["expected"][1])
            measured.pop("start_ns")
            how = f"{batch} x {row['batch'] * row['accumulate'] // batch}{', recomputed' if recompute else ''}"
            return dict(result_of(log), command=" ".join(command), how=how, **measured)
        except Skipped as reason:
            return dict(skipped=str(reason), command=" ".join(command))
        except BenchError as error:
            say(f"{row['name']}: torch {batch}{' recomputed' if recompute else ''}: {error}")
            result = dict(error=str(error), command=" ".join(command))
    return result


def cells(row, entry, gemm_tflops):
    run, torch = entry["run"], entry.get("torch") or {}
    beside = torch.get("step_s")
    used, planned = table.used_bytes(run), run["planned_bytes"]
    return [row["name"], table.number(beside, ".3f"), torch.get("how", "skipped" if "skipped" in torch else "failed" if torch else "-"), f"{run['step_s']:.4f}",
            table.number(beside / run["step_s"] if beside else None, ".2f"), f"{run['tflops_gpu']:.3g}",
            table.number(run["tflops_gpu"] / gemm_tflops if gemm_tflops else None, ".0%"), table.number(table.gib(planned), ".2f"),
            table.number(table.gib(used), ".2f"), table.number(used / planned if used else None, ".3f")]


def run(bench, chosen):
    small = bench.arguments.cpu_smoke

    def measure_row(row, entry):
        model = write_model(bench, row, small)
        entry["run"] = measure(bench, row, model, small)
        say(f"{row['name']}: {blipft.line_of(entry['run'])}")
        if row.get("torch") and bench.torch:
            entry["torch"] = measure_torch(bench, row, model)
            say(f"{row['name']}: torch {' '.join(str(entry['torch'].get(key, '')) for key in ('step_s', 'error', 'skipped'))}")

    bench.each(chosen, measure_row, bench.measure_ceilings)
    entries = bench.record["rows"]
    lines = [cells(row, entry, bench.record.get("gemm_tflops")) for row, entry in zip(chosen, entries) if "run" in entry]
    return table.print_results(bench.record, TITLES, lines, "run")
