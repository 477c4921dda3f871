"""Small tokenizer.model files, and the ids that LlamaTokenizer gives.

Needs transformers 4 (written with 4.57.1), the last whose LlamaTokenizer works with the sentencepiece library, and
sentencepiece, tokenizers and protobuf. The model joins runs of spaces, as OpenLLaMA's does, and rewrites a few
characters.
"""
import os
import tempfile

import sentencepiece
from transformers import LlamaTokenizer

from .tokenizer_cases import TRAINING, write, write_cases

RULES = {0xFB01: "66 69", 0x212B: "C5", 0x2126: "3A9", 0x3000: "20", 0xA0: "20", 0x9: "20", 0xA: "20"}
FORMS = {
    "sentencepiece_legacy": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False,
                             "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False,
                                           "normalized": True, "rstrip": False, "single_word": False}},
    "sentencepiece_new": {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_eos_token": True,
                          "pad_token": "[PAD]", "additional_special_tokens": ["<image>"],
                          "added_tokens_decoder": {"420": {"content": "[PAD]", "lstrip": True, "normalized": False,
                                                           "rstrip": True, "single_word": False, "special": True}}},
    "sentencepiece_no_prefix": {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_prefix_space": False,
                                "add_bos_token": False},
}


def train():
    with tempfile.TemporaryDirectory() as path:
        rules, text = os.path.join(path, "rules.tsv"), os.path.join(path, "text.txt")
        with open(rules, "w", encoding="ascii") as out:
            out.writelines(f"{code:X}\t{to}\n" for code, to in RULES.items())
        with open(text, "w", encoding="utf-8") as out:
            out.write(TRAINING * 4)
        sentencepiece.SentencePieceTrainer.train(
            input=text, model_prefix=os.path.join(path, "m"), vocab_size=420, model_type="bpe", byte_fallback=True,
            split_digits=True, normalization_rule_tsv=rules, num_threads=1, minloglevel=2)
        with open(os.path.join(path, "m.model"), "rb") as model:
            return model.read()


def make(folder, options):
    model = train()
    for name, config in FORMS.items():
        path = os.path.join(folder, name)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "tokenizer.model"), "wb") as out:
            out.write(model)
        write(os.path.join(path, "tokenizer_config.json"), config)
        write_cases(os.path.join(path, "cases.json"), LlamaTokenizer.from_pretrained(path), 60)
