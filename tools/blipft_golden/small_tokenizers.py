"""Small tokenizers in every form of files, and ids that transformers gives for texts.

Needs transformers 5, tokenizers and sentencepiece. The shared data hold captions, chess games, instructions and OPT's, LLaMA's
and OpenLLaMA's tokenizers. The small tokenizers and their texts do not hold any of that data; of the larger sets only check
sums of the ids are written, so that the test can compare every text where the data is present."""
import json
import os
import shutil
import tempfile

from sentencepiece import sentencepiece_model_pb2
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)
from transformers import AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast

from .sentencepiece_training import train
from .tokenizer_cases import TRAINING, checksum, encode, reference, write, write_cases

RANDOM, LINES = 60, 200                    # random texts of a tokenizer, lines of each larger file

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = TEKKEN.replace("\\p{M}]+|", "\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|").replace(
    "\\p{M}]*|\\p{N}|", "\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}|")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

CAPITALS = ["camelCaseWord HTTPServer iPhone", "ABC", "ABCd", "aBC", "\u4e2d\u6587ABCd\u4e2d", "A\u4e2dB", "\u01c5a \u01c5B",
            "a\u02b0B\u02b0c", "\u02b0\u02b1A", "\u0301\u0302A", "!\u0301A\u0301", "x\u0301Y\u0301z", "\u0301", "A\u0301B",
            "a/b\n//c/\r\n d", "!/\n/x", " \u0301\u0301!", "-\u0301-", "don't I'M", "\u00c5NGSTR\u00d6M \u00c5ngstr\u00f6m",
            "\u0905\u0902\u0915 \u0e01\u0e33\u0e01", "\u10d0\u1c90\u10d0 \u2160\u2170", "1A2b", "_Ab", "__AB__c",
            "\n\u0301a", "\r\nAb", "AbC dEF Gh1jK", "A\u4e2d", "ABC\u4e2dDEF", "\u00aa\u00ba\u2071 \u1e9eS\u1e9e"]
INFILLING = ["x <FILL_ME> y", "x<FILL_ME>y", "<FILL_ME>y", "x<FILL_ME>", "<FILL_ME>", " x<FILL_ME></s>z",
             "def f(a):\n    <FILL_ME>\n    return b", "\u2581<PRE> a \u2581<SUF>b<FILL_ME> \u2581<MID>"]
# Rules of SentencePiece's nmt_nfkc: white space, compatibility forms, composition, what goes.
T5_RULES = {"FB01": "66 69", "212B": "C5", "2126": "3A9", "3000": "20", "A0": "20", "9": "20", "A": "20", "D": "20",
            "65 301": "E9", "41 30A": "C5", "B2": "32", "BD": "31 2044 32", "2167": "56 49 49 49", "200B": "20",
            "FEFF": "20", "FF11": "31", "2003": "20", "1112 1161 11AB": "D55C", "1": "", "200D": "20"}


def train_small():
    """Vocabulary in OPT's order: specials, the 256 bytes, then what merging makes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=560, min_frequency=2, special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([TRAINING] * 2, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    vocab["<mask>"] = len(vocab)
    return vocab, [tuple(merge) for merge in model["merges"]]


def added(content, index, **flags):
    entry = {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": False}
    entry.update(flags)
    return entry


def fast_file(vocab, merges, added_tokens, **parts):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens, "normalizer": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "vocab": vocab, "merges": merges}, **parts}


def make_vocab_merges(out, vocab, merges):
    """vocab.json + merges.txt with every file about special tokens that old repositories have."""
    path = os.path.join(out, "vocab_merges")
    os.makedirs(path, exist_ok=True)
    write(os.path.join(path, "vocab.json"), vocab)
    with open(os.path.join(path, "merges.txt"), "w", encoding="utf-8") as file:
        file.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    n = len(vocab)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    write(os.path.join(path, "tokenizer_config.json"),
          {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "add_prefix_space": False, "errors": "replace",
           "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>",
           "additional_special_tokens": ["<image>", "<l>"]})
    write(os.path.join(path, "special_tokens_map.json"),
          {"bos_token": {"content": "</s>", **special}, "eos_token": {"content": "</s>", **special},
           "unk_token": "</s>", "pad_token": "<pad>", "mask_token": {"content": "<mask>", **special, "lstrip": True}})
    write(os.path.join(path, "added_tokens.json"), {"<image>": n, "<big>": n + 1, "<n\u00e9>": n + 2})
    return path, GPT2Tokenizer.from_pretrained(path)


def make_fast_strings(out, vocab, merges):
    """tokenizer.json with merges as strings, TemplateProcessing at both ends, flags changed by tokenizer_config."""
    path = os.path.join(out, "fast_strings")
    os.makedirs(path, exist_ok=True)
    n = len(vocab)
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "</s>", "type_id": 0}},
                                                          {"Sequence": {"id": "A", "type_id": 0}},
                                                          {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}}
    tokens = [added("<pad>", 1, special=True), added("</s>", 2, special=True),
              added("<mask>", vocab["<mask>"], special=True), added("<image>", n, special=True),
              added("word", n + 1, single_word=True), added("<l>", n + 2, lstrip=True),
              added("<r>", n + 3, rstrip=True), added("<big>", n + 4), added("<bigger>", n + 5, normalized=True),
              added("<l", n + 6)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write(os.path.join(path, "tokenizer.json"),
          fast_file(vocab, [" ".join(merge) for merge in merges], tokens, pre_tokenizer=level, post_processor=template))
    changed = {k: v for k, v in added("<mask>", 0, special=True, lstrip=True, rstrip=True).items() if k != "id"}
    write(os.path.join(path, "tokenizer_config.json"),
          {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True, "bos_token": "</s>",
           "eos_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>",
           "added_tokens_decoder": {str(vocab["<mask>"]): changed}})
    return path, PreTrainedTokenizerFast.from_pretrained(path)


def make_fast_pairs(out, vocab, merges):
    """tokenizer.json alone: merges as pairs, NFC, ByteLevel with a prefix space in a Sequence, RobertaProcessing."""
    path = os.path.join(out, "fast_pairs")
    os.makedirs(path, exist_ok=True)
    n = len(vocab)
    tokens = [added("<s>", 0, special=True), added("<pad>", 1, special=True), added("</s>", 2, special=True),
              added("<image>", n, special=True, normalized=True), added("<n\u00e9>", n + 1, normalized=True),
              added("word", n + 2, single_word=True, lstrip=True, rstrip=True),
              added("<l>", n + 3, lstrip=True, normalized=True), added("<r>", n + 4, rstrip=True),
              added("two words", n + 5)]
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    write(os.path.join(path, "tokenizer.json"),
          fast_file(vocab, [list(merge) for merge in merges], tokens, normalizer={"type": "NFC"},
                    pre_tokenizer={"type": "Sequence", "pretokenizers": [level]},
                    post_processor={"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0],
                                    "trim_offsets": True, "add_prefix_space": True}))
    write(os.path.join(path, "special_tokens_map.json"),
          {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"})
    return path, PreTrainedTokenizerFast.from_pretrained(path)


def make_byte_fallback(out, name, config):
    """A SentencePiece-like tokenizer.json: byte fallback, Prepend and Replace, merges as strings, [PAD] behind all."""
    path = os.path.join(out, name)
    os.makedirs(path, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=560, show_progress=False, special_tokens=[
        "<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)])
    tokenizer.train_from_iterator([TRAINING.replace("\n", " ")] * 2, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                         {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    tokens = [added("<unk>", 0, special=True, normalized=True), added("<s>", 1, special=True, normalized=True),
              added("</s>", 2, special=True), added("[PAD]", len(model["vocab"]) + 5, special=True)]
    steps = [{"type": "Prepend", "prepend": "\u2581"},
             {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    model.update(unk_token="<unk>", fuse_unk=True, byte_fallback=True, ignore_merges=False,
                 merges=[" ".join(merge) for merge in model["merges"]])
    write(os.path.join(path, "tokenizer.json"),
          {**fast_file({}, [], tokens, normalizer={"type": "Sequence", "normalizers": steps}, pre_tokenizer=None,
                       post_processor=template), "model": model, "decoder": None})
    write(os.path.join(path, "tokenizer_config.json"), {"bos_token": "<s>", "eos_token": "</s>", **config})
    return path, reference(path)


def make_split(out, name, pattern, normalizer, tokens, config, begin=None, ignore_merges=False):
    """Byte-level with a Split pattern, as LLaMA 3 and Qwen 2 have it."""
    path = os.path.join(out, name)
    os.makedirs(path, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=480, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator([TRAINING] * 2, trainer)
    tokenizer.add_special_tokens(tokens)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    level = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = level if begin is None else processors.Sequence([
        level, processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1",
                                             special_tokens=[(begin, tokenizer.token_to_id(begin))])])
    saved = json.loads(tokenizer.to_str())
    saved["model"]["ignore_merges"] = ignore_merges
    write(os.path.join(path, "tokenizer.json"), saved)
    write(os.path.join(path, "tokenizer_config.json"), config)
    return path, reference(path)


def make_gemma(out):
    """Gemma's tokenizer.json: no space before a text, spaces by a normalizer, a Split that splits nothing then."""
    path = os.path.join(out, "gemma")
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(out, "byte_fallback", "tokenizer.json"), encoding="utf-8") as file:
        saved = json.load(file)
    saved.update(normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                 pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                "invert": False})
    write(os.path.join(path, "tokenizer.json"), saved)
    write(os.path.join(path, "tokenizer_config.json"), {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
                                                        "eos_token": "</s>"})
    return path, reference(path)


def make_t5(out):
    """T5's: a unigram model with SentencePiece's normalizer, and sentinels behind it."""
    path = os.path.join(out, "t5")
    os.makedirs(path, exist_ok=True)
    model = sentencepiece_model_pb2.ModelProto.FromString(train(
        TRAINING * 4, T5_RULES, vocab_size=136, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    tokenizer = Tokenizer(models.Unigram([(piece.piece, piece.score) for piece in model.pieces], unk_id=2))
    tokenizer.normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (
        "<pad>", "</s>", "<unk>", "<extra_id_1>", "<extra_id_0>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                             special_tokens=[("</s>", 1)])
    write(os.path.join(path, "tokenizer.json"), json.loads(tokenizer.to_str()))
    write(os.path.join(path, "tokenizer_config.json"),
          {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"})
    return path, reference(path)


def make_digits(out):
    """SmolLM2's: each digit apart, GPT-2's pattern between them."""
    path = os.path.join(out, "digits")
    os.makedirs(path, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.train_from_iterator([TRAINING] * 2, trainers.BpeTrainer(
        vocab_size=480, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    write(os.path.join(path, "tokenizer.json"), json.loads(tokenizer.to_str()))
    write(os.path.join(path, "tokenizer_config.json"), {"tokenizer_class": "PreTrainedTokenizerFast",
                                                        "eos_token": "<|im_end|>"})
    return path, reference(path)


FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
DECODER = {str(i): {**FLAGS, "content": content} for i, content in enumerate(["<unk>", "<s>", "</s>"])}
LLAMA_CLASS = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "LlamaTokenizer", "legacy": False}
NAMED = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
ORDINARY = {"added_tokens": [{**FLAGS, "id": i, "content": content, "special": content != "<s>"}
                             for i, content in enumerate(["<unk>", "<s>", "</s>"])]}
# A golden tokenizer.json in a model of another family, whose rules AutoTokenizer may prefer to the file's:
# name: (directory, model_type, tokenizer_config.json, None: the directory's[, other parts of tokenizer.json]).
FAMILIES = {
    "mistral_llama_class": ("llama_class", "mistral", None),
    "qwen2_fast_class": ("llama3", "qwen2", None),
    "qwen2_no_class": ("llama3", "qwen2", {"eos_token": "<|eot_id|>"}),
    "qwen2_llama_class": ("byte_fallback", "qwen2", {"tokenizer_class": "LlamaTokenizerFast", "eos_token": "</s>"}),
    "llama_gpt2_class": ("llama3", "llama", {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|eot_id|>"}),
    "blip2_gpt2_class": ("fast_strings", "blip-2", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True,
                                                    "bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>"}),
    "blip2_no_class": ("qwen2", "blip-2", {"eos_token": "<|im_end|>"}),
    "llama_split_special": ("llama_class", "llama", {**LLAMA_CLASS, "split_special_tokens": True}),
    "llama_decoder": ("llama_class", "llama", {**LLAMA_CLASS, "added_tokens_decoder": {
        **DECODER, "570": {**FLAGS, "content": "<big>"}}}),
    "qwen2_decoder": ("qwen2", "qwen2", {"eos_token": "<|im_end|>", "added_tokens_decoder": {
        "480": {**FLAGS, "content": "<|endoftext|>"}, "482": {**FLAGS, "content": "<|im_end|>"}}}),
    "code_llama": ("llama_class", "llama", {**LLAMA_CLASS, "tokenizer_class": "CodeLlamaTokenizer"}),
    "code_llama_python": ("llama_class", "llama", {
        **LLAMA_CLASS, "tokenizer_class": "CodeLlamaTokenizer", "added_tokens_decoder": DECODER,
        **dict.fromkeys(("prefix_token", "middle_token", "suffix_token", "eot_token", "fill_token"))}),
    "phi3_llama_class": ("byte_fallback", "phi3", {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>",
                                                   "eos_token": "</s>"}),
    "olmo2_gpt2_class": ("llama3", "olmo2", {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|eot_id|>"}),
    "gemma2_class": ("byte_fallback", "gemma2", {"tokenizer_class": "GemmaTokenizerFast", "bos_token": "<s>",
                                                 "eos_token": "</s>"}),
    "qwen3_llama_class": ("byte_fallback", "qwen3", {"tokenizer_class": "LlamaTokenizerFast", "eos_token": "</s>"}),
    "qwen3_fast_class": ("llama3", "qwen3", None),
    "qwen3_no_class": ("llama3", "qwen3", {"eos_token": "<|eot_id|>"}),
    "gemma2_no_class": ("byte_fallback", "gemma2", {"bos_token": "<s>", "eos_token": "</s>"}),
    "t5_no_class": ("t5", "t5", {"eos_token": "</s>", "extra_ids": 2}, {"post_processor": None}),
    "t5_fast_class": ("t5", "t5", None, {"post_processor": None}),
    "blip2_t5_class": ("t5", "blip-2", {"tokenizer_class": "T5TokenizerFast", "extra_ids": 3}, {
        "normalizer": None, "post_processor": None, "pre_tokenizer": {
            "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}}),
    "llama_ordinary_begin": ("byte_fallback", "llama", NAMED, ORDINARY),
    "llama_class_ordinary_begin": ("llama_class", "llama", {**LLAMA_CLASS, "add_bos_token": True}, ORDINARY),
    "llama_class_of_bytes": ("qwen2", "llama", {"tokenizer_class": "LlamaTokenizer", "eos_token": "<|im_end|>"}),
}


def write_family(out, name, random_count):
    directory, family, config, *parts = FAMILIES[name]
    with tempfile.TemporaryDirectory() as copy:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            source = os.path.join(out, directory, file)
            if os.path.exists(source):
                shutil.copy(source, copy)
        if parts:
            with open(os.path.join(copy, "tokenizer.json"), encoding="utf-8") as file:
                write(os.path.join(copy, "tokenizer.json"), {**json.load(file), **parts[0]})
        if config is not None:
            write(os.path.join(copy, "tokenizer_config.json"), config)
        write(os.path.join(copy, "config.json"), {"model_type": family})
        texts = INFILLING if name.startswith("code_llama") else []
        write_cases(os.path.join(out, f"family_{name}.json"), AutoTokenizer.from_pretrained(copy), random_count,
                    fresh=[(AutoTokenizer.from_pretrained(copy), text) for text in texts],
                    directory=directory, model_type=family, tokenizer_config=config, **({"tokenizer_json": parts[0]} if parts else {}))


def opt_reference(shared):
    """OPT's tokenizer with the settings that its repositories have in tokenizer_config.json."""
    with tempfile.TemporaryDirectory() as path:
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(os.path.join(shared, "data/tokenizers/opt", name), path)
        token = {"__type": "AddedToken", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
        write(os.path.join(path, "tokenizer_config.json"),
              {"errors": "replace", "add_prefix_space": False, "add_bos_token": True,
               "tokenizer_class": "GPT2Tokenizer", "unk_token": {**token, "content": "</s>"},
               "bos_token": {**token, "content": "</s>"},
               "eos_token": {**token, "content": "</s>"}, "pad_token": {**token, "content": "<pad>"}})
        return GPT2Tokenizer.from_pretrained(path)


def strings_of(value):
    """Every string in a JSON value, in order."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key in value for text in strings_of(value[key])]
    return [text for item in value for text in strings_of(item)] if isinstance(value, list) else []


def write_corpus(path, tokenizer, shared, limit):
    files = {}
    for name in ("captions/metadata.jsonl", "captions/references.jsonl", "chess/games.jsonl",
                 "instructions/alpaca.jsonl", "instructions/dolly.jsonl"):
        sums = []
        with open(os.path.join(shared, "data", name), encoding="utf-8") as lines:
            for line in list(lines)[:limit]:
                sums += [checksum(encode(tokenizer, text)) for text in strings_of(json.loads(line))]
        files[name] = sums
        print(f"{name}: {len(sums)} texts")
    write(path, {"lines_per_file": limit, "files": files})


def make(folder, options):
    vocab, merges = train_small()
    for make in (make_vocab_merges, make_fast_strings, make_fast_pairs):
        path, tokenizer = make(folder, vocab, merges)
        write_cases(os.path.join(path, "cases.json"), tokenizer, RANDOM)
    opt = opt_reference(options.shared)
    write_cases(os.path.join(folder, "opt_cases.json"), opt, RANDOM)
    write_corpus(os.path.join(folder, "opt_corpus.json"), opt, options.shared, LINES)
    chat = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    for path, tokenizer in (
            make_byte_fallback(folder, "byte_fallback", {"tokenizer_class": "PreTrainedTokenizerFast"}),
            make_byte_fallback(folder, "llama_class", {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
            make_split(folder, "llama3", LLAMA3, None, ["<|begin_of_text|>", "<|eot_id|>"],
                       {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>",
                        "eos_token": "<|eot_id|>"}, begin="<|begin_of_text|>", ignore_merges=True),
            make_split(folder, "qwen2", QWEN2, normalizers.NFC(), chat,
                       {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>",
                        "pad_token": "<|endoftext|>", "unk_token": None, "additional_special_tokens": chat[1:]})):
        write_cases(os.path.join(path, "cases.json"), tokenizer, RANDOM)
    path, tokenizer = make_split(folder, "tekken", TEKKEN, None, ["<s>", "</s>", "[INST]"],
                                 {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
                                  "eos_token": "</s>"}, begin="<s>")
    write_cases(os.path.join(path, "cases.json"), tokenizer, RANDOM, CAPITALS)
    path, tokenizer = make_split(folder, "o200k", O200K, None, ["<|endoftext|>", "<|end|>"],
                                 {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"})
    write_cases(os.path.join(path, "cases.json"), tokenizer, RANDOM, CAPITALS)
    for make in (make_gemma, make_digits, make_t5):
        path, tokenizer = make(folder)
        write_cases(os.path.join(path, "cases.json"), tokenizer, RANDOM)
    for name in FAMILIES:
        write_family(folder, name, RANDOM // 3)
    for name in ("llama", "open_llama"):
        tokenizer = reference(os.path.join(options.shared, "data/tokenizers", name))
        write_cases(os.path.join(folder, name + "_cases.json"), tokenizer, RANDOM)
        write_corpus(os.path.join(folder, name + "_corpus.json"), tokenizer, options.shared, LINES)
