"""Random tiny models of each family of texts: the loss and every gradient of blipft against those of transformers.

  tools/compare.py families                                       40 of each family
  tools/compare.py families --families gemma2,gemma3 --count 5 --seed 1000 [--keep FOLDER]

Each model gets random sizes, heads, groups, windows, caps, biases, ties, rotary scalings and weights, and a batch of
random texts, some longer than its windows. blipft (environment: BLIPFT, default ./blipft) trains one step of SGD in f32
and saves the model. transformers loads that folder, so the change of each parameter is known: with a learning rate of
64 it is 64 times the gradient. The reference is transformers in float64, except for rotary angles, which are float32
by definition. Prints one line a model, and one a family: the worst relative error of the loss, and of a
tensor's gradient in the 2-norm (relative to 1 % of the norm of all gradients where the tensor's own norm is below it:
a small gradient is a sum of large terms and has their rounding). It also prints the errors of transformers in
float32, and the effect of rounding the weights once on the exact gradient: a norm of two elements always loses digits. Encoder-decoders (t5, and with pictures blip2_t5 and instructblip_t5) take three steps of SGD, too: their losses, that of the saved
model in a validation of blipft and in transformers, and every weight. Ends with status 1 where a loss is further off than
1e-5, a gradient further than 3e-5 and than twenty such roundings, a loss behind steps further than either, or a weight behind
them further than three times as much of its change and two roundings.

Needs torch and transformers.
"""
import random
import sys

import torch
import transformers

from blipft_golden.archive import copy_tokenizer
from blipft_golden.decoders import make_decoder
from blipft_golden.reference import exact, load, loss_of

from . import encoder_decoders
from .runs import (BATCH, LR, MOST_GRADIENT, MOST_LOSS, MOST_ROUNDINGS, WORDS, each_model, gradients_of, parser_of, round_once,
                   run_blipft, worst_error, write_lines)

TOKENIZERS = {"Qwen2": ("qwen2", 484), "Qwen3": ("qwen2", 484)}  # and the number of ids
TOKENS = 24
STEPS, STEP_LR = 3, 0.01


def rope_of(pick, theta=None):
    return {"rope_theta": theta or pick.choice([100.0, 10000.0, 500000.0]), **pick.choice([
        {"rope_type": "default"}, {"rope_type": "linear", "factor": pick.uniform(1, 4)},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": pick.choice([16, 64])}])}


def sizes(pick, vocabulary, own_head_size=True):
    kv_heads = pick.randint(1, 3)
    heads = kv_heads * pick.randint(1, 4)
    head_size = 2 * pick.choice([1, 2, 3, 5, 7, 8, 11, 16, 20, 32, 50])
    hidden = heads * (pick.randint(3, 9) if own_head_size else head_size)
    return dict(vocab_size=vocabulary + pick.randint(0, 9), hidden_size=hidden, intermediate_size=pick.randint(9, 70),
                num_hidden_layers=pick.randint(1, 4), num_attention_heads=heads, num_key_value_heads=kv_heads,
                max_position_embeddings=pick.randint(TOKENS, 90), rms_norm_eps=pick.choice([1e-5, 1e-6]),
                tie_word_embeddings=pick.random() < 0.5, pad_token_id=pick.choice([None, 5]),
                **({"head_dim": head_size} if own_head_size else {}))


def window(pick):
    return pick.choice([1, 2, 3, 7, 16, 60])


def layer_types(pick, layers):
    return [pick.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]


def of_llama(pick, n):
    return dict(sizes(pick, n), rope_parameters=rope_of(pick), attention_bias=pick.random() < 0.4,
                mlp_bias=pick.random() < 0.4, hidden_act=pick.choice(["silu", "gelu", "gelu_pytorch_tanh", "relu"]))


def of_mistral(pick, n):
    return dict(sizes(pick, n), rope_parameters=rope_of(pick), sliding_window=pick.choice([None, window(pick)]))


def of_qwen2(pick, n):
    config = dict(sizes(pick, n, False), rope_parameters=rope_of(pick), use_sliding_window=pick.random() < 0.7,
                  sliding_window=window(pick), max_window_layers=pick.randint(0, 3))
    if pick.random() < 0.3:
        config["layer_types"] = layer_types(pick, config["num_hidden_layers"])
    if not config["use_sliding_window"]:
        config.pop("layer_types", None)
    return config


def of_qwen3(pick, n):
    config = dict(of_qwen2(pick, n), **{k: v for k, v in sizes(pick, n).items() if k != "num_hidden_layers"})
    return dict(config, attention_bias=pick.random() < 0.4)


def of_smollm3(pick, n):
    config = dict(sizes(pick, n, False), rope_parameters=rope_of(pick), attention_bias=pick.random() < 0.4,
                  mlp_bias=pick.random() < 0.4, no_rope_layer_interval=pick.randint(1, 4))
    layers = config["num_hidden_layers"]
    if pick.random() < 0.5:
        config["no_rope_layers"] = [pick.randint(0, 1) for _ in range(layers)]
    if pick.random() < 0.5:
        config.update(use_sliding_window=True, sliding_window=window(pick))
    return config


def of_phi3(pick, n):
    config = dict(sizes(pick, n, False), sliding_window=pick.choice([None, window(pick)]),
                  original_max_position_embeddings=pick.choice([TOKENS, 32]))
    head_size = config["hidden_size"] // config["num_attention_heads"]
    part = pick.choice([1.0, 0.75, 0.5]) if head_size % 8 == 0 else 1.0
    pairs = int(head_size * part) // 2
    rope = {"rope_type": "default"} if pick.random() < 0.3 else {
        "rope_type": "longrope", "short_factor": [pick.uniform(0.8, 3) for _ in range(pairs)],
        "long_factor": [pick.uniform(1, 30) for _ in range(pairs)]}
    return dict(config, rope_parameters=dict(rope, rope_theta=pick.choice([100.0, 10000.0]),
        partial_rotary_factor=part))


def of_olmo2(pick, n):
    return dict(sizes(pick, n, False), rope_parameters=rope_of(pick), attention_bias=pick.random() < 0.4,
                hidden_act=pick.choice(["silu", "gelu"]))


def of_gemma2(pick, n):
    config = dict(sizes(pick, n), rope_parameters=rope_of(pick), query_pre_attn_scalar=pick.randint(4, 60),
                  sliding_window=window(pick), attn_logit_softcapping=pick.choice([None, 1.0, 4.0, 50.0]),
                  final_logit_softcapping=pick.choice([None, 1.5, 30.0]), attention_bias=pick.random() < 0.3,
                  hidden_activation=pick.choice(["gelu_pytorch_tanh", "gelu_pytorch_tanh", "gelu", "silu"]))
    if pick.random() < 0.5:
        config["layer_types"] = layer_types(pick, config["num_hidden_layers"])
    return config


def of_gemma3(pick, n):
    config = of_gemma2(pick, n)
    config.pop("attn_logit_softcapping")   # which a Gemma 3 does not have
    if "layer_types" not in config:
        config["sliding_window_pattern"] = pick.randint(1, 3)
    config["rope_parameters"] = dict(full_attention=rope_of(pick, 1000.0), sliding_attention=rope_of(pick, 100.0))
    return config


def of_granite(pick, n):
    return dict(sizes(pick, n, False), rope_parameters=rope_of(pick), attention_bias=pick.random() < 0.4,
                mlp_bias=pick.random() < 0.4, embedding_multiplier=pick.choice([1.0, 12.0, 0.7]),
                residual_multiplier=pick.choice([1.0, 0.22, 0.6]), attention_multiplier=pick.choice([1.0, 0.0078125, 0.3]),
                logits_scaling=pick.choice([1.0, 8.0, 0.6]), hidden_act=pick.choice(["silu", "gelu"]))


def of_glm4(pick, n):
    config = dict(sizes(pick, n), attention_bias=pick.random() < 0.6, hidden_act=pick.choice(["silu", "gelu"]))
    parts = [part for part in (1.0, 0.75, 0.5, 0.25) if int(config["head_dim"] * part) in range(2, 999, 2)]
    return dict(config, rope_parameters=dict(rope_of(pick), partial_rotary_factor=pick.choice(parts)))


DECODERS = {"llama": ("Llama", of_llama), "mistral": ("Mistral", of_mistral), "qwen2": ("Qwen2", of_qwen2),
            "qwen3": ("Qwen3", of_qwen3), "smollm3": ("SmolLM3", of_smollm3), "phi3": ("Phi3", of_phi3),
            "olmo2": ("Olmo2", of_olmo2), "granite": ("Granite", of_granite), "glm4": ("Glm4", of_glm4),
            "gemma2": ("Gemma2", of_gemma2), "gemma3": ("Gemma3", of_gemma3)}


class Decoder:
    """A family of decoders of texts; encoder_decoders.T5 has the same functions."""
    data, has_steps = "texts.jsonl", False

    def __init__(self, key):
        self.key, (self.name, self.config_of) = key, DECODERS[key]

    def make_folder(self, folder, seed):
        """A model as transformers saves it, its tokenizer and texts; returns its random settings."""
        pick = random.Random(f"{self.key} {seed}")
        tokenizer, ids = TOKENIZERS.get(self.name, ("llama3", 483))
        values = self.config_of(pick, ids)
        model = make_decoder(self.name, values, torch.Generator().manual_seed(seed))
        model.save_pretrained(folder / "model")
        copy_tokenizer(tokenizer, folder / "model")
        texts = ["A " + " ".join(pick.choice(WORDS) for _ in range(pick.randint(1, 14))) for _ in range(BATCH)]
        write_lines(folder / self.data, [{"text": text} for text in texts])
        return values, texts, pick

    def about(self, values):
        rope = values["rope_parameters"]
        return "rotary " + (rope.get("rope_type") or "/".join(rope[key]["rope_type"] for key in sorted(rope)))

    def run(self, folder, texts, dtype, rounding_seed=None):
        """Loss and gradients, in float64 with its own casts to float32 left out; and the longest text. With a seed, weights
        are off by what f32 rounds away."""
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "model/tokenizer.json"))
        rows = [tokenizer(text).input_ids[:TOKENS] for text in texts]
        longest = max(map(len, rows))
        ids, labels = torch.zeros(BATCH, longest, dtype=torch.long), torch.full((BATCH, longest - 1), -100)
        mask = torch.zeros(BATCH, longest, dtype=torch.long)
        for b, row in enumerate(rows):
            ids[b, :len(row)] = torch.tensor(row)
            labels[b, :len(row) - 1] = ids[b, 1:len(row)]
            mask[b, :len(row)] = 1
        with exact(self.name, dtype):
            model = self.load(folder / "model", dtype)
            if rounding_seed is not None:
                round_once(model, rounding_seed)
            loss = loss_of(model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1], labels)
            loss.backward()
        return loss.item(), gradients_of(model), longest

    def load(self, folder, dtype):
        return load(transformers.AutoModelForCausalLM, folder, dtype)


FAMILIES = {**{key: Decoder(key) for key in DECODERS}, "t5": encoder_decoders.T5(TOKENS),
            "blip2_t5": encoder_decoders.Blip2T5(TOKENS), "instructblip_t5": encoder_decoders.InstructBlipT5(TOKENS)}


def parameters(side, folder):
    return dict(side.load(folder, torch.float64).named_parameters())


def sgd(lr, steps, *more):
    return (f"train.max_steps={steps}", f"train.max_epochs={steps}", f"train.lr={lr}", "train.momentum=0", "train.weight_decay=0",
            *more)


def compare_steps(folder, side, records, pick, allowed):
    """The worst loss of three steps and of the model behind them, and the worst weight, as the part of what is allowed."""
    losses, _ = run_blipft(folder, pick, side.data, "steps", TOKENS, *sgd(STEP_LR, STEPS, f"data.val_path={folder}/{side.data}"))
    expected, weights = side.train(folder, records, STEPS, STEP_LR)
    loaded, _, _ = side.run(folder, records, torch.float64, place="steps/model")
    before, found = (parameters(side, folder / place) for place in ("model", "steps/model"))
    if found.keys() != weights.keys() or len(losses) != len(expected):
        raise SystemExit(f"{folder}: {len(losses)} losses of {len(expected)}, {found.keys() ^ weights.keys()}")
    off = max(abs(a / b - 1) for a, b in zip([*losses, loaded], [*expected, expected[-1]]))
    parts = {key: ((found[key] - w).norm() / (STEPS * allowed * (w - before[key]).norm() + 2 ** -23 * w.norm())).item()
             for key, w in weights.items()}
    return off, max(parts.values())


def compare(folder, family, seed):
    side = FAMILIES[family]
    values, texts, pick = side.make_folder(folder, seed)
    losses, how = run_blipft(folder, pick, side.data, "out", TOKENS, *sgd(LR, 1))
    expected, truth, longest = side.run(folder, texts, torch.float64)
    _, single, _ = side.run(folder, texts, torch.float32)
    before, after = (parameters(side, folder / place) for place in ("model", "out/model"))
    worst, where = worst_error({key: (before[key] - after[key]).detach() / LR for key in truth}, truth)
    own, _ = worst_error(single, truth)
    rounding = max(worst_error(side.run(folder, texts, torch.float64, s)[1], truth)[0] for s in range(3))
    off, of_steps, weights = abs(losses[0] / expected - 1), 0.0, 0.0
    allowed = max(MOST_GRADIENT, MOST_ROUNDINGS * rounding)
    if side.has_steps:
        of_steps, weights = compare_steps(folder, side, texts, pick, allowed)
        kind = f"steps' losses off {of_steps:.1e}, weights {weights:.2f} of what is allowed"
    else:
        kind = side.about(values)
    about = ", ".join(f"{key} {value}" for key, value in values.items() if key != "rope_parameters")
    print(f"{family} {seed}: loss {expected:.4f} off {off:.1e}, gradient {worst:.1e} ({where}), "
          f"transformers' {own:.1e}, a rounding's {rounding:.1e}; {longest} tokens, {how}; {kind}, {about}", flush=True)
    good = off <= MOST_LOSS and of_steps <= max(MOST_LOSS, allowed) and worst <= allowed and weights <= 1
    return off, worst, own, not good


def main():
    parser = parser_of(__doc__, 40)
    parser.add_argument("--families", default=",".join(FAMILIES))
    arguments = parser.parse_args()
    far = False
    for family in arguments.families.split(","):
        errors = each_model(arguments, family, lambda folder, seed, family=family: compare(folder, family, seed))
        loss, gradient, own = (max(error[i] for error in errors) for i in range(3))
        far |= any(error[3] for error in errors)
        print(f"== {family}: {len(errors)} models, loss within {loss:.1e}, gradients within {gradient:.1e} "
              f"(transformers in f32: {own:.1e}), {sum(error[3] for error in errors)} too far", flush=True)
    sys.exit(1 if far else 0)
