#!/usr/bin/env python3
"""The Python examples of docs/using-the-model.md, as they stand, on small models that the program has trained.

    test/program/using_the_model_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft). Needs torch, transformers and peft; without them the tests are skipped.
"""
import os
import random
import re
import shutil
import subprocess
import sys

from llama_program_test import LR, STEPS, blipft_side, make_model
from script_tests import Skip, check, run_tests, test
from program_runs import PROGRAM, ROOT, Space, run, saved_model

try:
    import peft  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401
    why = None
except ImportError as missing:
    why = str(missing)

LORA = ("adapter.kind=lora", "adapter.r=4", "adapter.alpha=6", "output.save_model=true", "output.save_merged=true")
PAGE = ROOT / "docs/using-the-model.md"


def examples():
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    check(len(found) == 4, PAGE, "has", len(found), "examples; this test knows 4")
    return found


def run_example(example, folder):
    """In a process of its own, whose working directory is `folder`."""
    done = subprocess.run([sys.executable, "-c", example], cwd=folder, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
    check(done.returncode == 0, example, "\n", done.stderr[-3000:])
    return done.stdout


@test
def the_examples_run_as_they_stand(space):
    if why:
        raise Skip(why)
    folder = space.new("user")
    (folder / "runs").mkdir(parents=True)
    (folder / "models").mkdir()
    base, _ = make_model(space, 5)
    (folder / "models/base").symlink_to(base)
    whole = blipft_side(space, base, random.Random(5), STEPS, f"train.lr={LR}", "output.save_model=true")
    (folder / "runs/instructions").symlink_to(whole.output)
    adapted = blipft_side(space, base, random.Random(5), STEPS, *LORA)
    (folder / "runs/lora").symlink_to(adapted.output)
    captions = run(space, 1, f"model.path={saved_model(space)}", "model.init=pretrained", "train.max_steps=1",
                   "output.save_model=true")
    (folder / "runs/captions").symlink_to(captions.output)
    shutil.copy(next(path for path in sorted(space.data.rglob("*")) if path.suffix in (".png", ".jpg")), folder / "photo.png")
    for example in examples():
        out = run_example(example, folder)
        check("print" not in example or out.endswith("\n"), example, "printed nothing")
        print(f"   printed {out.strip()[:60]!r}", flush=True)
    check((folder / "merged/model.safetensors").exists(), "nothing was merged")


if __name__ == "__main__":
    sys.exit(run_tests("using_the_model_test", Space, PROGRAM))
