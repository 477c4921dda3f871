"""Helpers of the tests of the whole program: a small BLIP-2 with pictures, and starting the program on ranks.

tools/make_demo.py makes both. BLIPFT names the program (default ./blipft). BLIPFT_DEVICE=cuda: the ranks have GPUs, one each;
what needs more of them than there are is skipped (gpu_runs_test.py starts such tests). With NCCL_MULTI_RANK_GPU_ENABLE=1
ranks share GPUs, and nothing is skipped for want of them.
"""
import itertools
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import time

import h5py

from script_tests import Skip, check

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tools"))
from blipft_golden.archive import copy_tokenizer, golden_path  # noqa: E402, F401

PROGRAM = os.environ.get("BLIPFT", str(ROOT / "blipft"))
SAMPLES = 48
RECORD_FILES = ("config.yaml", "log.txt", "metrics.jsonl")  # in every run folder, beside traces
DEVICE = os.environ.get("BLIPFT_DEVICE", "cpu")


def find_gpus():
    """The GPUs that programs started here see, as CUDA_VISIBLE_DEVICES names them; empty where there is no driver."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    except FileNotFoundError:
        return []
    there = [line for line in listed.splitlines() if line.startswith("GPU ")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(i) for i in range(len(there))]
    # CUDA stops at the first that is none.
    words = [word.strip() for word in visible.split(",")]
    known = [any(word and (line.startswith(f"GPU {word}:") or f"UUID: {word}" in line) for line in there) for word in words]
    return words[:known.index(False)] if False in known else words


VISIBLE = find_gpus() if DEVICE == "cuda" else []
GPUS = len(VISIBLE)
_turns = itertools.count(os.getpid())
if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
    GPUS *= 4


def ranks_up_to(wanted):
    """The number of ranks: `count`, or one for each GPU if there are fewer."""
    return min(wanted, GPUS) if DEVICE == "cuda" else wanted


class Space:
    """The folder of this run of the tests: the demo's files, and whatever the tests make."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        subprocess.run([sys.executable, str(ROOT / "tools/make_demo.py"), "--out", str(self.folder / "demo"),
                        "--samples", str(SAMPLES), "--seed", "3"], check=True, stdout=subprocess.DEVNULL)
        self.model, self.data = self.folder / "demo/model", self.folder / "demo/data"
        self.shrink()
        self.count = 0
        self.config = self.folder / "run.yaml"
        self.config.write_text(
            f"model:\n  path: {self.model}\n  init: random\n"
            f"data:\n  path: {self.data}\n  max_text_tokens: 32\n  num_workers: 1\n"
            "train:\n  lr: 1.0e-3\n  batch_size: 4\n  precision: 32-true\n  dropout: false\n"
            f"parallel:\n  device: {DEVICE}\n  threads: 1\n")

    def shrink(self):
        """Fewer and thinner layers: the tests start the program dozens of times."""
        path = self.model / "config.json"
        config = json.loads(path.read_text())
        layers = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
        config["vision_config"].update(layers)
        config["qformer_config"].update(layers, encoder_hidden_size=32)
        config["text_config"].update(hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=2,
                                     word_embed_proj_dim=32)
        path.write_text(json.dumps(config))

    def new(self, name="out"):
        self.count += 1
        return self.folder / f"{name}{self.count}"

    def copy(self, what):
        """A copy of a folder, to be spoilt."""
        target = self.new(what.name)
        shutil.copytree(what, target)
        return target


class TwoModels(Space):
    """A small BLIP-2 with pictures, and a small LLaMA with instructions of many lengths: a run file each, which ends in `rest`."""

    def __init__(self, folder, rest):
        super().__init__(folder)
        self.text = self.folder / "text"
        subprocess.run([sys.executable, str(ROOT / "tools/make_text_demo.py"), "--out", str(self.text), "--samples", "80"],
                       check=True, stdout=subprocess.DEVNULL)
        path = self.text / "model/config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 2, "hidden_size": 64,
                                    "intermediate_size": 96}))
        self.configs = {"picture": self.folder / "picture.yaml", "text": self.folder / "text.yaml"}
        for kind, model, data, tokens in (("picture", self.model, self.data, 32),
                                          ("text", self.text / "model", self.text / "data/instructions.jsonl", 96)):
            self.configs[kind].write_text(f"model:\n  path: {model}\n  init: random\n"
                                          f"data:\n  path: {data}\n  max_text_tokens: {tokens}\n  num_workers: 1\n" + rest)


class Result:
    def __init__(self, status, out, err, seconds, output):
        self.status, self.out, self.err, self.seconds, self.output = status, out, err, seconds, output

    def steps(self, rank=0):
        return read_table(self.output, rank, "steps")

    def losses(self):
        return self.steps()["loss"]

    def __str__(self):
        return f"status {self.status}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"


def gpus_of(ranks):
    """CUDA_VISIBLE_DEVICES of a run: as many GPUs as it has ranks, other ones in each run. A process starts faster if it
    sees fewer GPUs, and runs beside each other share the machine's GPUs evenly."""
    wanted, first = min(max(1, ranks), len(VISIBLE)), next(_turns) * max(1, ranks)
    return ",".join(VISIBLE[(first + i) % len(VISIBLE)] for i in range(wanted))


def environment(ranks=None):
    """The environment of a run with `ranks` ranks; None: of any command, with all GPUs."""
    values = dict(os.environ, OMP_WAIT_POLICY="passive")  # threads and ranks that spin take ten times as long
    values.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
    if ranks is not None and VISIBLE and "NCCL_MULTI_RANK_GPU_ENABLE" not in os.environ:
        values["CUDA_VISIBLE_DEVICES"] = gpus_of(ranks)
    return values


def command_line(ranks, arguments):
    if DEVICE == "cuda" and ranks > GPUS:
        raise Skip(f"needs {ranks} GPUs, there are {GPUS}")
    command = [str(a) for a in arguments]
    if not ranks:
        return command
    options = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", *options, *command]


def mpirun(ranks, arguments, seconds=180, **variables):
    begin = time.monotonic()
    done = subprocess.run(command_line(ranks, arguments), cwd=ROOT, env={**environment(ranks), **variables},
                          stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds)
    return done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"), time.monotonic() - begin


def pids_of_ranks(process):
    """{rank: process} of what this mpirun has started."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) != process.pid:
                continue
            for entry in (folder / "environ").read_bytes().split(b"\0"):
                if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                    found[int(entry.split(b"=")[1])] = int(folder.name)
        except (OSError, ValueError, IndexError):
            pass  # no process, or gone meanwhile
    return found


def on_machines(space, machines):
    """The command by which ranks are started that take themselves for ranks of these machines, "0,0,1,1"."""
    library = space.folder / "machines.so"
    if not library.exists():
        subprocess.run(["mpicxx", "-shared", "-fPIC", "-o", library, ROOT / "test/support/machines.cpp"], check=True)
    return ["env", f"MACHINES={machines}", f"LD_PRELOAD={library}"]


def start(space, ranks, *overrides, config=None, before=(), **variables):
    """Runs the program; ranks 0: without mpirun. before: a command that starts it. variables: of the environment."""
    output = space.new()
    if not any(o.startswith("output.path=") for o in overrides):
        overrides = (f"output.path={output}", *overrides)
    return Result(*mpirun(ranks, [*before, PROGRAM, config or space.config, *overrides], **variables), output)


def trained(space, kind, ranks, *overrides, **variables):
    """The run of one of the space's `configs`, which must end well."""
    result = start(space, ranks, *overrides, config=space.configs[kind], **variables)
    check(result.status == 0, overrides, result)
    return result


def run(space, ranks, *overrides, **variables):
    result = start(space, ranks, *overrides, **variables)
    check(result.status == 0, result)
    return result


def read_table(folder, rank, name):
    with h5py.File(pathlib.Path(folder) / f"trace.rank{rank:04d}.h5", "r") as file:
        return file[name][:]


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} of one file, parsed by hand."""
    data = pathlib.Path(path).read_bytes()
    length, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        check(begin == end, path, name, "leaves a gap or overlaps")
        end = stop
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), data[8 + length + begin:8 + length + stop])
    check(end == len(data) - 8 - length, path, "has bytes that belong to no tensor")
    return tensors


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors.values()))


_saved = {}


def saved_model(space):
    """A model directory with weights: what three steps on two ranks left behind. Made once."""
    if space not in _saved:
        result = run(space, 2, "train.max_steps=3", "output.save_model=true", "parallel.strategy=fsdp")
        _saved[space] = result.output / "model"
    return _saved[space]


def model_of(output):
    """The tensors of the model that a run saved."""
    return read_safetensors(output / "model/model.safetensors")


def steps_of(output):
    """(step, loss, gradient norm) of the latest part of a run."""
    files = sorted(pathlib.Path(output).glob("trace*rank0000.h5"), key=lambda path: path.stat().st_mtime_ns)
    with h5py.File(files[-1], "r") as file:
        return [(int(row["step"]), float(row["loss"]), float(row["grad_norm"])) for row in file["steps"][:]]


_CRC32C = [0] * 256
for _byte in range(256):
    _value = _byte
    for _ in range(8):
        _value = (_value >> 1) ^ (0x82F63B78 if _value & 1 else 0)
    _CRC32C[_byte] = _value


def crc32c(data):
    """CRC-32C (Castagnoli), byte by byte."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _CRC32C[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def write_index(folder, index):
    """Writes a checkpoint.json that says `index`, with the right checksum: what the program must then judge by itself."""
    index = {key: value for key, value in index.items() if key != "crc32c"}
    text = json.dumps(index, indent=1, ensure_ascii=False).removesuffix("\n}").encode()
    (folder / "checkpoint.json").write_bytes(text + b',\n "crc32c": %d\n}\n' % crc32c(text))


def checkpoint(output, step):
    """The folder of a run's checkpoint after `step` steps."""
    return output / f"checkpoints/step-{step:08d}"
