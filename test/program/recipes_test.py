#!/usr/bin/env python3
"""Every recipe in inputs/ takes what people try first, --smoke and train.max_steps=5, on tiny random models of its family
and on as many ranks as it is written for. The path of model and data, the device and a small batch are all that is given
besides. And the shapes in share/models are those that were published.

    python3 test/program/recipes_test.py [PART-OF-A-NAME...]
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
try:
    import h5py  # noqa: F401
    import numpy  # noqa: F401
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED recipes_test ({missing})")
    sys.exit(0)
from picture_models import FAMILIES, write_model  # noqa: E402
from program_runs import DEVICE, GPUS, PROGRAM, ROOT, Space, copy_tokenizer, mpirun, read_table  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

RECIPES = sorted((ROOT / "inputs").rglob("*.yaml"))
SMALL = (f"parallel.device={DEVICE}", "parallel.threads=1", "train.batch_size=1", "data.num_workers=1")
MODELS = ROOT / "share/models"
# Parameters, as the models' pages tell, in millions; BLIP-2's, InstructBLIP's and those of Gemma 3's texts as transformers counts them.
PUBLISHED = {"tiny-llama-1.1b": 1100.048, "open_llama_3b": 3426.474, "open_llama_7b": 6738.416, "open_llama_13b": 13015.864,
             "llama-2-7b": 6738.416, "llama-2-13b": 13015.864, "llama-3-8b": 8030.261, "codellama-7b": 6738.547,
             "mistral-7b": 7241.732, "qwen2.5-0.5b": 494.033, "qwen2.5-1.5b": 1543.714, "qwen2.5-7b": 7615.617,
             "qwen3-0.6b": 596.050, "qwen3-1.7b": 1720.575, "qwen3-4b": 4022.468, "qwen3-8b": 8190.735, "qwen3-14b":
             14768.307,
             "qwen3-32b": 32762.123, "smollm3-3b": 3075.099, "gemma-2-2b": 2614.342, "gemma-2-9b": 9241.706,
             "gemma-3-1b": 999.886, "gemma-3-4b": 3880.263, "gemma-3-12b": 11766.034, "phi-3-mini-4k": 3821.080, "phi-4-mini": 3836.022, "phi-4": 14659.507,
             "olmo-2-7b": 7298.617, "granite-3.3-2b": 2533.540, "granite-3.3-8b": 8170.865, "glm-4-9b": 9400.279, "qwen3-vl-2b": 2127.532,
             "qwen3-vl-4b": 4437.816, "qwen3-vl-8b": 8767.124, "qwen3-vl-32b": 33357.390, "qwen2.5-vl-3b": 3754.623, "qwen2.5-vl-7b": 8292.167,
              "blip2-opt-2.7b": 3744.762, "instructblip-vicuna-7b": 7913.211,
             "instructblip-vicuna-13b": 14191.449, "instructblip-flan-t5-xl": 4022.969, "flan-t5-base": 247.578, "flan-t5-xl": 2849.757,
             "flan-t5-xxl": 11135.333, "blip2-flan-t5-xl": 3942.447, "blip2-flan-t5-xxl": 12229.6}


class Recipes(Space):
    """The demos' models and data, and that data as the other recipes name it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.text = self.folder / "text"
        subprocess.run([sys.executable, str(ROOT / "tools/make_text_demo.py"), "--out", str(self.text), "--samples", "96"],
                       check=True, stdout=subprocess.DEVNULL)
        config = self.text / "model/config.json"
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "num_key_value_heads": 1, "max_position_embeddings": 2048}
        config.write_text(json.dumps({**json.loads(config.read_text()), **sizes}))
        t5 = {"model_type": "t5", "vocab_size": 140, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 2,
              "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0}
        self.t5, self.blip2_t5 = self.folder / "t5", self.copy(self.model)
        self.t5.mkdir()
        for folder in (self.t5, self.blip2_t5):
            copy_tokenizer("t5", folder)
        (self.t5 / "config.json").write_text(json.dumps(t5))
        config = self.blip2_t5 / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "text_config": t5,
                                      "use_decoder_only_language_model": False}))
        records = [json.loads(line) for line in (self.text / "data/instructions.jsonl").read_text().splitlines()]
        self.make_instructblip()
        self.instructblip_t5 = self.copy(self.instructblip)
        copy_tokenizer("t5", self.instructblip_t5)
        config = self.instructblip_t5 / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "text_config": t5,
                                      "use_decoder_only_language_model": False}))
        self.picture_models = {name: self.folder / name for name in FAMILIES}
        for name, family in FAMILIES.items():
            write_model(self.picture_models[name], family)
        self.conversations = self.data / "conversations.json"
        pictures = [path.relative_to(self.data) for path in sorted(self.data.rglob("*.jpg"))]
        self.conversations.write_text(json.dumps([
            {"id": str(path), "image": str(path), "conversations": [{"from": "human", "value": "<image>\nWhat is there?"},
                                                                    {"from": "gpt", "value": "Shapes."}]} for path in pictures * 8]))
        self.games = self.folder / "games.jsonl"
        self.games.write_text("".join(json.dumps({"text": r["output"]}) + "\n" for r in records * 8))

    def make_instructblip(self):
        """A model and questions about the demo's pictures."""
        self.instructblip, self.questions = self.folder / "instructblip", self.folder / "questions"
        shutil.copytree(self.text / "model", self.instructblip)
        copy_tokenizer("bert", self.instructblip / "qformer_tokenizer")
        for name in ("preprocessor_config.json", "processor_config.json"):
            if (self.model / name).exists():
                shutil.copy(self.model / name, self.instructblip)
        config = json.loads((self.model / "config.json").read_text())
        text = json.loads((self.text / "model/config.json").read_text())
        config.update(model_type="instructblip", text_config=text)
        config["architectures"] = ["InstructBlipForConditionalGeneration"]
        config["qformer_config"].update(vocab_size=287, max_position_embeddings=128)
        config["qformer_config"].pop("model_type", None)
        (self.instructblip / "config.json").write_text(json.dumps(config))
        shutil.copytree(self.data, self.questions)
        metadata = next(self.questions.rglob("metadata.jsonl"))
        records = [json.loads(line) for line in metadata.read_text().splitlines()] * 8
        metadata.write_text("".join(json.dumps({"file_name": record["file_name"], "prompt": "What is there?",
                                                "answer": [record["text"], "shapes"]}) + "\n" for record in records))

    def of(self, recipe):
        """Model and data for a recipe."""
        text = recipe.read_text()
        if "  pictures: data/" in text:
            family = {"qwen3-vl": "qwen3_vl", "qwen2.5-vl": "qwen2_5_vl", "gemma3": "gemma3"}[recipe.parent.name]
            return self.picture_models[family], self.questions if recipe.stem == "vqa" else self.conversations
        if recipe.parent.name == "instructblip":
            return self.instructblip_t5 if "flan-t5" in recipe.stem else self.instructblip, self.questions
        if recipe.stem.startswith("blip2-flan-t5"):
            return self.blip2_t5, self.data
        if recipe.stem.startswith("flan-t5"):
            return self.t5, self.text / "data/instructions.jsonl"
        if "llama" not in text.lower() and "alpaca" not in text:
            return self.model, self.data
        return self.text / "model", self.games if "games" in text else self.text / "data/instructions.jsonl"


def ranks_of(recipe):
    """The number of ranks of the command in its comment; 0: without mpirun."""
    found = re.search(r"mpirun -np (\d+) ./blipft", recipe.read_text())
    devices = re.search(r"^  devices: (\d+)", recipe.read_text(), re.M)
    ranks = int(found.group(1)) if found else int(devices.group(1)) if devices and int(devices.group(1)) > 1 else 0
    return ranks if DEVICE == "cpu" or ranks <= GPUS else None


def at_once(function, items):
    """As many as there are cores for four ranks; the first error counts."""
    workers = max(1, (os.cpu_count() or 1) // 4) if DEVICE == "cpu" else 1
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))


def start_recipe(space, recipe, *options):
    ranks = ranks_of(recipe)
    fewer = ("parallel.devices=1", "parallel.strategy=auto") if ranks is None else ()
    model, data = space.of(recipe)
    output = space.folder / f"{recipe.parent.name}-{recipe.stem}-{len(options)}"
    if "  pictures: data/" in recipe.read_text():
        options = (f"data.pictures={data if data.is_dir() else data.parent}", *options)
    status, out, err, _ = mpirun(ranks or 0, [PROGRAM, recipe, f"model.path={model}", "model.init=random",
                                              f"data.path={data}", f"output.path={output}", *SMALL, *fewer, *options],
                                 seconds=600)
    return output, status, out, err


@test
def every_recipe_takes_five_steps(space):
    check(len(RECIPES) >= 28, RECIPES)

    def try_it(recipe):
        output, status, out, err = start_recipe(space, recipe, "train.max_steps=5")
        check(status == 0, recipe, out[-2000:], err)
        check(len(read_table(output, 0, "steps")) == 5, recipe)
        warms = re.search(r"^  warmup_steps: (\d+)", recipe.read_text(), re.M)
        noted = "train.warmup_steps: " in err and "ignored because the command line sets train.max_steps=5" in err
        check(noted == bool(warms and int(warms.group(1)) >= 5), recipe, err)
        several = re.search(r"^  accumulate_grad_batches: (\d+)", recipe.read_text(), re.M)
        other_step = "train.batch_size=" in " ".join(SMALL) and bool(several and int(several.group(1)) > 1)
        check(("a step now has " in err) == other_step, recipe, err)
        epochs = "train.max_epochs: " in err
        check(epochs == bool(re.search(r"^  max_epochs: ", recipe.read_text(), re.M)), recipe, err)
        check(err.count("note: ") == noted + other_step + epochs, "not one note of each, from one rank:", recipe, err)

    at_once(try_it, RECIPES)


@test
def every_recipe_takes_a_trial(space):
    def try_it(recipe):
        before = set(os.listdir(space.folder))
        output, status, out, err = start_recipe(space, recipe, "--smoke", "2")
        check(status == 0, recipe, out[-2000:], err)
        ranks = re.search(r"^smoke      it runs here, 2 steps on (\d) ranks?, loss [\d.]+ to [\d.]+, [\d.]+ samples/s, .*"
                          r"[\d.]+ .iB a rank; nothing was saved\n\Z", out, re.M)
        check(ranks and int(ranks.group(1)) == (ranks_of(recipe) or 1), recipe, out[-2000:])
        validates = "val_split_fraction" in recipe.read_text()
        check(out.count("validation after step") == (1 if validates else 0), recipe, out[-2000:])
        check(not output.exists(), recipe, "left something behind")
        return before

    at_once(try_it, RECIPES)
    check(not [name for name in os.listdir(space.folder) if name.startswith(".smoke")], os.listdir(space.folder))


@test
def shapes_of_common_models_plan_without_weights_or_tokenizer(space):
    for folder in sorted(path for path in MODELS.iterdir() if path.is_dir()):
        check({path.name for path in folder.iterdir()} - {"preprocessor_config.json"} == {"config.json"}, folder)
        blip2 = folder.name.startswith("blip2")
        recipe = ROOT / "inputs" / ("blip2-lora.yaml" if blip2 else "llama/7b-lora.yaml")
        if folder.name.startswith("instructblip"):
            recipe = ROOT / "inputs/instructblip/vicuna-7b-vqa-lora.yaml"
        status, out, err, _ = mpirun(0, [PROGRAM, "--plan", recipe, f"model.path={folder}", "model.init=random",
                                         "adapter.kind=none", "train.optim=sgd", "train.precision=bf16-true",
                                         "train.batch_size=1", "train.accumulate_grad_batches=1", "--gpu-memory", "10000"])
        check(status == 0, folder, out, err)
        size, unit = re.search(r"^  parameters +([\d.]+) (.iB)$", out, re.M).groups()
        millions = float(size) * {"MiB": 2 ** 20, "GiB": 2 ** 30}[unit] / 2 / 1e6  # in bf16
        if folder.name in PUBLISHED:
            # The plan tells 0.01 GiB, and tensors begin at round places.
            check(abs(millions - PUBLISHED[folder.name]) < 0.002 * PUBLISHED[folder.name] + 6, folder, millions)
    check(set(PUBLISHED) <= {path.name for path in MODELS.iterdir()}, "a shape is missing")
    status, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--fit", "24GiB", ROOT / "inputs/llama/7b-lora.yaml",
                                     f"model.path={MODELS / 'llama-2-7b'}", "model.init=random"])
    check(status == 0 and "fit a GPU of 24.00 GiB" in out and "assumed: texts of up to 512 tokens" in out, out, err)


if __name__ == "__main__":
    sys.exit(run_tests("recipes_test", Recipes, PROGRAM))
