"""Compares two builds of blipft that must compute the same, recipe by recipe.

  tools/compare_builds.py OLD NEW [WORD...] [section.key=value...] [--quick]

OLD and NEW are programs. With words, only recipes of inputs/ whose path contains one of them are compared. Settings apply to the
runs of the demos, where a change between the builds is known (data.val_split_fraction=0: which samples are held out). The
comparison:

  plans       what --plan, --plan --generate and --plan --evaluate print for every recipe with the shape of its model in
              share/models, each in several variants. Other numbers are a difference; other words alone are counted.
  losses      loss and gradient norm of each training step of the demos on CPUs, with the same bits
  texts       what the demos' models generate on CPUs
  kernels     on a GPU: the names of the kernels, copies and fills of one training step of the demos, and how often each runs

Prints one line for each comparison and a last line with the counts. Exits with 1 if anything differs, with 2 if a
comparison was impossible.
"""
import argparse
import collections
import glob
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHAPES = os.path.join(ROOT, "share", "models")
# Recipes whose model has another name in share/models.
SHAPE_OF_MODEL = {"CodeLlama-7b-hf": "codellama-7b"}
DEMOS = {"inputs/demo.yaml": ("make_demo.py", "data"), "inputs/demo-llama.yaml": ("make_text_demo.py", "data/instructions.jsonl")}
FOUR_FSDP = ["parallel.strategy=fsdp", "--ranks", "4"]
TRAINING_VARIANTS = [
    [],
    ["train.act_ckpt=full"],
    ["train.act_ckpt=half"],
    ["train.batch_size=4", "train.accumulate_grad_batches=2"],
    FOUR_FSDP,
    FOUR_FSDP + ["parallel.reshard=always"],
    ["parallel.strategy=ddp", "--ranks", "4"],
    ["train.act_ckpt=full", "parallel.offload=[optimizer,parameters,activations]"],
]
GENERATION_VARIANTS = [[], ["generate.num_beams=4"], ["model.quantize=nf4"], FOUR_FSDP]
TRAINING_RUNS = [  # ranks, settings
    (1, []),
    (1, ["train.act_ckpt=full"]),
    (1, ["train.precision=bf16-true"]),
    (1, ["adapter.kind=lora", "adapter.dropout=0.1"]),
    (2, ["parallel.strategy=fsdp", "parallel.reshard=always"]),
    (2, ["parallel.strategy=ddp"]),
]
GENERATION_RUNS = [[], ["generate.num_beams=3"], ["generate.do_sample=true", "generate.temperature=1.5"]]
STEPS, RECORDED_STEP = 8, 5


class Comparison:
    """Two programs, a folder for their files, and the number of comparisons by kind and result."""

    def __init__(self, old, new, folder):
        self.programs = {"old": os.path.abspath(old), "new": os.path.abspath(new)}
        self.folder = folder
        self.counts = {kind: collections.Counter() for kind in ("plans", "losses", "texts", "kernels")}

    def run_both(self, make_arguments, ranks=1):
        """{"old": the finished process, "new": ...}; make_arguments(side) returns the command line's arguments."""
        done = {}
        for side, program in self.programs.items():
            command = [program, *make_arguments(side)]
            if ranks > 1:
                root = ["--allow-run-as-root"] if os.getuid() == 0 else []
                command = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", *root, *command]
            # A separate home has the table of measured GEMM algorithms: the new program uses the choices of the old one.
            environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", HOME=self.folder,
                               OMPI_MCA_btl_vader_single_copy_mechanism="none")
            done[side] = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
        return done

    def note(self, kind, verdict, what):
        self.counts[kind][verdict] += 1
        print(f"{verdict:9} {kind:8} {what}", flush=True)

    def compare(self, kind, what, old, new):
        """Records if two lists are equal, and otherwise their first different elements."""
        if old == new:
            return self.note(kind, "same", what)
        before, after = next((a, b) for a, b in itertools.zip_longest(old, new, fillvalue="nothing") if a != b)
        self.note(kind, "DIFFERENT", f"{what}: {before} -> {after}")

    def summary(self):
        parts = []
        for kind, counts in self.counts.items():
            parts.append(f"{kind}: {counts['same'] + counts['words']} same" +
                         (f" ({counts['words']} in other words)" if counts["words"] else "") +
                         f", {counts['DIFFERENT']} different" +
                         (f", {counts['refused']} refused by both" if counts["refused"] else "") +
                         (f", {counts['SKIPPED']} skipped" if counts["SKIPPED"] else "") +
                         (f", {counts['FAILED']} failed" if counts["FAILED"] else ""))
        return "; ".join(parts)

    def exit_code(self):
        if any(counts["FAILED"] for counts in self.counts.values()):
            return 2
        return 1 if any(counts["DIFFERENT"] for counts in self.counts.values()) else 0


class Demo:
    """The model and data of a demo, made by the script of tools/demo.sh."""

    def __init__(self, recipe, folder, settings=()):
        script, data = DEMOS[recipe]
        self.recipe, path = recipe, os.path.join(folder, os.path.basename(recipe).removesuffix(".yaml"))
        subprocess.run([sys.executable, os.path.join(ROOT, "tools", script), "--out", path, "--samples", "64"], check=True,
                       stdout=subprocess.DEVNULL)
        self.model, self.data = os.path.join(path, "model"), os.path.join(path, data)
        self.settings = [recipe, f"model.path={self.model}", "model.init=random", f"data.path={self.data}", *settings]


def shape_of(recipe):
    """The folder of share/models with the shape of a recipe's model."""
    path = re.search(r"^model:\n(?:  .*\n)*?  path: *(\S+)", open(os.path.join(ROOT, recipe)).read(), re.M).group(1)
    name = os.path.basename(path)
    return os.path.join(SHAPES, SHAPE_OF_MODEL.get(name, name))


def numbers_of(text):
    return re.findall(r"\d+(?:\.\d+)?", text)


def compare_plans(comparison, recipes, demos, quick):
    actions = [([], TRAINING_VARIANTS), (["--generate"], GENERATION_VARIANTS), (["--evaluate"], [[]])]
    for recipe in recipes:
        model = demos[recipe].model if recipe in demos else shape_of(recipe)
        if not os.path.exists(os.path.join(model, "config.json")):
            comparison.note("plans", "FAILED", f"{recipe}: {os.path.relpath(model, ROOT)} has no config.json")
            continue
        for action, variants in actions:
            for variant in variants[:1] if quick else variants:
                arguments = ["--plan", *action, recipe, f"model.path={model}", "model.init=random", "data.path=/nonexistent",
                             "--gpu-memory", "140", *variant]
                done = comparison.run_both(lambda _: arguments)
                compare_plan(comparison, " ".join([recipe, *action, *variant]), done["old"], done["new"])


def compare_plan(comparison, what, old, new):
    planned = ["total" in done.stdout for done in (old, new)]
    if not any(planned):
        if old.returncode < 0 or new.returncode < 0:
            return comparison.note("plans", "FAILED", f"{what}: exit statuses {old.returncode}, {new.returncode}")
        if numbers_of(old.stdout + old.stderr) == numbers_of(new.stdout + new.stderr):
            return comparison.note("plans", "refused", f"{what}: {new.stderr.strip()[:160]}")
    if all(planned) and old.returncode == new.returncode and numbers_of(old.stdout) == numbers_of(new.stdout):
        return comparison.note("plans", "same" if old.stdout == new.stdout else "words", what)
    comparison.compare("plans", what, *[[f"exit status {done.returncode} {done.stderr.strip()[-300:]}", *done.stdout.splitlines()]
                                        for done in (old, new)])


def trace_of(folder):
    import h5py
    return h5py.File(os.path.join(folder, "trace.rank0000.h5"), "r")


def steps_of(folder):
    """[(loss, gradient norm)] of each step, as texts with all bits."""
    with trace_of(folder) as file:
        return [(float(row["loss"]).hex(), float(row["grad_norm"]).hex()) for row in file["steps"][:]]


def kernels_of(folder):
    """[(name, count)] of kernels, copies and fills in the recorded step; empty on CPUs."""
    with trace_of(folder) as file:
        names = [row["name"].decode(errors="replace") for row in file["kernel_names"][:]]
        return sorted(collections.Counter(names[row["name"]] for row in file["kernels"][:]).items())


def train_both(comparison, demo, ranks, settings):
    """{side: folder of the run}, or nothing after a note if a run failed."""
    name = os.path.join(comparison.folder, f"run{sum(sum(c.values()) for c in comparison.counts.values())}")
    common = [*demo.settings, f"parallel.devices={ranks}", f"train.max_steps={STEPS}", "train.warmup_steps=0",
              "train.batch_size=8", "output.save_model=false", "output.progress_seconds=0", *settings]
    done = comparison.run_both(lambda side: [*common, f"output.path={name}-{side}"], ranks)
    for side, process in done.items():
        if process.returncode != 0:
            comparison.note("losses", "FAILED", f"{demo.recipe} {' '.join(settings)}: {side}: {process.stderr.strip()[-400:]}")
            return None
    return {side: f"{name}-{side}" for side in done}


def compare_losses(comparison, demo):
    for ranks, settings in TRAINING_RUNS:
        strategy = ["parallel.strategy=single"] if ranks == 1 else []
        folders = train_both(comparison, demo, ranks, ["parallel.device=cpu", *strategy, *settings])
        if folders:
            comparison.compare("losses", f"{demo.recipe} {ranks} rank(s) {' '.join(settings)}",
                               *[steps_of(folder) for folder in folders.values()])


def compare_texts(comparison, demo):
    for number, settings in enumerate(GENERATION_RUNS):
        name = os.path.join(comparison.folder, f"{os.path.basename(demo.model)}-{os.path.basename(demo.recipe)}-{number}")
        done = comparison.run_both(lambda side: ["--generate", *demo.settings, f"generate.path={demo.data}",
                                                 "generate.weights=base", "generate.max_new_tokens=12", "parallel.device=cpu",
                                                 f"output.path={name}-{side}", *settings])
        what, texts = f"{demo.recipe} {' '.join(settings)}", []
        for side, process in done.items():
            files = glob.glob(f"{name}-{side}/*/generated.jsonl")
            if process.returncode != 0 or len(files) != 1:
                comparison.note("texts", "FAILED", f"{what}: {side}: {process.stderr.strip()[-400:]}")
                break
            records = [json.loads(line) for line in open(files[0])]
            texts.append([(record["text"], float(record.get("score", 0)).hex()) for record in records])
        else:
            comparison.compare("texts", what, *texts)


def has_gpu():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    except FileNotFoundError:
        return False
    return any(line.startswith("GPU ") for line in listed.stdout.splitlines())


def compare_kernels(comparison, demo):
    if not has_gpu():
        return comparison.note("kernels", "SKIPPED", f"{demo.recipe} (this machine has no GPU)")
    for settings in ([], ["train.precision=bf16-true", "train.act_ckpt=full"]):
        folders = train_both(comparison, demo, 1, ["parallel.strategy=single", "parallel.device=cuda",
                                                   f"trace.kernels=[{RECORDED_STEP}]", *settings])
        if not folders:
            continue
        old, new = [kernels_of(folder) for folder in folders.values()]
        what = f"{demo.recipe} {' '.join(settings)}"
        if old and new:
            comparison.compare("kernels", f"{what} ({sum(count for _, count in new)} in a step)", old, new)
        else:
            comparison.note("kernels", "FAILED", f"{what}: {len(old)} and {len(new)} kernels were recorded")
        comparison.compare("losses", f"{what} on a GPU", *[steps_of(folder) for folder in folders.values()])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--quick", action="store_true", help="compare the plans of the recipes as they are, and nothing else")
    options = parser.parse_args()
    for program in (options.old, options.new):
        if not os.access(program, os.X_OK):
            parser.error(f"{program}: there is no such program. Build it with make.")
    recipes = [os.path.relpath(path, ROOT) for path in sorted(glob.glob(os.path.join(ROOT, "inputs/**/*.yaml"), recursive=True))]
    words = [word for word in options.words if "=" not in word]
    settings = [word for word in options.words if "=" in word]
    recipes = [recipe for recipe in recipes if not words or any(word in recipe for word in words)]
    if not recipes:
        parser.error(f"no recipe of inputs/ contains {' or '.join(words)} in its path")
    with tempfile.TemporaryDirectory(prefix="compare_builds.") as folder:
        comparison = Comparison(options.old, options.new, folder)
        demos = {recipe: Demo(recipe, folder, settings) for recipe in recipes if recipe in DEMOS}
        compare_plans(comparison, recipes, demos, options.quick)
        for demo in () if options.quick else demos.values():
            compare_losses(comparison, demo)
            compare_texts(comparison, demo)
            compare_kernels(comparison, demo)
    print(f"{len(recipes)} recipes; {comparison.summary()}")
    return comparison.exit_code()

