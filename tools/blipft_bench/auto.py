"""train.batch_size: auto on one GPU: its choice and the other settings that --fit lists, measured in turn.

Every step has the same samples, so that all settings compute the same."""
import contextlib
import ctypes
import io
import json
import pathlib
import re
import shutil

import numpy as np

import make_demo
import make_text_demo

from . import blipft, inputs, table
from .commands import BenchError, Skipped
from .machine import GIB, ROOT, output_of, say, shown

TEXTS = 512
WITHIN = 1.25   # settings whose estimate is this many times that of the best are not run
SMOKE_GIB = 16  # the GPU memory that --cpu-smoke simulates
OTHERS = 3      # the largest number of other settings

# hidden size, inner size, layers, heads, key/value heads
LLAMAS = {"tiny": (2048, 5632, 22, 32, 4), "3b": (3200, 8640, 26, 32, 32), "7b": (4096, 11008, 32, 32, 32),
          "13b": (5120, 13824, 40, 40, 40), "llama3-8b": (4096, 14336, 32, 32, 8), "qwen2.5-7b": (3584, 18944, 28, 28, 4)}
PLAIN_LOSS = ["train.loss_on_padding=false", "train.loss_normalization=tokens", "data.num_workers=4"]
# recipe: what is run; total: samples of a step; given: the recipe's own batch_size x accumulate_grad_batches; bound: seconds of
# a step that are to be reached on one H200 with Alpaca's texts (--data, --tokenizer).
ROWS = [
    dict(name="tiny-full", model="tiny", recipe="inputs/llama/tiny-full.yaml", total=32, given=(8, 4), bound=0.040),
    dict(name="3b-full", model="3b", recipe="inputs/llama/3b-full.yaml", total=32, given=(8, 4), bound=0.133),
    dict(name="7b-full", model="7b", recipe="inputs/llama/7b-full.yaml", total=16, given=(4, 4), bound=0.120),
    dict(name="7b-lora", model="7b", recipe="inputs/llama/7b-lora.yaml", total=16, given=(4, 4), bound=0.085),
    dict(name="7b-qlora", model="7b", recipe="inputs/llama/7b-lora.yaml", total=16, given=(4, 4), bound=0.093,
         keys=["model.quantize=nf4"]),
    dict(name="blip2-full", model="blip2", recipe="inputs/single.yaml", total=64, given=(16, 4), keys=PLAIN_LOSS),
    dict(name="blip2-lora", model="blip2", recipe="inputs/blip2-lora.yaml", total=64, given=(16, 4)),
    dict(name="13b-lora", model="13b", recipe="inputs/llama/13b-lora.yaml", total=16, given=(4, 4)),
]
NAMES = [row["name"] for row in ROWS]
TITLES = ["row", "settings", "estimate s", "measured s", "estimate / measured", "planned GiB", "measured GiB",
          "of the fastest"]


def llama_config(name, vocabulary, small):
    hidden, mlp, layers, heads, kv_heads = (64, 96, 2, 2, 1) if small else LLAMAS[name]
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", dtype="bfloat16", hidden_act="silu", hidden_size=hidden,
                intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
                max_position_embeddings=2048, rms_norm_eps=1e-5, rope_theta=10000.0, initializer_range=0.02,
                tie_word_embeddings=False, vocab_size=vocabulary, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def write_texts(path):
    """Instructions whose answers have about as many words as Alpaca's: a few in most, hundreds in some."""
    rng = np.random.default_rng(0)
    records = []
    for _ in range(TEXTS):
        instruction, given, _ = make_text_demo.TASKS[int(rng.integers(len(make_text_demo.TASKS)))](rng)
        words = rng.choice(make_text_demo.WORDS, size=int(np.clip(np.exp(rng.normal(2.8, 1.1)), 2, 300)))
        records.append(dict(instruction=instruction, input=given, output=" ".join(words)))
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [f"{record['instruction']}\n{record['input']}\n{record['output']}" for record in records]


def prepare(arguments, out, names):
    """{model name: (model folder, data)}: what the rows of these names read, written into `out` where none is given."""
    made, texts = {}, None
    data = shown(arguments.data) if arguments.data else shown(out / "texts.jsonl")
    for name in sorted({row["model"] for row in ROWS if row["name"] in names}):
        folder = out / "models" / name
        if name == "blip2":
            captions = inputs.write_data(out / "data", inputs.PICTURES, inputs.PICTURE_SIZE)
            inputs.write_model(folder, None, captions, arguments.cpu_smoke)
            made[name] = (shown(folder), shown(out / "data"))
            continue
        if texts is None:
            texts = write_texts(out / "texts.jsonl")
        with contextlib.redirect_stdout(io.StringIO()):
            make_text_demo.write_model(str(folder), texts)
        if arguments.tokenizer:
            for file in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"):
                (folder / file).unlink(missing_ok=True)
                source = pathlib.Path(arguments.tokenizer) / file
                if source.exists():
                    shutil.copyfile(source, folder / file)
        make_demo.write_json(str(folder / "config.json"), llama_config(name, 32000, arguments.cpu_smoke))
        made[name] = (shown(folder), data)
    return made


class Holder:
    """Occupies all but `free` GiB of the GPU, as another process would."""

    def __init__(self, free):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        left, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(left), ctypes.byref(total))
        held = left.value - int(free * GIB)
        if held <= 0:
            raise BenchError(f"--free {free}: only {left.value / GIB:.1f} GiB are free")
        self.call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(held))
        say(f"holding {held / GIB:.1f} GiB, so that {free} GiB are free")

    def call(self, name, *arguments):
        status = getattr(self.cuda, name)(*arguments)
        if status != 0:
            raise BenchError(f"--free: {name} failed with CUDA error {status}")


def command_of(bench, row, settings, folder, steps):
    model, data = bench.made[row["model"]]
    total = row["total"]
    return [str(ROOT / bench.program), row["recipe"], f"model.path={model}", "model.init=random", f"data.path={data}",
            "data.val_split_fraction=0", f"data.num_train_samples={total}", "train.val_check_interval=0",
            "train.warmup_steps=0", f"train.max_steps={steps}", "train.max_epochs=1000000", f"train.total_batch_size={total}",
            f"parallel.device={'cpu' if bench.smoke else 'cuda'}", *row.get("keys", []), *settings, "output.save_model=false", f"output.path={shown(folder)}",
            "output.overwrite=true"]


AUTO = ("train.batch_size=auto", "train.accumulate_grad_batches=0")


def candidates(bench, row, free):
    """[(overrides, estimated seconds)] that --fit lists for what auto starts from, those far behind the first left out."""
    command = command_of(bench, row, AUTO, bench.out / "plan", bench.arguments.steps)
    listed = output_of([command[0], "--plan", "--fit", f"{free:.2f}GiB", *command[1:]], timeout=120)
    found = re.findall(r"^ +([0-9.]+) +[0-9.]+ [GM]iB +(?:-|[0-9.]+ [GM]iB) +(.*)$",
                       (listed or "").split("with frozen layers")[0], re.M)
    if not found:
        raise BenchError(f"--plan --fit lists nothing for {row['name']}: {' '.join(command)}")
    best = float(found[0][0])
    batch, accumulate = row["given"]
    all_of = [(("train.accumulate_grad_batches=0", *(word.strip("'") for word in text.split())), float(seconds))
              for seconds, text in found if float(seconds) <= WITHIN * best]
    given = (f"train.batch_size={batch}", f"train.accumulate_grad_batches={accumulate}")
    if not any(f"train.batch_size={batch}" in overrides for overrides, _ in all_of):
        all_of.append((given, None))
    return all_of


def settings_of(run):
    """(batch_size, micro-batches, act_ckpt, offload) that a run had."""
    text = run["config"]
    return tuple(re.search(rf"^  {key}: (.*)$", text, re.M)[1]
                 for key in ("batch_size", "accumulate_grad_batches", "act_ckpt", "offload"))


def measure(bench, row, overrides, name):
    """One run. Raises BenchError."""
    folder = bench.out / "runs" / f"{row['name']}-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    steps = bench.arguments.steps
    command = command_of(bench, row, overrides, folder, steps)
    log = bench.out / "logs" / f"{row['name']}-{name}.log"
    result = dict(command=" ".join(command), **bench.run(command, log, bench.gpus[:1], blipft.START))
    result.update(blipft.read_traces(folder, 1, steps, result.pop("start_ns"), with_config=True))
    printed = log.read_text()
    said = re.search(r"^auto +(.*)$", printed, re.M)
    result["choice"] = said[1] if said else None
    memory = re.search(r"^memory: planned ([0-9.]+) GiB, measured ([0-9.]+) GiB", printed, re.M)
    result["memory_gib"] = [float(value) for value in memory.groups()] if memory else None
    shutil.rmtree(folder, ignore_errors=True)
    return result


def run_row(bench, row, free, entry):
    """Runs auto, then the other choices of --fit, within the budget."""
    chosen = measure(bench, row, AUTO, "auto")
    entry["runs"] = [dict(chosen, what="auto")]
    say(f"{row['name']}: auto: {blipft.line_of(chosen)}; {chosen['choice']}")
    seen = {settings_of(chosen)}
    for index, (overrides, estimate) in enumerate(candidates(bench, row, free)):
        if len(entry["runs"]) > OTHERS:
            break
        batch = next(word for word in overrides if word.startswith("train.batch_size=")).split("=")[1]
        if any(batch == known[0] and ("act_ckpt" in " ".join(overrides)) == (known[2] != "none") and
               ("offload" in " ".join(overrides)) == (known[3] != "[]") for known in seen):
            continue
        try:
            other = measure(bench, row, overrides, str(index))
        except Skipped:
            break
        seen.add(settings_of(other))
        entry["runs"].append(dict(other, what="given" if estimate is None else "fit", estimate=estimate))
        say(f"{row['name']}: {' '.join(overrides)}: {blipft.line_of(other)}")


def cells_of(row, entry):
    fastest = min(run["step_s"] for run in entry["runs"])
    for run in entry["runs"]:
        batch, micro_batches, act_ckpt, offload = settings_of(run)
        text = f"{batch} x {micro_batches}" + (f", act_ckpt {act_ckpt}" if act_ckpt != "none" else "") + \
               (f", offload {offload}" if offload != "[]" else "")
        estimate = run.get("estimate")
        if run["what"] == "auto":
            said = re.search(r"an estimated ([0-9.]+) s", run["choice"] or "")
            estimate = float(said[1]) if said else None
        planned, measured = run["memory_gib"] or (None, None)
        bound = f" (to reach: {row['bound']:.3f})" if run["what"] == "auto" and "bound" in row else ""
        yield [row["name"] if run["what"] == "auto" else "", text + (" **auto**" if run["what"] == "auto" else ""),
               table.number(estimate, ".3f"), f"{run['step_s']:.4f}{bound}",
               table.number(estimate and estimate / run["step_s"], ".2f"), table.number(planned, ".2f"),
               table.number(measured, ".2f"), f"{run['step_s'] / fastest:.3f}"]


def run(bench, chosen):
    """Runs all rows and prints the table. Returns 0 if auto ran in every tried row."""
    free = bench.arguments.free
    holder = Holder(free) if free else None
    total = free or (SMOKE_GIB if bench.smoke else float(output_of(
        ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]).splitlines()[0]) / 1024)

    def prepare_models():
        bench.made = prepare(bench.arguments, bench.out, [row["name"] for row in chosen])

    bench.each(chosen, lambda row, entry: run_row(bench, row, total, entry), prepare_models, "auto.json")
    del holder
    lines = [line for row, entry in zip(chosen, bench.record["rows"]) if "runs" in entry for line in cells_of(row, entry)]
    return table.print_results(bench.record, TITLES, lines, "runs", left=2)
