#!/usr/bin/env python3
"""Writes small instructions and a small LLaMA model directory (without weights) for them.

    python3 tools/make_text_demo.py --out demo-llama --samples 4000 --seed 0

demo-llama/data/instructions.jsonl holds {"instruction", "input", "output"} a line: words to be spelt, turned around,
counted or put in order, and small sums. demo-llama/model is a Hugging Face directory: config.json (LlamaForCausalLM, 0.9
million parameters, grouped queries) and a byte-level BPE tokenizer trained on the texts. A seed always gives the same
texts. Needs numpy.
"""
import json
import os
import time

import own_python

if __name__ == "__main__":
    own_python.need("numpy", "PIL")

import numpy as np  # noqa: E402

from make_demo import SPECIALS, parse_arguments, tokenizer_json, train_bpe, write_json  # noqa: E402

WORDS = ("apple bread chair cloud dance eagle field grape house island jacket kitten lemon music night ocean paper queen "
         "river stone table uncle voice water young zebra amber bridge candle dragon engine forest garden hammer insect "
         "jungle kettle ladder market needle orange pencil quartz rabbit silver timber velvet window yellow").split()


def spell(rng):
    word = str(rng.choice(WORDS))
    return "Spell the word.", word, " ".join(word)


def count_letters(rng):
    word = str(rng.choice(WORDS))
    return "How many letters does the word have?", word, str(len(word))


def first_letter(rng):
    word = str(rng.choice(WORDS))
    return f"What is the first letter of {word}?", "", word[0]


def longer(rng):
    a, b = (str(w) for w in rng.choice(WORDS, size=2, replace=False))
    answer = "They are equally long." if len(a) == len(b) else f"{a if len(a) > len(b) else b} is longer."
    return "Which word is longer?", f"{a}, {b}", answer


def in_order(rng):
    words = [str(w) for w in rng.choice(WORDS, size=3, replace=False)]
    return "Put the words in alphabetical order.", ", ".join(words), ", ".join(sorted(words))


def add(rng):
    a, b = (int(v) for v in rng.integers(0, 10, size=2))
    return f"What is {a} + {b}?", "", str(a + b)


TASKS = (spell, count_letters, first_letter, longer, in_order, add)


def write_data(out, samples, seed):
    os.makedirs(out, exist_ok=True)
    rng = np.random.default_rng(seed)
    texts = []
    with open(os.path.join(out, "instructions.jsonl"), "w", encoding="utf-8") as file:
        for _ in range(samples):
            instruction, given, output = TASKS[int(rng.integers(len(TASKS)))](rng)
            file.write(json.dumps({"instruction": instruction, "input": given, "output": output}) + "\n")
            texts.append(f"{instruction}\n{given}\n{output}")
    return texts


def write_model(out, texts):
    os.makedirs(out, exist_ok=True)
    prompt = ("Below is an instruction that describes a task, paired with an input that provides further context. Write "
              "a response that appropriately completes the request.\n\n### Instruction:\n\n### Input:\n### Response:\n")
    vocab, merges = train_bpe([*texts, *[prompt] * (len(texts) // 2)], 448)
    vocab_size = (len(vocab) + 63) // 64 * 64  # whole tiles for the matrix products
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = {vocab[token]: {"content": token, **flags} for token in SPECIALS}
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    tokenizer = tokenizer_json(vocab, merges, added)
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    tokenizer["post_processor"].update(
        single=[begin, {"Sequence": {"id": "A", "type_id": 0}}],
        pair=[begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        special_tokens={"<s>": {"id": "<s>", "ids": [vocab["<s>"]], "tokens": ["<s>"]}})
    files = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "hidden_act": "silu",
            "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "initializer_range": 0.02, "tie_word_embeddings": False, "vocab_size": vocab_size,
            "bos_token_id": vocab["<s>"], "eos_token_id": vocab["</s>"], "pad_token_id": vocab["<pad>"]},
        "generation_config.json": {"bos_token_id": vocab["<s>"], "eos_token_id": vocab["</s>"]},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
            "model_max_length": 256, **named,
            "added_tokens_decoder": {str(index): token for index, token in added.items()}},
        "special_tokens_map.json": named,
    }
    for name, value in files.items():
        write_json(os.path.join(out, name), value)
    print(f"  tokenizer of {len(vocab)} tokens ({len(merges)} merges), model vocabulary {vocab_size}")


def main():
    args = parse_arguments(__doc__, "demo-llama", 4000, "instructions")
    start = time.time()
    print(f"{args.out}/data: {args.samples} instructions")
    texts = write_data(os.path.join(args.out, "data"), args.samples, args.seed)
    print(f"{args.out}/model: a small LLaMA without weights")
    write_model(os.path.join(args.out, "model"), texts)
    print(f"done in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
