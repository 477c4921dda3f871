#!/usr/bin/env python3
"""Writes src/text/bert_tables.cpp: the classes of characters of BERT's normalizer and pre-tokenizer.

They are those of the `tokenizers` library, which is called for every code point: characters that clean_text removes,
accents that strip_accents removes (the nonspacing marks of an older Unicode than that of the library's regular
expressions), Chinese characters, which become separate words, lower case, and the punctuation of BertPreTokenizer.

    python3 tools/make_bert_tables.py src/text/bert_tables.cpp        (needs the `tokenizers` package)
"""
import sys

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from make_unicode_tables import scalars, write_ranges


def normalizer(**on):
    flags = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**flags, **on})


def between(normalize, expected):
    return [cp for cp in scalars() if normalize.normalize_str("a" + chr(cp) + "b") == expected(chr(cp))]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_bert_tables.py <output.cpp>")
    splitter = pre_tokenizers.BertPreTokenizer()
    punctuation = [cp for cp in scalars()
                   if [word for word, _ in splitter.pre_tokenize_str("a" + chr(cp) + "b")] == ["a", chr(cp), "b"]]
    accents = normalizer(strip_accents=True)
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write("// Characters as BERT's normalizer and pre-tokenizer see them.\n//\n"
                  "// Written by tools/make_bert_tables.py; do not edit.\n"
                  f"// As tokenizers {tokenizers.__version__} has them.\n"
                  "#include \"text/bert_tables.h\"\n\nnamespace blipft::bert_tables {\n\n")
        write_ranges(out, "removed", between(normalizer(clean_text=True), lambda c: "ab"))
        write_ranges(out, "accents", [cp for cp in scalars() if accents.normalize_str("a" + chr(cp)) == "a"])
        write_ranges(out, "chinese", between(normalizer(handle_chinese_chars=True), lambda c: "a " + c + " b"))
        write_ranges(out, "punctuation", punctuation)
        out.write("}  // namespace blipft::bert_tables\n")
    print(f"{sys.argv[1]}: {len(punctuation)} characters of punctuation")


if __name__ == "__main__":
    main()
