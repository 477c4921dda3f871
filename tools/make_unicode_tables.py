#!/usr/bin/env python3
"""Writes src/text/unicode_additions.cpp: the differences in Unicode between the `tokenizers` library and the installed
utf8proc and PCRE2.

The library is called for every code point: regular expressions for general categories, Alphabetic, Lowercase and
scripts, the Lowercase normalizer for lower case, and normal forms, which are those of an older Unicode.

    python3 tools/make_unicode_tables.py src/text/unicode_additions.cpp

It needs the `tokenizers` package, utf8proc 2.8 and PCRE2 10.42, the oldest versions that are supported.
"""
import ctypes
import sys

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
SCRIPTS = """Adlam Ahom Arabic Armenian Avestan Balinese Bamum Batak Bengali Bopomofo Brahmi Braille Buginese Buhid
Canadian_Aboriginal Chakma Cham Cherokee Coptic Cuneiform Cypriot Cyrillic Deseret Devanagari Duployan
Egyptian_Hieroglyphs Elbasan Ethiopic Georgian Glagolitic Gothic Grantha Greek Gujarati Gurmukhi Han Hangul Hanunoo
Hebrew Hiragana Imperial_Aramaic Javanese Kaithi Kannada Katakana Kayah_Li Kharoshthi Khmer Khojki Khudawadi Lao Latin
Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Malayalam Mandaic Manichaean Meetei_Mayek Mongolian Mro Myanmar
New_Tai_Lue Newa Nko Ogham Ol_Chiki Old_Italic Old_Permic Old_Persian Old_Turkic Oriya Osage Osmanya Pahawh_Hmong
Phags_Pa Phoenician Rejang Runic Samaritan Saurashtra Sharada Shavian Siddham Sinhala Sora_Sompeng Sundanese
Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangut Telugu Thaana Thai Tibetan Tifinagh
Tirhuta Ugaritic Vai Warang_Citi Yi Yezidi""".split()
LAST = 0x10FFFF


def scalars():
    return (cp for cp in range(LAST + 1) if not 0xD800 <= cp <= 0xDFFF)


def matching(expression):
    """Code points that the library's regular expressions match."""
    text = "".join(map(chr, scalars()))
    left = pre_tokenizers.Split(Regex(f"(?:{expression})+"), "removed").pre_tokenize_str(text)
    ends = [(0, 0), *(place for _, place in left), (len(text), len(text))]
    return {ord(c) for (_, end), (begin, _) in zip(ends, ends[1:]) for c in text[end:begin]}


class Pcre2:
    """PCRE2 by ctypes: which code points have a property."""

    def __init__(self):
        self.library = ctypes.CDLL("libpcre2-8.so.0")
        self.library.pcre2_compile_8.restype = ctypes.c_void_p
        self.library.pcre2_match_data_create_8.restype = ctypes.c_void_p
        self.library.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)

    def matching(self, name):
        expression, text = rb"\p{%s}++" % name.encode(), "".join(map(chr, scalars())).encode()
        utf, unused = ctypes.c_uint32(0x00080000), (ctypes.c_int(), ctypes.c_size_t())
        code = ctypes.c_void_p(self.library.pcre2_compile_8(expression, ctypes.c_size_t(len(expression)), utf,
                                                            *map(ctypes.byref, unused), None))
        data = ctypes.c_void_p(self.library.pcre2_match_data_create_8(1, None))
        found, end = set(), 0
        while code and self.library.pcre2_match_8(code, text, ctypes.c_size_t(len(text)), ctypes.c_size_t(end),
                                                  ctypes.c_uint32(0x40000000), data, None) >= 0:
            begin, end = self.library.pcre2_get_ovector_pointer_8(data)[0:2]
            found.update(map(ord, text[begin:end].decode()))
        return found


def runs(cps, value=lambda cp: None):
    """[first, last, value] of the runs of code points with one value."""
    out = []
    for cp in sorted(cps):
        if out and out[-1][1] == cp - 1 and out[-1][2] == value(cp):
            out[-1][1] = cp
        else:
            out.append([cp, cp, value(cp)])
    return out


class Utf8proc:
    """utf8proc by ctypes."""

    def __init__(self):
        self.library = ctypes.CDLL("libutf8proc.so.2")
        self.library.utf8proc_category_string.restype = ctypes.c_char_p
        self.library.utf8proc_get_property.restype = ctypes.POINTER(ctypes.c_int16 * 2)  # category, combining class

    def category(self, cp):
        return self.library.utf8proc_category_string(cp).decode()

    def small_letter(self, cp):
        return self.library.utf8proc_tolower(cp)

    def combining(self, cp):
        return self.library.utf8proc_get_property(cp).contents[1]

    def nfkd(self, cp):
        made = (ctypes.c_uint32 * 32)()
        options = 1 << 2 | 1 << 4  # compatible decompositions
        size = self.library.utf8proc_decompose_char(cp, made, ctypes.c_ssize_t(32), options,
                                                    ctypes.byref(ctypes.c_int()))
        return "".join(map(chr, made[:size]))


def never_normalized(utf8proc):
    """Code points without their normal forms or combining classes in the library."""
    nfd, nfkd, found = normalizers.NFD(), normalizers.NFKD(), {0x11935}  # composed in a later version
    for cp in scalars():
        c = chr(cp)
        moves = utf8proc.combining(cp) in (0, 240) or nfd.normalize_str(c) != c or any(
            nfd.normalize_str(text) != text for text in (c + "\u0334", "\u0345" + c))  # combining classes 1 and 240
        if not moves or nfkd.normalize_str(c) != utf8proc.nfkd(cp):
            found.add(cp)
    return found


def write_array(out, declaration, cells):
    out.write(f"{declaration} = {{\n")
    line = ""
    for cell in cells:
        text = cell + ","
        if len(line) + len(text) > 116:
            out.write(" " + line + "\n")
            line = ""
        line += " " + text
    out.write(" " + line + "\n};\n\n")


def write_ranges(out, name, cps):
    write_array(out, f"constexpr unicode::CodePoints {name}_ranges[]",
                [f"{{0x{a:x}, 0x{b:x}}}" for a, b, _ in runs(cps)])
    out.write(f"const std::span<const unicode::CodePoints> {name} = {name}_ranges;\n\n")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_unicode_tables.py <output.cpp>")
    utf8proc, pcre2, lower = Utf8proc(), Pcre2(), normalizers.Lowercase()
    category = {cp: name for name in CATEGORIES for cp in matching(rf"\p{{{name}}}")}
    added = [cp for cp in scalars() if category.get(cp, "Cn") != utf8proc.category(cp)]
    small = {cp: ord(letter) - cp for cp in scalars()
             if len(letter := lower.normalize_str(chr(cp))) == 1 and ord(letter) != utf8proc.small_letter(cp)}
    members = []
    for name in ["Alphabetic", "Lowercase", *SCRIPTS]:
        known = pcre2.matching(name if name in ("Alphabetic", "Lowercase") else f"sc:{name}")
        more = matching(rf"\p{{{name}}}") - known
        kind = {"Alphabetic": "L", "Lowercase": "Ll"}.get(name)  # these are added by their categories
        members += [(name.lower().replace("_", ""), first, last)
                    for first, last, _ in runs(cp for cp in more if not kind or not category[cp].startswith(kind))]
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write("// Written by tools/make_unicode_tables.py; do not edit.\n"
                  f"// As tokenizers {tokenizers.__version__} has them.\n"
                  "#include \"text/unicode_additions.h\"\n\n"
                  "namespace blipft::unicode {\nnamespace {\n\nusing enum Category;\n\n")
        write_array(out, "constexpr AddedCategory categories[]",
                    [f"{{0x{a:x}, 0x{b:x}, {name}}}" for a, b, name in runs(added, lambda cp: category.get(cp, "Cn"))])
        write_array(out, "constexpr AddedCapitals capitals[]",
                    [f"{{0x{a:x}, 0x{b:x}, {distance}}}" for a, b, distance in runs(small, small.get)])
        write_array(out, "constexpr AddedMembers members[]",
                    [f"{{\"{name}\", 0x{a:x}, 0x{b:x}}}" for name, a, b in sorted(members)])
        write_array(out, "constexpr CodePoints untouched[]",
                    [f"{{0x{a:x}, 0x{b:x}}}" for a, b, _ in runs(never_normalized(utf8proc))])
        out.write("}  // namespace\n\n"
                  "const std::span<const AddedCategory> added_categories = categories;\n"
                  "const std::span<const AddedCapitals> added_capitals = capitals;\n"
                  "const std::span<const AddedMembers> added_members = members;\n"
                  "const std::span<const CodePoints> never_normalized = untouched;\n\n"
                  "}  // namespace blipft::unicode\n")


if __name__ == "__main__":
    main()
