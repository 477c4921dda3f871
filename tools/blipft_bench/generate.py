"""Generation on one GPU: decoding against the bound of reading weights and cache, captions with transformers, prefill."""
import contextlib
import io
import json
import pathlib
import re
import shutil

import numpy as np

import make_demo
import make_text_demo

from . import auto, inputs, table
from .commands import BenchError, Skipped, result_of
from .machine import say, shown

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "bench_generate_torch.py"
# Bytes a second by the data sheets, and bf16 operations a second of long products, for the GPUs of the bounds.
BANDWIDTH = {"H200": 4.8e12, "H100": 3.35e12}
# texts: number of texts, `batch` in parallel. prompt and new: tokens. estimate: seconds of one run on an H200. torch: PyTorch runs too.
ROWS = [
    dict(name="7b-1", estimate=10, model="7b", texts=1, batch=1, prompt=128, new=256, torch=True),
    dict(name="7b-64", estimate=10, model="7b", texts=64, batch=64, prompt=128, new=256, torch=True),
    dict(name="7b-nf4-1", estimate=10, model="7b", texts=1, batch=1, prompt=128, new=256, keys=["model.quantize=nf4"], bits=4.5),
    dict(name="7b-int8-1", estimate=10, model="7b", texts=1, batch=1, prompt=128, new=256, keys=["model.quantize=int8"], bits=8.5),
    dict(name="captions", estimate=20, model="blip2", texts=4096, batch=64, prompt=0, new=30, torch=True),
    dict(name="captions-beam5", estimate=25, model="blip2", texts=4096, batch=64, prompt=0, new=30, beams=5, torch=True),
    dict(name="prefill", estimate=15, model="7b", texts=128, batch=4, prompt=2048, new=1),
]
NAMES = [row["name"] for row in ROWS]
TORCH_EAGER, TORCH_BEST = 60, 90  # seconds of a run of bench_generate_torch.py on an H200
TITLES = ["row", "step ms", "bound ms", "share", "texts/s", "from the start", "prompt tokens/s", "TFLOP/s", "torch eager", "torch best", "ratio"]


def llama_sizes(small):
    config = auto.llama_config("7b", 32000, small)
    hidden, mlp, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    return hidden, layers, layers * (4 * hidden * hidden + 3 * hidden * mlp), 32000 * hidden


def bound_ms(row, bandwidth, small):
    """Seconds to read all weights once, and the keys and values of each text at the mean length."""
    hidden, layers, matrices, head = llama_sizes(small)
    cache = row["batch"] * (row["prompt"] + row["new"] / 2) * layers * 2 * hidden * 2
    return (matrices * row.get("bits", 16) / 8 + head * 2 + cache) / bandwidth * 1e3


def prefill_operations(row, small):
    """Operations for one text: products of all rows, attention of half the pairs."""
    hidden, layers, matrices, _ = llama_sizes(small)
    return 2 * matrices * row["prompt"] + layers * 2 * row["prompt"] ** 2 * hidden


def write_llama(folder, small):
    """A model without weights, with a small tokenizer."""
    with contextlib.redirect_stdout(io.StringIO()):  # it reports a small model
        make_text_demo.write_model(str(folder), make_text_demo.WORDS)
    config = auto.llama_config("7b", 32000, small)
    config["max_position_embeddings"] = 4096
    make_demo.write_json(str(folder / "config.json"), config)
    return folder


def write_prompts(path, row, count):
    """Texts of digits, a token each, so that their length is known."""
    rng = np.random.default_rng(1)
    letters = np.array(list("0123456789"))
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(row["texts"]):
            file.write(json.dumps({"prompt": "".join(rng.choice(letters, size=count)), "completion": "a"}) + "\n")


def prepare(bench, row, small):
    """(model folder, data)."""
    if row["model"] == "blip2":
        pictures = bench.out / "pictures"        # one for each text: a data set is not read twice
        captions = inputs.write_data(pictures, inputs.PICTURES if small else row["texts"], inputs.PICTURE_SIZE)
        folder = bench.out / "models" / "blip2"
        inputs.write_model(folder, None, captions, small)
        return folder, pictures
    data = bench.out / f"prompts-{row['name']}.jsonl"
    write_prompts(data, row, (32 if small else row["prompt"]) - 1)  # and the start of a text
    return write_llama(bench.out / "models" / "7b", small), data


def run_blipft(bench, row, model, data, small):
    """Runs twice, because the first run of a shape times its matrix products, and returns the second one's figures. If there are
    more texts than slots, a third run of the first texts alone measures their time, which includes loading the GPU's code:
    PyTorch's figures come after a warm-up call."""
    new = 4 if small else row["new"]
    folder = bench.out / row["name"]
    yaml = bench.out / f"{row['name']}.yaml"
    yaml.write_text(f"model: {{path: {shown(model)}, init: random}}\ndata: {{path: {shown(data)}}}\n"
                    f"train: {{precision: {'32-true' if small else 'bf16-true'}}}\noutput: {{path: {shown(folder)}}}\n")
    command = [bench.program, "--generate", shown(yaml), f"generate.samples={row['texts']}", f"generate.max_new_tokens={new}",
               f"generate.min_new_tokens={new}", f"generate.batch_size={row['batch']}",
               f"generate.num_beams={row.get('beams', 1)}", *row.get("keys", [])]
    if small:
        command += ["parallel.device=cpu", "generate.samples=2", "generate.batch_size=2"]

    def attempt(name, *keys):
        shutil.rmtree(folder, ignore_errors=True)
        log = bench.out / f"{row['name']}-{name}.log"
        bench.run([*command, *keys], log, bench.gpus[:1], row["estimate"])
        text = log.read_text(errors="replace")
        found = re.search(r"^generated +(\d+) texts, (\d+) tokens, ([\d.]+) s", text, re.M)
        if not found:
            raise BenchError(f"printed no line \"generated\"; see {log}")
        step = re.search(r"^a step +([\d.]+) ms", text, re.M)
        return dict(texts=int(found[1]), tokens=int(found[2]), seconds=max(0.005, float(found[3])), step_ms=float(step[1]) if step else None)

    attempt("first")
    run = dict(command=" ".join(command), **attempt("second"))
    if not small and row["texts"] > row["batch"]:
        begin = attempt("begin", f"generate.samples={row['batch']}")
        run["behind the first"] = (run["texts"] - begin["texts"]) / (run["seconds"] - begin["seconds"])
    return run


def rate_of(run):
    """Texts a second, without the first ones if there are others."""
    return run.get("behind the first", run["texts"] / run["seconds"])


def run_torch(bench, row, model, best):
    command = [bench.torch["python"], str(SCRIPT), "--model", shown(model), "--batch", str(row["batch"]), "--prompt",
               str(row["prompt"]), "--new", str(row["new"]), "--beams", str(row.get("beams", 1)), *(["--best"] if best else [])]
    log = bench.out / f"{row['name']}-torch-{'best' if best else 'eager'}.log"
    try:
        bench.run(command, log, bench.gpus[:1], TORCH_BEST if best else TORCH_EAGER)
        return result_of(log)
    except Skipped as reason:
        return dict(skipped=str(reason))
    except BenchError as error:
        return dict(error=str(error))


def line_of(row, run, bandwidth, small):
    """The table's cells."""
    cells = {"row": row["name"], "step ms": run["step_ms"], "texts/s": rate_of(run), "from the start": run["texts"] / run["seconds"]}
    if row["model"] == "7b" and row["new"] > 1:
        cells["bound ms"] = bound_ms(row, bandwidth, small)
        cells["share"] = cells["bound ms"] / run["step_ms"] if run["step_ms"] else None
    if row["new"] == 1:
        cells["prompt tokens/s"] = row["prompt"] * rate_of(run)
        cells["TFLOP/s"] = prefill_operations(row, small) * rate_of(run) * 1e-12
    eager, best = run.get("torch eager"), run.get("torch best")
    for title, found in (("torch eager", eager), ("torch best", best)):
        if found and "texts_s" in found:
            cells[title] = found["texts_s"]
    if "torch best" in cells or "torch eager" in cells:
        cells["ratio"] = cells["texts/s"] / max(cells.get("torch best", 0), cells.get("torch eager", 0))
    return cells


def run(bench, chosen):
    small = bench.arguments.cpu_smoke
    name = bench.gpus[0]["name"] if bench.gpus else ""
    bandwidth = next((value for key, value in BANDWIDTH.items() if key in name), 3.35e12)

    def measure_row(row, entry):
        model, data = prepare(bench, row, small)
        entry["run"] = run_blipft(bench, row, model, data, small)
        if row.get("torch") and bench.torch and not small:
            for best in (False, True):
                entry["run"][f"torch {'best' if best else 'eager'}"] = run_torch(bench, row, model, best)
        say(f"{row['name']}: {rate_of(entry['run']):.1f} texts/s")

    bench.each(chosen, measure_row)
    print(f"{name or 'CPU'}; texts/s of torch too; the bound is of weights and cache at {bandwidth / 1e12:.2f} TB/s\n")
    lines = []
    for row, entry in zip(chosen, bench.record["rows"]):
        if "run" in entry:
            found = entry["cells"] = line_of(row, entry["run"], bandwidth, small)
            lines.append([f"{found[t]:.4g}" if isinstance(found.get(t), float) else str(found.get(t) or "") for t in TITLES])
    bench.write()
    return table.print_results(bench.record, TITLES, lines, "run")
