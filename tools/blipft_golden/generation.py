"""Texts of transformers' generate(), and the results of its logits processors.

texts.json: greedy search with processors and beam search, of a model whose logits are random numbers that depend only on
the last two ids and the length, so that choices and beams can be compared exactly. masks.json: the tokens that
temperature, top-k, top-p and min-p leave of rows of such numbers. The numbers are logits() below; the tests compute
them by the same rule. Cases that compare two scores with a difference below rounding are left out.
Needs transformers 5 and torch.
"""
import json
import os
import random

import numpy as np
import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.generation import configuration_utils, logits_process
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import logging

CLOSE = 3e-5  # sums of a dozen log probabilities down to -60, in f32


def mixed(z):
    """splitmix64's step."""
    with np.errstate(over="ignore"):
        z = np.asarray(z, np.uint64) + np.uint64(0x9e3779b97f4a7c15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        return z ^ (z >> np.uint64(31))


def logits(seed, before_last, last, length, vocabulary, ends, bonus):
    """The logit of the id that follows `length` ids with these two at the end: uniform in [-4, 4), of ends `bonus` more."""
    with np.errstate(over="ignore"):
        key = mixed(mixed(mixed(np.uint64(seed + last)) + np.uint64(before_last)) + np.uint64(length))
        numbers = mixed(key + np.arange(vocabulary, dtype=np.uint64)) >> np.uint64(40)
    row = (numbers.astype(np.float64) / 2 ** 23 - 1) * 4
    row[[e for e in ends if e < vocabulary]] += bonus
    return row.astype(np.float32)


class TableConfig(PretrainedConfig):
    model_type = "table"


class TableModel(PreTrainedModel, GenerationMixin):
    config_class = TableConfig

    def __init__(self, case):
        super().__init__(TableConfig(vocab_size=case["vocabulary"]))
        self.case, self.nothing = case, torch.nn.Parameter(torch.zeros(1))
        self.post_init()

    def prepare_inputs_for_generation(self, input_ids, **_):
        return {"input_ids": input_ids}

    def forward(self, input_ids, **_):
        c = self.case
        rows = [logits(c["seed"], ids[-2] if len(ids) > 1 else 0, ids[-1], len(ids), c["vocabulary"], c["ends"],
                       c["bonus"])
                for ids in input_ids.tolist()]
        return CausalLMOutputWithPast(logits=torch.tensor(np.stack(rows))[:, None])


class Compared:
    """Watches torch.topk, and says whether it ever had to tell close numbers apart."""

    def __enter__(self):
        self.close, self.topk = False, torch.topk
        torch.topk = self.watched
        return self

    def __exit__(self, *_):
        torch.topk = self.topk

    def watched(self, x, k, **options):
        best = self.topk(x, min(k + 1, x.shape[-1]), **options)[0]
        steps = (best[..., :-1] - best[..., 1:])[best[..., 1:] > -1e8]
        self.close |= bool((steps < CLOSE).any())
        return self.topk(x, k, **options)


def generate(case, prompt):
    """The new ids of the texts, and their scores; None where rounding would decide."""
    model = TableModel(case)
    beams = case["beams"]
    options = dict(max_new_tokens=case["max_new_tokens"], eos_token_id=case["ends"] or None,
                   pad_token_id=case["vocabulary"] - 1, use_cache=False, do_sample=False, num_beams=max(beams, 1),
                   repetition_penalty=float(case["repetition_penalty"]),
                   min_new_tokens=case["min_new_tokens"] or None, min_length=case["min_length"] or None,
                   return_dict_in_generate=True, output_scores=True)
    if beams:
        early = case["early_stopping"]
        options.update(length_penalty=float(case["length_penalty"]), num_return_sequences=beams,
                       early_stopping=early if early == "never" else early == "yes")
    mode = configuration_utils.GenerationConfig.get_generation_mode
    if beams == 1:  # which generate() takes for greedy search
        configuration_utils.GenerationConfig.get_generation_mode = (
            lambda self, assistant_model=None: configuration_utils.GenerationMode.BEAM_SEARCH)
    try:
        with Compared() as compared:
            out = model.generate(torch.tensor([prompt]), **options)
    finally:
        configuration_utils.GenerationConfig.get_generation_mode = mode
    if not beams:  # torch.argmax
        best = torch.stack(out.scores)[:, 0].sort(descending=True)[0]
        compared.close = bool((best[:, 0] - best[:, 1] < CLOSE).any())
    if compared.close:
        return None
    texts = []
    for row in out.sequences[:, len(prompt):].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in case["ends"]), case["max_new_tokens"])
        texts.append(row[:end])
    return texts, [float(s) for s in out.sequences_scores] if beams else []


def make_text_case(rng, beams):
    vocabulary = rng.randrange(16, 40)
    max_new = rng.randrange(2, 13)
    case = {
        "seed": rng.randrange(2 ** 40), "vocabulary": vocabulary, "beams": beams,
        "ends": sorted(rng.sample(range(vocabulary), rng.choice([0, 1, 1, 1, 2, 3]))),
        "bonus": rng.choice([0, 1, 2, 4]), "max_new_tokens": max_new,
        "repetition_penalty": rng.choice([1, 1, 1.25, 1.5, 0.75, 2]),
        "min_new_tokens": rng.choice([0, 0, 0, rng.randrange(max_new)]),
        "min_length": rng.choice([0, 0, rng.randrange(max_new)]),
    }
    if case["min_new_tokens"]:  # which replaces the other in generate()
        case["min_length"] = 0
    if beams:
        case["length_penalty"] = rng.choice([1, 1, 0, -1, 2, 0.5, 1.7])
        case["early_stopping"] = rng.choice(["no", "yes", "never"])
    case["prompts"], case["texts"], case["scores"] = [], [], []
    while len(case["prompts"]) < (rng.choice([1, 2, 3]) if beams else 4):
        prompt = [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 7))]
        made = generate(case, prompt)
        if made is None:
            continue
        case["prompts"].append(prompt)
        case["texts"].append(made[0])
        case["scores"].append(made[1])
    return case


def make_mask_case(rng):
    """Processors on one row, as generate() orders them; None where rounding would decide."""
    vocabulary = rng.choice([16, 50, 300])
    case = {
        "seed": rng.randrange(2 ** 40), "vocabulary": vocabulary, "ends": [rng.randrange(vocabulary)], "bonus": 3,
        "ids": [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 20))],
        "repetition_penalty": rng.choice([1, 1.5, 0.75]), "min_new_tokens": rng.choice([0, 5]),
        "temperature": rng.choice([1, 0.5, 0.7, 2]), "top_k": rng.choice([0, 1, 5, 40, 1000]),
        "top_p": rng.choice([1, 1, 0.9, 0.5, 0.05]), "min_p": rng.choice([0, 0, 0.05, 0.3]),
    }
    ids = torch.tensor([case["ids"]])
    row = torch.tensor(logits(case["seed"], 0, 0, 0, vocabulary, case["ends"], case["bonus"]))[None]
    if rng.random() < 0.3:
        row, case["halves"] = (2 * row).round() / 2, True  # many equal ones: those at the k-th stay
        case["top_p"] = 1  # which of equal ones stay hangs on torch's sort
    row = logits_process.RepetitionPenaltyLogitsProcessor(float(case["repetition_penalty"]))(ids, row)
    if case["min_new_tokens"]:
        barred = logits_process.MinNewTokensLengthLogitsProcessor(len(case["ids"]), case["min_new_tokens"],
                                                                  case["ends"])
        row = barred(ids, row)
    row = logits_process.TemperatureLogitsWarper(float(case["temperature"]))(ids, row)
    if case["top_k"]:
        row = logits_process.TopKLogitsWarper(case["top_k"])(ids, row)
    weights = row.double().softmax(-1)[0].sort(descending=True)[0]
    if case["top_p"] < 1 and (weights.cumsum(0) - case["top_p"]).abs().min() < 1e-5:
        return None
    if case["top_p"] < 1:
        row = logits_process.TopPLogitsWarper(case["top_p"])(ids, row)
    if case["min_p"] and (weights / weights[0] / case["min_p"] - 1).abs().min() < 1e-4:
        return None
    if case["min_p"]:
        row = logits_process.MinPLogitsWarper(case["min_p"])(ids, row)
    case["kept"] = "".join("01"[bool(x > -float("inf"))] for x in row[0])
    case["best"] = float(row.max())
    return case


def write(path, cases):
    with open(path, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")


def make(folder, options):
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    rng = random.Random(1)
    write(os.path.join(folder, "texts.json"),
          [make_text_case(rng, beams) for beams in [0] * 80 + [1] * 30 + [2] * 70 + [3] * 70 + [4] * 70])
    masks = (make_mask_case(rng) for _ in range(1000))
    write(os.path.join(folder, "masks.json"), [case for case in masks if case][:150])
