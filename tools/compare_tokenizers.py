#!/usr/bin/env python3
"""Compares blipft with the `tokenizers` library: ids and decoded texts of random tokenizers and odd texts are the same.

    tools/compare_tokenizers.py [--count 1000] [--texts 300] [--seed N] [--tests build/cpu/tests]

Each tokenizer is trained on random texts: BPE with the pre-tokenizer of a published model or with a random pattern,
Unigram, or WordPiece. Texts have code points of every general category up to Unicode 16. blipft may refuse random
patterns, nothing else.
It needs the `tokenizers` package. The unit test "the tokenizers of a folder" reads the tokenizers.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CAPITALS, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD = r"[^\r\n\p{L}\p{N}]?"
KIMI_CAPITALS, KIMI_SMALL = (f"[{letters[1:-1]}&&[^\\p{{Han}}]]" for letters in (CAPITALS, SMALL))
PATTERNS = {  # name: patterns, each a Split with behavior isolated
    "gpt2": [GPT2],
    "llama3": [CONTRACTIONS + "|" + LEAD + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES],
    "o200k": [LEAD + CAPITALS + "*" + SMALL + "+" + CONTRACTIONS + "?|" + LEAD + CAPITALS + "+" + SMALL + "*"
              + CONTRACTIONS + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES],
    "cl100k": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
               r"|\s+(?!\S)|\s+"],
    "qwen2": [CONTRACTIONS + "|" + LEAD + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES],
    "qwen3.5": [CONTRACTIONS + "|" + LEAD + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES],
    "deepseek_v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                    r"| ?[\p{P}\p{S}]+[\r\n]*" + SPACES],
    "deepseek": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"],
    "tekken": [LEAD + CAPITALS + "*" + SMALL + "+|" + LEAD + CAPITALS + "+" + SMALL
               + r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES],
    "kimi": [r"[\p{Han}]+|" + LEAD + KIMI_CAPITALS + "*" + KIMI_SMALL + "+" + CONTRACTIONS + "?|" + LEAD
             + KIMI_CAPITALS + "+" + KIMI_SMALL + "*" + CONTRACTIONS + r"?|\p{N}{1,3}"
             r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES],
    "bloom": [" ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"],
}
PATTERNS["nemotron"] = PATTERNS["tekken"]
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
BEHAVIORS = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]
ATOMS = [r"\p{L}", r"\p{Lu}", r"\p{N}", r"\p{M}", r"\p{P}", r"\p{S}", r"\p{Han}", r"\p{Latin}", r"\P{Cyrillic}",
         r"\p{^Z}", r"\s", r"\S", r"\w", r"\W", r"\d", r"\h", r"[[:alpha:]]", r"[[:punct:]]", r"[[:upper:]]",
         r"[[:^lower:]]", r"[[:alnum:]]", r"[[:print:]]", r"[^\s\p{L}\p{N}]", r"[a-z&&[^aeiou]]",
         r"[\p{L}&&[^\p{Latin}]]", "[a-c\u0400-\u04ff-]", ".", "a", "'", " ", r"\n", r"\r", r"\R", r"\N", r"\u00e9",
         r"\x{1F600}", r"(?i:b)", r"(?i:[k-t])", r"(?m:.)", "[^a]", r"\p{C}", r"\p{Cn}", r"[[:graph:]]",
         r"\p{Alphabetic}"]
QUANTIFIERS = ["", "", "", "?", "*", "+", "++", "*+", "?+", "+?", "*?", "??", "{1,3}", "{2}", "{,2}", "{1,3}+", "{2,}",
               "{1,2}?"]
ANCHORS = ["^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", r"(?!\S)", r"(?=\p{L})", r"(?<=\s)", r"(?<!\p{N})"]


def random_pattern(rng, depth=0):
    parts = []
    for _ in range(rng.randint(1, 3)):
        items = []
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.12:
                items.append(rng.choice(ANCHORS))
            elif rng.random() < 0.2 and depth < 2:
                opening = rng.choice(["(?:", "(", "(?>", "(?i:"])
                items.append(opening + random_pattern(rng, depth + 1) + ")" + rng.choice(QUANTIFIERS[:7]))
            else:
                items.append(rng.choice(ATOMS) + rng.choice(QUANTIFIERS))
        parts.append("".join(items))
    return "|".join(parts)


class Texts:
    """Random texts with odd characters."""

    def __init__(self, rng):
        self.rng = rng
        self.blocks = [(0x61, 0x7a), (0x41, 0x5a), (0x30, 0x39), (0x20, 0x7e), (0xa0, 0x17f), (0x300, 0x36f),
                       (0x370, 0x52f), (0x590, 0x6ff), (0x900, 0x97f), (0xe00, 0xeff),
                       (0x1100, 0x11ff), (0x1c80, 0x1cbf), (0x1e00, 0x1fff), (0x2000, 0x206f),
                       (0x2100, 0x24ff), (0x3000, 0x30ff), (0x4e00, 0x4fff), (0xa640, 0xa7ff), (0xac00, 0xac7f),
                       (0xf900, 0xfaff), (0xfb00, 0xfb4f), (0xff00, 0xffef), (0x105c0, 0x105ff), (0x10d40, 0x10d8f),
                       (0x11380, 0x113ff), (0x11bc0, 0x11bff), (0x11f00, 0x11f5f), (0x16100, 0x1613f),
                       (0x16d40, 0x16d7f), (0x1cc00, 0x1ceb3), (0x1d400, 0x1d7ff),
                       (0x1e030, 0x1e08f), (0x1e4d0, 0x1e5ff), (0x1f100, 0x1f9ff),
                       (0x1fbcb, 0x1fbf9), (0x20000, 0x20100), (0x2ebf0, 0x2ec10),
                       (0x31350, 0x31370), (0xe0000, 0xe007f)]
        self.words = ["it's", "WE'LL", "'\u017f", "don't", "\u00df", "\u0130", "i\u0307", "\u03a3\u03a3", "\u212a",
                      "e\u0301", "\r\n", "\n\n", "  ", "\t", "\u180e", "\u200d", "\u0085", "\u2028", "\u3000",
                      "\U0001f468\u200d\U0001f469", "123456", "\u0663\u0664", "\u00b2\u00bd", "camelCase",
                      "HTTPServer", "<s>", "</s>", "<mark>", "_x", "...", "://", "\ufeff", "\ud55c\uad6d",
                      "\u1112\u1161\u11ab"]

    def character(self):
        if self.rng.random() < 0.1:
            return chr(self.rng.choice([self.rng.randrange(0xd800), self.rng.randrange(0xe000, 0x110000)]))
        return chr(self.rng.randint(*self.rng.choice(self.blocks if self.rng.random() < 0.5 else self.blocks[:4])))

    def text(self):
        parts = []
        for _ in range(self.rng.choice([0, 1, 2, 5, 10, 20, 40])):
            kind = self.rng.random()
            if kind < 0.25:
                parts.append(" ")
            elif kind < 0.4:
                parts.append(self.rng.choice(self.words))
            else:
                block = self.rng.choice(self.blocks)
                parts.append("".join(chr(self.rng.randint(*block)) if kind < 0.7 else self.character()
                                     for _ in range(self.rng.randint(1, 5))))
        return "".join(parts)


def regex(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def make_bpe(rng):
    """A byte-level BPE: (tokenizer, trainer, whether it may be refused)."""
    name = rng.choice([*PATTERNS, "clip", "digits", "whitespace", "random", "random", "random"])
    tokenizer = Tokenizer(models.BPE(ignore_merges=rng.random() < 0.3))
    forms = [None, normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(),
    normalizers.Lowercase(),
             normalizers.Sequence([normalizers.NFD(), normalizers.Replace(Regex(r"\p{M}+"), ""),
                                   normalizers.Lowercase()])]
    normalizer = normalizers.NFC() if name.startswith("qwen") else rng.choice(forms) if rng.random() < 0.5 else None
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rng.random() < 0.2)
    if name == "gpt2":
        parts = [pre_tokenizers.ByteLevel(add_prefix_space=rng.random() < 0.5)]
    elif name == "clip":
        normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                           normalizers.Lowercase()])
        parts = [regex(CLIP, "removed", True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    elif name == "digits":
        parts = [pre_tokenizers.Digits(individual_digits=rng.random() < 0.5),
                 pre_tokenizers.ByteLevel(add_prefix_space=False)]
    elif name == "whitespace":
        split = pre_tokenizers.Split(rng.choice(["-", ".", " ", "a'"]), rng.choice(BEHAVIORS))
        parts = [pre_tokenizers.WhitespaceSplit(), split, level]
    elif name == "random":
        name = random_pattern(rng)
        parts = [regex(name, rng.choice(BEHAVIORS), rng.random() < 0.3), level]
    else:
        parts = [regex(pattern) for pattern in PATTERNS[name]] + [level]
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts) if len(parts) > 1 else parts[0]
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=rng.randint(257, 900), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return tokenizer, trainer, name, name not in PATTERNS and name not in ("clip", "digits", "whitespace")


def make_words(rng):
    """Tokens that end words are marked, as CLIP has it."""
    unknown = rng.choice([None, "<unk>"])
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token=unknown, fuse_unk=rng.random() < 0.5,
                                     ignore_merges=rng.random() < 0.3))
    alphabet, specials = [], [unknown] if unknown else []
    if rng.random() < 0.7:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                                     normalizers.Lowercase()])
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([regex(CLIP, "removed", True),
                                                           pre_tokenizers.ByteLevel(add_prefix_space=False)])
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(vocab_size=rng.randint(600, 1200), show_progress=False, special_tokens=specials,
                                  end_of_word_suffix="</w>", initial_alphabet=alphabet)
    return tokenizer, trainer, "words", False


def make_gemma(rng):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer, trainers.BpeTrainer(vocab_size=800, special_tokens=["<unk>"], show_progress=False), "gemma", False


def make_unigram(rng):
    tokenizer = Tokenizer(models.Unigram())
    if rng.random() < 0.7:
        tokenizer.normalizer = rng.choice([normalizers.NFC, normalizers.NFKC, normalizers.NFKD,
        normalizers.Lowercase])()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=5000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    return tokenizer, trainer, "unigram", False


def make_word_piece(rng):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    flags = {name: rng.random() < 0.5 for name in ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")}
    tokenizer.normalizer = normalizers.BertNormalizer(**flags)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=800, special_tokens=["[UNK]"], show_progress=False)
    return tokenizer, trainer, "word_piece", False


def make_tokenizer(rng, folder, count):
    """Writes tokenizer.json and cases.json."""
    texts = Texts(rng)
    make = rng.choices([make_bpe, make_words, make_gemma, make_unigram, make_word_piece], [8, 2, 1, 1, 1])[0]
    tokenizer, trainer, name, may_be_refused = make(rng)
    tokenizer.train_from_iterator([texts.text() for _ in range(150)] + ["".join(map(chr, range(32, 127)))], trainer)
    for content in ("<s>", "</s>", "<mark>"):
        flags = {flag: rng.random() < 0.3 for flag in ("lstrip", "rstrip", "single_word")}
        token = AddedToken(content, normalized=rng.random() < 0.5, **flags)
        tokenizer.add_special_tokens([token]) if content != "<mark>" else tokenizer.add_tokens([token])
    cases = []
    for text in [texts.text() for _ in range(count)]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
    os.makedirs(folder)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "cases.json"), "w", encoding="utf-8") as out:
        json.dump({"name": name, "may_be_refused": may_be_refused, "cases": cases}, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="tokenizers")
    parser.add_argument("--texts", type=int, default=300, help="texts of each")
    parser.add_argument("--seed", type=int, default=random.randrange(1000000))
    parser.add_argument("--tests", default="build/cpu/tests", help="the unit tests")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    failed = 0
    for first in range(0, args.count, 50):
        with tempfile.TemporaryDirectory() as folder:
            for i in range(first, min(first + 50, args.count)):
                rng = random.Random(args.seed * 1000003 + i)
                made = False
                while not made:
                    try:
                        make_tokenizer(rng, os.path.join(folder, f"{i:05}"), args.texts)
                        made = True
                    except BaseException as error:  # the library's error if a pattern needs too many steps
                        if type(error).__name__ != "PanicException":
                            raise
            run = subprocess.run([args.tests, "-ns", "-tc=the tokenizers of a folder*"], capture_output=True, text=True,
                                 errors="replace", env={**os.environ, "BLIPFT_TOKENIZERS": folder})
            for line in run.stdout.splitlines()[:1000]:
                if run.returncode or line.startswith(("compared", "refused")):
                    print(line, flush=True)
            failed |= run.returncode
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
