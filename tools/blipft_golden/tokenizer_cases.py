"""Odd texts, and the files of ids that transformers gives for them."""
import json
import os
import random
import shutil
import tempfile

from transformers import AutoTokenizer

ODD = [
    "", " ", "  ", "     ", "\t", "\n", "\n\n", "\r\n", " \n ", "\t\tx", "x\t\ty", " a", "  a", "   a", "a ", "a  ",
    "a  b",
    "a\n b", "a \nb", "a\u00a0b", "a\u2003\u2003b", "\u3000x", "a\u200bb", "\u0085a", "\ufeffstart", "\u180ea",
    "\x00\x01\x7f",
    "it's I'm you're we've he'd they'll don't", "IT'S I'M YOU'RE", "'s", "''s", "' s", "x 's 't 'Re 're", "rock'n'roll",
    "\u2019s it\u2019s", "O'Brien's '90s", "'", "''''", "!'s", "1's",
    "a1b2c3", "3.14159, 1,000,000", "x\u00b2+y\u00b3 \u00bd \u2167 \u2460",
    "\u0661\u0662\u0663 \u0967\u0968 \uff11\uff12", "\U0001d7ce\U0001d7cf",
    "\u4e2d\u6587\u5b57\u7b26 \u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4",
    "\u0627\u0644\u0644\u063a\u0629 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 "
    "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "e\u0301 vs \u00e9, A\u030a \u212b, \u1e9b\u0323, q\u0307\u0323", "\u1112\u1161\u11ab \ud55c\u11a8",
    "Z\u0351\u036b\u0343\u036aalgo",
    "\u05d3\u0eba\u05bc", "\u0958 \u2adc \ufb1d \U0001d15e \u0344 \u0f73 \u2126 \u1f71",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f44d\U0001f3fd",
    "\U0001f600\U0001f600 ok\U0001f600", "\u2764\ufe0f",
    "\ue000 \U000f0000 \U0010ffff \uffff", "\u0378 \U0001e030 \U00016d6a \U00016130 \U000323af",
    "a" * 300, "ab" * 700, "x" * 63 + " " + "y" * 64 + " " + "z" * 65, "!" * 130, " " * 70 + "a", "\u4e2d" * 80,
    "https://example.org/a_b?c=d&e=%20#f", "snake_case CamelCase kebab-case", "C++ && || <- -> == !=", "$12.50 (50%)",
    "</s>", "a</s>b", "a </s> b", "</s></s>", "<pad>x<pad>", "<s>a</s>", "<unk>", "<mask>", " <mask> ", "a  <mask>  b",
    "a<mask>b", "</s", "< /s>",
    "<image>", "<image><image> a cat", "<image> a", "x<image>\n", "<|endoftext|>", "a<|endoftext|>", "\u00e9</s>\u00e9",
    "red</s>square",
    "word", "a word here", "swordfish", "word,word words word_ (word)",
    "word\u0301 \u0301word \u203fword word\u200d 1word",
    "left  <l>x", "x <r>  y", "\t<l>\n<r>\t", "<r> <l>", "  <l>  <l>  ", "<r>  <r>  <l>  x", "<r> <big>",
    "<big> <bigger> <big><bigger><bigg>",
    "caf\u00e9 cafe\u0301", "\u00c5<n\u00e9>e\u0301<ne\u0301>", "A<n\u00e9>", "two words here",
]
INVALID = [
    b"\xff", b"a\xffb", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82x", b"\xf0\x9f\x98", b"\xf0\x9f\x98 \xf0\x9f",
    b"\xed\xa0\x80", b"\xed\xb0\x80\xed\xa0\x80", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf4\x90\x80\x80", b"\xf5\x80",
    b"\x80\x80", b"ok \xfe\xfe ok", b"\xf0\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"caf\xe9 au lait",
    b"</s\xff>", b"\xe4\xb8</s>",
]
LLAMA_ODD = [
    "\u2581", "\u2581a", " \u2581 a", "a\u2581b", "\u2581\u2581a", "  </s>  x", "<s>  x", "<0x0A>\n<0xE2>", "[PAD]",
    "x[PAD] y", "I'M it'LL IT\u2019S It'\u017f we'Ve 'sa", "1234567 12 3\u0664\u06655", "a\r\n\r\n b", "x  \n \n  y",
    "!\n\n?\r", "\n a", " \n", "\u00a0word", "\u2003\u2003word", "\tword\t\n\tword", "(word)word", "\u0301word",
    "x \u00bd\u2167", "e\u0301\u0323 \u212b",
    "\ufb01ne \u3000 \u2126", "<|im_start|>user\nhi<|im_end|>\n", "<|begin_of_text|>a<|eot_id|>", "<tool_call>\n{}",
]
TRAINING = """a small red circle at the top left. the large blue square is on the right, and it's green!
three triangles and 2 stars: one isn't yellow. they're standing in a row of 10 or 12; we've seen 100 of them.
The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs. How vexingly quick daft\
 zebras jump!
naïve café déjà vu, Ångström größer straße, señor año, 中文 中文字 日本語 日本, привет мир, مرحبا, 😀 😀 👍
a photo of a word, another word, and many words with the words inside them; a picture of a cat and a dog and a bird.
"""


def random_texts(seed, count):
    """Texts of parts that meet each other in unplanned ways."""
    rng = random.Random(seed)
    parts = ["a", "the", "word", "Word", "red", " ", "  ", "\t", "\n", "\u00a0", "\u3000", "'s", "'ll", "'", "!",
             "...", "1", "42", "\u0663", "\u00bd", "\u00e9", "e\u0301", "\u0301", "\u4e2d", "\u0645", "\U0001f600",
             "\u200d", "</s>", "<pad>", "<mask>", "<image>", "<l>", "<r>", "<big>", "<bigger>", "<n\u00e9>", "<", ">",
             "_", "\ufffd", "\u1100\u1161", "\uac00\u11a8", "two words"]
    return ["".join(rng.choice(parts) for _ in range(rng.randint(1, 10))) for _ in range(count)]


def checksum(ids):
    """FNV-1a, 32 bits, over the ids as 4 bytes each, lowest first."""
    value = 0x811C9DC5
    for i in ids:
        for shift in (0, 8, 16, 24):
            value = (value ^ (i >> shift & 255)) * 0x01000193 & 0xFFFFFFFF
    return value


def encode(tokenizer, text):
    return tokenizer(text)["input_ids"]


def case(tokenizer, text):
    data = text if isinstance(text, bytes) else None
    if data is not None:
        text = data.decode("utf-8", errors="replace")
    entry = {"hex": data.hex()} if data is not None else {"text": text}
    entry["ids"] = encode(tokenizer, text)
    return entry


def write(path, value):
    with open(path, "w", encoding="utf-8") as out:
        json.dump(value, out, ensure_ascii=True, separators=(",", ":"))
        out.write("\n")


def write_cases(path, tokenizer, random_count, texts=(), fresh=(), **more):
    """`texts`: others in front; `fresh`: (tokenizer, text), of tokenizers that keep a state."""
    cases = [case(tokenizer, text) for text in [*texts, *ODD, *INVALID, *LLAMA_ODD, *random_texts(7, random_count)]]
    cases += [case(*pair) for pair in fresh]
    plain = "a </s> b<s>  c"  # without special tokens around it, and with those in it taken for text
    write(path, {**more, "pad_id": tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
                 "bos_id": tokenizer.bos_token_id, "eos_id": tokenizer.eos_token_id,
                 "vocab_size": max(tokenizer.get_vocab().values()) + 1,
                 "plain": {"text": plain, "without_special": tokenizer(plain, add_special_tokens=False)["input_ids"],
                           "split_special": tokenizer(plain, split_special_tokens=True)["input_ids"]},
                 "cases": cases})
    print(f"{path}: {len(cases)} cases, {os.path.getsize(path)} bytes")


def reference(path):
    """The ids of AutoTokenizer for such a directory."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(path, copy, dirs_exist_ok=True)
        write(os.path.join(copy, "config.json"), {"model_type": "llama"})
        return AutoTokenizer.from_pretrained(copy)
