"""Helpers of the tests of tools/bench.py: a call of it with what it printed, and stand-ins for the programs that it starts."""
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = os.path.abspath(os.environ.get("BLIPFT", ROOT / "blipft"))
sys.path.insert(0, str(ROOT / "tools"))

GIB = 2 ** 30
STEPS = 5


class Result:
    """A call of bench.py: status, output, the table's cells by row name, and bench.json."""

    def __init__(self, space, *arguments, program=PROGRAM, path=None, env=None):
        space.count += 1
        self.out_folder = space.folder / f"out{space.count}"
        # No GPU of this machine is used: what the tests see, they bring along.
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **(env or {})}
        if path:
            env["PATH"] = f"{path}:{env['PATH']}"
            del env["CUDA_VISIBLE_DEVICES"]
        command = [sys.executable, str(ROOT / "tools/bench.py"), "--out", str(self.out_folder), "--steps", str(STEPS),
                   "--blipft", str(program), *arguments]
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in self.out.splitlines()
                 if line.startswith("|")]
        lines = lines[:len(lines) if "\nAs the README" not in self.out else self.out.split("\nAs the README")[0].count("\n|") + 1]
        self.rows = {line[0]: dict(zip(lines[0], line)) for line in lines[2:]}
        name = next((name for name in ("ops", "auto") if "--" + name in arguments), "bench")
        path = self.out_folder / (name + ".json")
        self.json = json.loads(path.read_text()) if path.exists() else None

    def __str__(self):
        return f"status {self.status}\n{self.out}\n{self.err}"


def close(a, b):
    return abs(a - b) <= 1e-9 * abs(b)  # the same doubles, in another order of operations


def has_ended(pid_file, patience=10):
    """Returns True if the process whose number is in the file has ended; a zombie counts as ended."""
    stat, deadline = pathlib.Path(f"/proc/{pid_file.read_text().strip()}/stat"), time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            if stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


class Space:
    def __init__(self, folder):
        self.folder, self.count = pathlib.Path(folder), 0

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def failing(self, name, text):
        """A stand-in for blipft that does not train, but says its version."""
        return self.program(name, '#!/bin/bash\n[ "$1" = --version ] && exit\n' + text)

    def stand_ins(self):
        """A machine with two GPUs: 100 MiB are used on each before a run, 100 + 1536 on the second while it runs."""
        # Each run asks once before it starts; the file "running" is there while the program runs.
        running = self.folder / "running"
        self.program("bin/nvidia-smi", f"""#!/bin/bash
case "$*" in
  *driver_version*) echo "0, GPU-aa, Stand-in, 1.2.3"; echo "1, GPU-bb, Stand-in, 1.2.3" ;;
  *memory.used*) echo 100; case "$*" in *=0,1*) if [ -e {running} ]; then echo 1636; else echo 100; fi ;; esac ;;
  *) exit 1 ;;
esac
""")
        sizes = dict(name="vit", batch=1, heads=2, queries=3, keys=3, head_size=4, causal=True, dropout=0)
        times = (("forward", "memory", 4.0), ("forward", "L2", 3.0), ("backward", "memory", 5.0))
        ops = [{"op": "attention_" + phase, "shape": "vit 1", "from": source, "us": us, "attention": sizes}
               for phase, source, us in times]
        (self.folder / "ops.json").write_text(json.dumps(dict(gemm_tflop_s=0.5, copy_tb_s=4.5, ops=ops)))
        self.program("op_bench", f"""#!/bin/bash
echo "op_bench: all of it"; cp {self.folder}/ops.json "${{@: -1}}"
""")
        other = dict(sizes, flash=dict(forward=2.0, backward=8.0), cudnn=dict(error="no"))
        (self.folder / "attention.json").write_text(json.dumps(dict(shapes=[other])))
        self.program("python", f"""#!/bin/bash
case "$*" in
  "-c "*transformers*) echo 9.9 8.8 ;;
  "-c "*) echo 9.9 ;;
  *bench_attention*) cp {self.folder}/attention.json "${{@: -1}}" ;;
  *fsdp2*--bs?64*) echo "torch.OutOfMemoryError: out of luck"; echo "[rank0]: goodbye"; exit 1 ;;
  *--compile*) echo 'RESULT {{"step_s": 2.0}}' ;;
  *) echo 'RESULT {{"step_s": 2.5}}' ;;
esac
""")
        self.program("torch_step.py", "")
        return self.program("on_cpu", f"""#!/bin/bash
touch {running}; trap 'rm -f {running}' EXIT
{PROGRAM} "${{@/parallel.device=cuda/parallel.device=cpu}}" train.batch_size=1 && sleep 1.3
""")
