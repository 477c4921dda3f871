#!/usr/bin/env python3
"""The whole program on small LLaMA, Mistral and Qwen 2 models of random sizes that transformers saved, beside
transformers itself. Prints ok, FAILED or SKIPPED for each test.

    test/program/llama_program_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft). Needs torch and transformers; without them the tests are skipped.
"""
import json
import math
import os
import pathlib
import random
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from script_tests import Skip, check, run_tests, test, test_each  # noqa: E402

try:
    import h5py  # noqa: F401
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED llama_program_test ({missing})")
    sys.exit(0)
from program_runs import PROGRAM, ROOT, Space, copy_tokenizer, ranks_up_to, run, start  # noqa: E402

try:
    import torch
    import transformers
except ImportError as missing:
    torch, why = None, str(missing)

# Golden tokenizers with their number of ids. (AutoTokenizer makes a Qwen2Tokenizer of whatever a qwen2 model has.)
LLAMA_TOKENIZERS = {"byte_fallback": 566, "llama_class": 566, "llama3": 483}
TOKENIZERS = {"Llama": LLAMA_TOKENIZERS, "Mistral": LLAMA_TOKENIZERS, "Qwen2": {"qwen2": 484}}
SEEDS = (0, 3, 5, 7, 14)  # every family, dtype and scaling is among them
STEPS, BATCH, TOKENS, LR = 3, 8, 24, 2e-3


def random_config(pick, family, vocabulary):
    kv_heads = pick.randint(1, 3)
    heads = kv_heads * pick.randint(1, 4)
    hidden = heads * pick.randint(3, 9)
    scaling = pick.choice([
        {"rope_type": "default"}, {"rope_type": "linear", "factor": pick.uniform(1, 4)},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": pick.choice([16, 64])}])
    more = {"sliding_window": pick.choice([None, TOKENS])} if family == "Mistral" else {}
    if family == "Llama":
        more = {"attention_bias": pick.random() < 0.3, "mlp_bias": pick.random() < 0.3}
    return getattr(transformers, family + "Config")(
        vocab_size=vocabulary + pick.randint(0, 9), hidden_size=hidden, intermediate_size=pick.randint(20, 70),
        num_hidden_layers=pick.randint(1, 3), num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=2 * pick.randint(2, 20), max_position_embeddings=pick.randint(TOKENS, 90),
        rms_norm_eps=pick.choice([1e-5, 1e-6]), tie_word_embeddings=pick.random() < 0.5,
        rope_parameters={"rope_theta": pick.choice([100.0, 10000.0, 500000.0]), **scaling}, **more)


def make_model(space, seed):
    """A directory as transformers saves it, with a tokenizer beside it."""
    pick, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    family = pick.choice(["Llama", "Llama", "Mistral", "Qwen2"])
    tokenizer = pick.choice(sorted(TOKENIZERS[family]))
    config = random_config(pick, family, TOKENIZERS[family][tokenizer])
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else noise / math.sqrt(parameter.shape[-1]))
    folder = space.new("llama")
    dtype = pick.choice([torch.float32, torch.bfloat16, torch.float16])
    model.to(dtype).save_pretrained(folder, max_shard_size=pick.choice(["5GB", "20KB"]))
    copy_tokenizer(tokenizer, folder)
    tied = "tied" if config.tie_word_embeddings else "untied"
    if not config.tie_word_embeddings and seed % 2:  # the checkpoint knows better than config.json
        text = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**text, "tie_word_embeddings": True}))
        tied = "untied against its config.json"
    return folder, f"seed {seed}: {family}, {dtype}, {tied}, {config.rope_parameters['rope_type']}, {tokenizer}"


def transformers_side(model, data, *more):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/compare.py"), "transformers", str(model), str(data), "--batch", str(BATCH),
         "--max-text-tokens", str(TOKENS), "--device", "cpu", "--attention", "eager", *map(str, more)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600,
        env=dict(os.environ, OMP_NUM_THREADS="1"))  # more only wait for each other in models this small
    check(done.returncode == 0, done.stderr[-3000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def near(found, expected, tolerance, *what):
    check(abs(found - expected) <= tolerance * abs(expected), *what, "found", found, "expected", expected)


def blipft_side(space, model, pick, steps, *more):
    ranks = ranks_up_to(pick.choice([1, 2]))
    micro_batches = pick.choice([1, 2])
    strategy = "single" if ranks == 1 else pick.choice(["ddp", "fsdp"])
    return run(space, ranks, f"model.path={model}", "model.init=pretrained", f"data.max_text_tokens={TOKENS}",
               "data.shuffle=false", f"data.text_padding={pick.choice(['packed', 'longest'])}",
               f"train.batch_size={BATCH // ranks // micro_batches}", f"train.accumulate_grad_batches={micro_batches}",
               f"train.max_steps={steps}", f"train.lr={LR}", f"parallel.strategy={strategy}", *more)


@test_each(SEEDS)
def random_models_train_and_save_as_in_transformers(space, seed):
    if torch is None:
        raise Skip(why)
    pick = random.Random(1000 + seed)
    model, about = make_model(space, seed)
    result = blipft_side(space, model, pick, STEPS, "output.save_model=true",
                         f"train.act_ckpt={pick.choice(['none', 'half', 'full'])}")
    saved = result.output / "model"
    truth = transformers_side(model, space.data, "--grad-norm", "--steps", STEPS, "--lr", LR, "--saved", saved)
    # f32 on both sides: sums of up to a few thousand terms in another order.
    near(result.losses()[0], truth["loss"], 1e-5, about, "loss of step 0:")
    near(result.steps()["grad_norm"][0], truth["grad_norm"], 1e-4, about, "gradient norm of step 0:")
    for step in range(STEPS):
        near(result.losses()[step], truth["losses"][step], 1e-4, about, f"loss of step {step}:")
    check(abs(truth["final_loss"] / truth["loss"] - 1) > 1e-3, about, "the loss did not change", truth)
    near(truth["saved_loss"], truth["final_loss"], 1e-4, about, "loss of the saved model:")
    again = blipft_side(space, saved, pick, 1)
    near(again.losses()[0], truth["saved_loss"], 1e-5, about, "loss of the saved model here:")
    config = json.loads((saved / "config.json").read_text())
    check(config["dtype"] == config["torch_dtype"] == "float32", about, config)
    ids = [transformers.AutoTokenizer.from_pretrained(folder)("two red circles").input_ids
           for folder in (model, saved)]
    check(ids[0] == ids[1], about, ids)
    print(f"   {about}: loss {truth['loss']:.4f} -> {truth['final_loss']:.4f}", flush=True)


@test
def a_checkpoint_of_torch_files_is_refused_with_the_command_that_converts_it(space):
    if torch is None:
        raise Skip(why)
    model, about = make_model(space, 7)
    whole = transformers.AutoModelForCausalLM.from_pretrained(model)
    expected = blipft_side(space, model, random.Random(1), 1).losses()[0]
    for path in list(model.iterdir()):
        if ".safetensors" in path.name:
            path.unlink()
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}  # of early versions; nobody reads it
    torch.save({**whole.state_dict(), **old}, model / "pytorch_model.bin")
    result = start(space, 1, f"model.path={model}", "model.init=pretrained", f"data.max_text_tokens={TOKENS}")
    check(result.status == 1, result)
    command = next(line.split() for line in result.err.splitlines() if "tools/convert_checkpoint.py" in line)
    check(command[0] == "python3" and command[2] == str(model), command)
    subprocess.run([sys.executable, *command[1:]], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    near(blipft_side(space, command[3], random.Random(1), 1).losses()[0], expected, 1e-7, about)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(run_tests("llama_program_test", Space, PROGRAM))
