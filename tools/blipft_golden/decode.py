"""Texts of transformers' decode().

For the small tokenizers, with decoders of several kinds put in their place, the texts themselves; for OPT's, LLaMA's and
OpenLLaMA's of the shared data check sums of texts: of ids that both sides draw from the same generator, and of those that odd
texts become.
Needs transformers 5 and tokenizers.
"""
import json
import os
import random
import shutil
import tempfile

from transformers import AutoTokenizer

from .draws import Draws
from .small_tokenizers import opt_reference
from .tokenizer_cases import LLAMA_ODD, ODD, random_texts, reference, write

RANDOM, GROUPS = 20, 300                   # random sequences of each kind and small tokenizer; tens of each large one

SPACES = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
DECODERS = {
    "gemma": {"type": "Sequence", "decoders": [*SPACES, {"type": "Fuse"}]},
    "strip": {"type": "Sequence", "decoders": [*SPACES, {"type": "Fuse"}, {**STRIP, "start": 2}]},
    "strip_each": {"type": "Sequence", "decoders": [*SPACES, STRIP]},
    "metaspace": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    "metaspace_never": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": False},
    "word_piece": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "word_piece_plain": {"type": "WordPiece", "prefix": "t", "cleanup": False},
    "bytes": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "none": None,
}
CLEAN = {"clean_up_tokenization_spaces": True, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output":
         True}
SMALL = {name: (name, "file", {}) for name in (
    "vocab_merges", "fast_strings", "fast_pairs", "llama_class", "llama3", "qwen2", "tekken", "sentencepiece_legacy",
    "sentencepiece_new", "sentencepiece_no_prefix")}
SMALL.update({f"byte_fallback_{name}": ("byte_fallback", decoder, {}) for name, decoder in DECODERS.items()})
SMALL["byte_fallback_cleaned"] = ("byte_fallback", DECODERS["gemma"], CLEAN)
SMALL["byte_fallback_told_once"] = ("byte_fallback", DECODERS["gemma"], {"clean_up_tokenization_spaces": True})
SMALL["t5"] = ("t5", "file", {})
SMALL["t5_cleaned"] = ("t5", "file", {"clean_up_tokenization_spaces": True})
SPACED = ["a n't b 'm 's ' re 've ' , . ? !", "I ' m do n't ' ' ' n ' t", " . . ' .", "x , ' s y ! ? z ' , ' a"]


def fnv(data):
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


class IdDraws(Draws):
    def ids(self, vocab):
        return [self.below(min(vocab, 300) if self.below(4) == 0 else vocab) for _ in range(1 + self.below(24))]


def small_cases(tokenizer, rng, count):
    size = max(tokenizer.get_vocab().values()) + 3   # ids that no token has, too
    sequences = [[], [0], [size], [1, 2], [2, 0, 2]]
    for text in [*SPACED, *ODD, *LLAMA_ODD, *random_texts(11, 15)]:
        if len(text) < 30:
            sequences.append(tokenizer(text)["input_ids"])
    sequences += [[rng.randrange(size) for _ in range(rng.randint(1, 12))] for _ in range(count)]
    # Runs of byte tokens and of bytes' stand-ins.
    sequences += [[rng.randrange(min(size, 262)) for _ in range(rng.randint(1, 6))] for _ in range(count)]
    cases = []
    for ids in sequences:
        skipped, kept = tokenizer.decode(ids, skip_special_tokens=True), tokenizer.decode(ids)
        cases.append([ids, skipped] if kept == skipped else [ids, skipped, kept])
    return cases


def small(out, name, rng, count):
    directory, decoder, config = SMALL[name]
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(os.path.join(out, directory), copy, dirs_exist_ok=True)
        if decoder != "file":
            path = os.path.join(copy, "tokenizer.json")
            with open(path, encoding="utf-8") as file:
                saved = json.load(file)
            write(path, {**saved, "decoder": decoder})
        path = os.path.join(copy, "tokenizer_config.json")
        if config:
            with open(path, encoding="utf-8") as file:
                config = {**json.load(file), **config}
            write(path, config)
        tokenizer = reference(copy) if directory != "vocab_merges" else AutoTokenizer.from_pretrained(copy)
    return {"directory": directory, "decoder": decoder, "tokenizer_config": config,
            "cases": small_cases(tokenizer, rng, count)}


def sums(tokenizer, groups):
    """Decoded texts of ten sequences each, with and without special tokens."""
    vocab, draws, out = max(tokenizer.get_vocab().values()) + 1, IdDraws(), []
    for _ in range(groups):
        sequences = [draws.ids(vocab) for _ in range(10)]
        out.append([fnv("".join(tokenizer.decode(ids, skip_special_tokens=skip) + "|" for ids in sequences).encode())
                    for skip in (True, False)])
    texts = [text for text in [*ODD, *LLAMA_ODD] if len(text) < 60]
    return {"vocab": vocab, "random": out,
            "texts": [[text, fnv(tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True).encode())]
                      for text in texts]}


def make(folder, options):
    rng = random.Random(5)
    golden = {"small": {name: small(folder, name, rng, RANDOM) for name in SMALL},
              "shared": {"opt": sums(opt_reference(options.shared), GROUPS)}}
    for name in ("llama", "open_llama"):
        golden["shared"][name] = sums(reference(os.path.join(options.shared, "data/tokenizers", name)), GROUPS)
    write(os.path.join(folder, "decode.json"), golden)
