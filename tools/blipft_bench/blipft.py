"""One run of blipft: its command line, and the results in its trace."""
import os
import shutil
import statistics

import numpy as np

from blipft_trace.files import TraceError
from blipft_trace.parts import open_run

from .commands import BenchError, run_command
from .machine import GIB, ROOT, shown
from .rows import TEXT_TOKENS, WARMUP

START = 12        # seconds of one run before its first step, with products that are new on this machine
SMOKE_SHRINK = 8  # --cpu-smoke divides batch sizes by this
# Numbers of a run whose medians over the repeats are in the table.
MEDIANS = ("step_s", "samples_s", "tflops_gpu", "first_step_s", "seconds", "data_wait_s", "planned_bytes",
           "measured_bytes", "driver_bytes")


def launch(bench, ranks):
    options = ["-np", str(ranks), "--bind-to", "none"]
    options += ["--oversubscribe"] if bench.smoke else []
    options += ["--allow-run-as-root"] if os.getuid() == 0 else []
    return ["mpirun", *options]


def command_of(bench, row, ranks, folder):
    batch, accumulate = row["batch"], row["accumulate"]
    if bench.smoke:
        batch = max(1, batch // SMOKE_SHRINK)
    steps = bench.arguments.steps
    samples = steps * batch * accumulate * ranks
    init = "pretrained" if list((ROOT / bench.model).glob("*.safetensors")) else "random"
    return [*launch(bench, ranks), bench.program, f"inputs/{row['strategy']}.yaml", f"model.path={bench.model}",
            f"model.init={init}", f"data.path={bench.data}", f"data.num_train_samples={samples}",
            "data.text_padding=max", f"data.max_text_tokens={TEXT_TOKENS}", f"train.batch_size={batch}",
            f"train.accumulate_grad_batches={accumulate}", "train.max_epochs=1", f"train.max_steps={steps}",
            f"parallel.devices={ranks}", f"parallel.device={'cpu' if bench.smoke else 'cuda'}", *row.get("keys", []),
            f"output.path={shown(folder)}", "output.overwrite=true"]


def run(bench, row, ranks, repeat, limit):
    """One run's measurements. Raises BenchError."""
    folder = bench.out / (row["name"] + (f".{repeat + 1}" if repeat else ""))
    for old in folder.glob("trace.*rank*.h5"):
        old.unlink()
    command = command_of(bench, row, ranks, folder)
    result = dict(command=" ".join(command))
    result.update(run_command(command, folder / "blipft.log", bench.gpus[:ranks], limit))
    result.update(read_traces(folder, ranks, bench.arguments.steps, result.pop("start_ns")))
    return result


def fresh_folder(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def tokens_of(row, small):
    return 32 if small else row["tokens"]


def estimate(row, steps):
    """Seconds of one run on an H200."""
    return START + row["expected"][0] * steps


def run_rows(bench, row, folder, model, data, keys):
    """One run of rows of `tokens` tokens, `batch` x `accumulate` a step, on each GPU, with a separate run file in `folder`."""
    small, steps, ranks = bench.arguments.cpu_smoke, bench.arguments.steps, bench.ranks_of(row)
    yaml = folder / "run.yaml"
    yaml.write_text(f"model: {{path: {shown(model)}, init: random}}\n"
                    f"data: {{path: {shown(data)}, text_padding: max, max_text_tokens: {tokens_of(row, small)}}}\n"
                    f"train: {{precision: {row.get('precision', 'bf16-true')}, batch_size: {1 if small else row['batch']}, accumulate_grad_batches: "
                    f"{2 if small else row['accumulate']}, max_steps: {steps}, max_epochs: 1000000}}\n"
                    f"parallel: {{strategy: {row.get('strategy', 'single')}, device: {'cpu' if small else 'cuda'}}}\n"
                    f"output: {{path: {shown(folder / 'out')}, save_model: false}}\n")
    command = [*(launch(bench, ranks) if ranks > 1 else []), bench.program, shown(yaml), *keys]
    result = dict(command=" ".join(command), **bench.run(command, folder / "log.txt", bench.gpus[:ranks], estimate(row, steps)))
    result.update(read_traces(folder / "out", ranks, steps, result.pop("start_ns")))
    return result


def read_traces(folder, ranks, steps, command_ns, with_config=False):
    """Times of the steps and results in the trace; the slowest rank counts. with_config: its config too."""
    try:
        traces = open_run(folder).parts[0].traces
    except TraceError as error:
        raise BenchError(str(error)) from error
    if len(traces) != ranks:
        raise BenchError(f"{folder}: has the traces of {len(traces)} ranks, expected {ranks}")
    periods, waits, first, driver = [], [], [], []
    for trace in traces:
        rows = trace.steps()
        if len(rows) != steps:
            raise BenchError(f"{trace.path}: has {len(rows)} steps, expected {steps}")
        periods.append((np.diff(rows["begin_ns"]) * 1e-9).tolist())
        waits.append((rows["data_wait_ns"] * 1e-9).tolist())
        first.append((float(trace.attributes()["start_unix_ns"]) + float(rows["end_ns"][0]) - command_ns) * 1e-9)
        if trace.rows("driver_memory"):
            driver.append(int(trace.read("driver_memory")["total_bytes"].max()))
    seconds = max(statistics.median(rank[WARMUP:]) for rank in periods)
    about = {key: (value.item() if isinstance(value, np.generic) else value)
             for key, value in traces[0].attributes().items()}
    for trace in traces:
        trace.file.close()
    return dict(
        step_s=seconds, samples_s=about["samples_per_step"] * ranks / seconds,
        tflops_gpu=about["flops_per_step"] / seconds * 1e-12, first_step_s=max(first),
        data_wait_s=max(statistics.median(rank[WARMUP:]) for rank in waits),
        planned_bytes=about.get("planned_total_bytes", about["planned_bytes"]),
        driver_bytes=max(driver) if driver else None, periods_s=periods, data_waits_s=waits,
        attributes={key: about[key] for key in sorted(about) if key not in ("config", "rank")},
        **(dict(config=about["config"]) if with_config else {}))


def line_of(run):
    """A run in one line, for the progress."""
    memory = f", {run['measured_bytes'] / GIB:.1f} GiB used" if run["measured_bytes"] is not None else ""
    return (f"{run['step_s']:.4f} s/step, {run['tflops_gpu']:.3g} TFLOP/s a rank, first step after "
            f"{run['first_step_s']:.1f} s, prompt after {run['seconds']:.1f} s, waited for data "
            f"{run['data_wait_s'] * 1e3:.2f} ms/step, planned {run['planned_bytes'] / GIB:.2f} GiB{memory}")
