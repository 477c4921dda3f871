#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cpp: the character classes and the NFC data that the tokenizer needs.

The classes are those that the `tokenizers` library works with, found by asking it about every code point:
letters and numbers as its ByteLevel pre-tokenizer splits them (\\p{L}, \\p{N}), white space (\\s), word characters
(\\w) as its added tokens with `single_word` see them, and capital letters (\\p{Lu}, \\p{Lt}), small letters (\\p{Ll}) and
marks (\\p{M}) as its regular expressions match them. NFC data come from its normalizers;
the values of the combining classes from Python's unicodedata, where the library knows the character.

    python3 tools/make_unicode_tables.py src/text/unicode_tables.cpp        (needs the `tokenizers` package)
"""
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

LAST = 0x10FFFF


def scalars():
    """Every code point that UTF-8 can carry."""
    return (cp for cp in range(LAST + 1) if not 0xD800 <= cp <= 0xDFFF)


def split_classes():
    """Code points that join a letter, a digit, or neither a letter, a digit nor a symbol."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)

    def joins(text):
        return len(splitter.pre_tokenize_str(text)) == 1

    letters, numbers, spaces = [], [], []
    for cp in scalars():
        c = chr(cp)
        if joins("a" + c):
            letters.append(cp)
        elif joins("1" + c):
            numbers.append(cp)
        elif not joins("!" + c):
            spaces.append(cp)
    return letters, numbers, spaces


def word_characters():
    """Code points after which a single_word added token is not recognised."""
    tokenizer = Tokenizer(models.BPE(vocab={}, merges=[]))
    tokenizer.add_tokens([AddedToken("#", single_word=True, normalized=False)])
    found = []
    for start in range(0, LAST + 1, 1 << 16):
        cps = [cp for cp in range(start, start + (1 << 16)) if not 0xD800 <= cp <= 0xDFFF and chr(cp) != "#"]
        for cp, encoding in zip(cps, tokenizer.encode_batch(["#" + chr(cp) for cp in cps])):
            if not encoding.ids:
                found.append(cp)
    return found


def stripped_spaces():
    """Code points that an added token with `rstrip` swallows."""
    tokenizer = Tokenizer(models.BPE(vocab={}, merges=[]))
    tokenizer.add_tokens([AddedToken("#", rstrip=True, normalized=False)])
    found = []
    for cp in scalars():
        if chr(cp) != "#" and tokenizer.encode("#" + chr(cp)).offsets[0][1] == 2:
            found.append(cp)
    return found


def matching(expression):
    """Code points that the library's regular expressions find in a text between two exclamation marks."""
    splitter = pre_tokenizers.Split(Regex(expression), "isolated")
    return [cp for cp in scalars() if len(splitter.pre_tokenize_str("!" + chr(cp) + "!")) == 3]


def ranges(cps):
    out = []
    for cp in cps:
        if out and out[-1][1] == cp - 1:
            out[-1][1] = cp
        else:
            out.append([cp, cp])
    return out


def decompositions():
    """(code point, full canonical decomposition) for all but the Hangul syllables, which are computed."""
    nfd = normalizers.NFD()
    out = []
    for cp in scalars():
        if 0xAC00 <= cp <= 0xD7A3:
            continue
        text = nfd.normalize_str(chr(cp))
        if text != chr(cp):
            out.append((cp, [ord(c) for c in text]))
    return out


def compositions(decomposed):
    """(first, second, composed) for every pair that NFC joins."""
    nfc = normalizers.NFC()
    out = []
    for cp, _ in decomposed:
        parts = unicodedata.decomposition(chr(cp)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (int(p, 16) for p in parts)
            if nfc.normalize_str(chr(cp)) == chr(cp):  # else it is excluded from composition
                out.append((first, second, cp))
    return sorted(out)


def combining_classes():
    """(first, last, class) where the class is not 0, of the code points whose class the library knows."""
    nfd = normalizers.NFD()

    def moves(text):
        return nfd.normalize_str(text) != text

    out = []
    for cp in scalars():
        value = unicodedata.combining(chr(cp))
        if value and nfd.normalize_str(chr(cp)) == chr(cp):  # U+0334 is of class 1, U+0345 of class 240, the highest
            known = moves(chr(cp) + "\u0334") or moves("\u0345" + chr(cp))
            if not known and value != 240:
                continue
        if value:
            if out and out[-1][1] == cp - 1 and out[-1][2] == value:
                out[-1][1] = cp
            else:
                out.append([cp, cp, value])
    return out


def write_array(out, declaration, cells):
    out.write(f"{declaration} = {{\n")
    line = ""
    for cell in cells:
        text = cell + ","
        if len(line) + len(text) > 118:
            out.write(" " + line + "\n")
            line = ""
        line += " " + text
    out.write(" " + line + "\n};\n\n")


def write_ranges(out, name, cps):
    found = ranges(cps)
    write_array(out, f"const CodePointRange {name}[{len(found)}]",
                [f"{{0x{a:x}, 0x{b:x}}}" for a, b in found])
    out.write(f"const size_t {name}_size = {len(found)};\n\n")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_unicode_tables.py <output.cpp>")
    letters, numbers, spaces = split_classes()
    words = word_characters()
    if stripped_spaces() != spaces:
        sys.exit("the library strips other white space than its pre-tokenizer splits at; the tables cannot say both")
    letter_set = frozenset(letters)
    for cp in scalars():  # a newer library knows more characters than Python does, never fewer
        category = unicodedata.category(chr(cp))
        if (category[0] == "L") != (cp in letter_set) and category != "Cn":
            sys.exit(f"U+{cp:04X} ({category}): the library and unicodedata disagree")
    decomposed = decompositions()
    longest = max(len(parts) for _, parts in decomposed)
    composed = compositions(decomposed)
    classes = combining_classes()
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write("// Character classes and NFC data.\n"
                  "//\n"
                  "// Written by tools/make_unicode_tables.py; do not edit.\n"
                  f"// Classes as tokenizers {tokenizers.__version__} has them; combining classes of Unicode "
                  f"{unicodedata.unidata_version}.\n"
                  "#include \"text/unicode_tables.h\"\n\n"
                  "namespace blipft::unicode_tables {\n\n")
        write_ranges(out, "letters", letters)
        write_ranges(out, "numbers", numbers)
        write_ranges(out, "spaces", spaces)
        write_ranges(out, "words", words)
        write_ranges(out, "capitals", matching(r"\p{Lu}|\p{Lt}"))
        write_ranges(out, "small_letters", matching(r"\p{Ll}"))
        write_ranges(out, "marks", matching(r"\p{M}"))
        write_array(out, f"const CombiningClass combining_classes[{len(classes)}]",
                    [f"{{0x{a:x}, 0x{b:x}, {c}}}" for a, b, c in classes])
        out.write(f"const size_t combining_classes_size = {len(classes)};\n\n")
        if longest > 4:
            sys.exit(f"a decomposition has {longest} code points; Decomposition holds 4")
        write_array(out, f"const Decomposition decompositions[{len(decomposed)}]",
                    [f"{{0x{cp:x}, {{{', '.join(f'0x{p:x}' for p in parts)}}}}}" for cp, parts in decomposed])
        out.write(f"const size_t decompositions_size = {len(decomposed)};\n\n")
        write_array(out, f"const Composition compositions[{len(composed)}]",
                    [f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}" for a, b, c in composed])
        out.write(f"const size_t compositions_size = {len(composed)};\n\n"
                  "}  // namespace blipft::unicode_tables\n")
    print(f"{sys.argv[1]}: {len(letters)} letters, {len(numbers)} numbers, {len(spaces)} spaces, {len(words)} word "
          f"characters, {len(decomposed)} decompositions (longest {longest}), {len(composed)} compositions")


if __name__ == "__main__":
    main()
