"""Small tokenizer.model files, and the ids that LlamaTokenizer gives.

Needs transformers 4 (written with 4.57.1), the last whose LlamaTokenizer works with the sentencepiece library, and
sentencepiece, tokenizers and protobuf. The model joins runs of spaces, as OpenLLaMA's does, and rewrites a few
characters.
"""
import os

from transformers import LlamaTokenizer

from .sentencepiece_training import train
from .tokenizer_cases import TRAINING, write, write_cases

RULES = {"FB01": "66 69", "212B": "C5", "2126": "3A9", "3000": "20", "A0": "20", "9": "20", "A": "20"}
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


def make(folder, options):
    model = train(TRAINING * 4, RULES, vocab_size=420, model_type="bpe", byte_fallback=True, split_digits=True)
    for name, config in FORMS.items():
        path = os.path.join(folder, name)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "tokenizer.model"), "wb") as out:
            out.write(model)
        write(os.path.join(path, "tokenizer_config.json"), config)
        write_cases(os.path.join(path, "cases.json"), LlamaTokenizer.from_pretrained(path), 60)
