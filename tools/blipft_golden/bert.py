"""BERT's tokenizers: small ones in every form of files, and ids of transformers.

bert_characters.json holds check sums of ids: of every code point between two letters, and of drawn texts, by a
vocabulary with single characters of many scripts that the test makes too (its draws are those of draws.py).
Needs transformers 5 and tokenizers.
"""
import json
import os
import tempfile

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from .draws import Draws
from .tokenizer_cases import TRAINING, checksum, write, write_cases

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["[CLS] a [SEP]", "a [DEC] b", "[MASK]", "x[UNK]y", "Ab\u00c9d e\u0301F \u0130stanbul \u1e9e \u03a3\u03a3 \u01c5",
         "\u4e2d\u6587a\u4e2db", "a\u00adb\u200bc\u2028d\u0085e\u000bf", "naïve Ångström", "it's (50%) <b> {x} ~y^ `z|",
         "word" * 25, "word" * 26, "\ufffd\ufffe\ue000", "\u0390\u1fd3\u0344 \u2126 \U0001f600\U0001d400"]
RANGES = [(0x21, 0x7E), (0xA1, 0x33FF), (0x4E00, 0x4E7F), (0xA640, 0xA7FF), (0xAB30, 0xABFF), (0xFB00, 0xFFFF),
          (0x10400, 0x1044F), (0x10C80, 0x10CFF), (0x16E40, 0x16EFF), (0x1D100, 0x1D1FF), (0x1E900, 0x1E95F)]
GROUP, TEXTS_DRAWN, DRAWN_GROUP = 64, 6000, 40


class TextDraws(Draws):
    def character(self):
        first, last = RANGES[self.below(len(RANGES)) if self.below(3) == 0 else self.below(2)]
        c = first + self.below(last - first + 1)
        return {0: " ", 1: "\u0301", 2: "\t", 3: "\u00a0", 4: "!"}.get(self.below(12), chr(c))

    def text(self):
        return "".join(self.character() for _ in range(1 + self.below(30)))


def save(out, name, files):
    path = os.path.join(out, name)
    os.makedirs(path, exist_ok=True)
    for file, value in files.items():
        if file.endswith(".txt"):
            with open(os.path.join(path, file), "w", encoding="utf-8", newline="\n") as text:
                text.write("".join(f"{token}\n" for token in value))
        else:
            write(os.path.join(path, file), value)
    return path, AutoTokenizer.from_pretrained(path)


def trained(lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator([TRAINING] * 2, trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL,
                                                                           show_progress=False))
    return sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)


def small(out):
    lower, cased = trained(True), trained(False)
    yield save(out, "bert", {"vocab.txt": lower, "added_tokens.json": {"[DEC]": len(lower)}, "tokenizer_config.json": {
        "tokenizer_class": "BertTokenizer", "do_lower_case": True, "bos_token": "[DEC]", "truncation_side": "left"}})
    with tempfile.TemporaryDirectory() as saved:
        tokenizer = save(saved, "x", {"vocab.txt": cased, "tokenizer_config.json": {
            "tokenizer_class": "BertTokenizer", "do_lower_case": False}})[1]
        tokenizer.add_special_tokens({"bos_token": "[DEC]"})
        tokenizer.save_pretrained(saved)
        files = {}
        for file in ("tokenizer.json", "tokenizer_config.json"):
            with open(os.path.join(saved, file), encoding="utf-8") as text:
                files[file] = json.load(text)
    files["tokenizer.json"]["model"]["max_input_chars_per_word"] = 9  # which this class does not look at
    yield save(out, "bert_json", files)
    plain = json.loads(json.dumps(files["tokenizer.json"]))
    plain["normalizer"] = {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False,
                           "strip_accents": False, "lowercase": True}
    plain["model"]["continuing_subword_prefix"] = "#"
    yield save(out, "bert_plain", {"tokenizer.json": plain, "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "cls_token": "[CLS]"}})


def characters(out):
    vocab = SPECIAL + [prefix + chr(c) for first, last in RANGES for c in range(first, last + 1)
                       for prefix in ("", "##")]
    with tempfile.TemporaryDirectory() as path:
        files = {"vocab.txt": vocab, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer"}}
        tokenizer = save(path, "x", files)[1]
        sums, texts = [], []
        for first in range(0, 0x110000, GROUP):
            texts.append("".join(f"a{chr(c)}b " for c in range(first, first + GROUP) if not 0xD800 <= c <= 0xDFFF))
            if len(texts) == GROUP:
                sums.append(checksum([i for row in tokenizer(texts)["input_ids"] for i in row]))
                texts = []
        draws, drawn = TextDraws(), []
        for _ in range(TEXTS_DRAWN // DRAWN_GROUP):
            rows = tokenizer([draws.text() for _ in range(DRAWN_GROUP)])["input_ids"]
            drawn.append(checksum([i for row in rows for i in row]))
    write(os.path.join(out, "bert_characters.json"), {"ranges": RANGES, "group": GROUP, "code_points": sums,
                                                      "drawn_group": DRAWN_GROUP, "drawn": drawn})


def make(folder, options):
    for path, tokenizer in small(folder):
        write_cases(os.path.join(path, "cases.json"), tokenizer, 20, TEXTS)
    characters(folder)
