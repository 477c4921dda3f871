#!/usr/bin/env python3
"""Writes src/text/letter_case_table.cpp: the small letter of each capital, as Python's str.lower() has it.

    python3 tools/make_letter_case_table.py src/text/letter_case_table.cpp
"""
import sys
import unicodedata

HEAD = """// The small letter of each capital.
//
// Written by tools/make_letter_case_table.py; do not edit. Unicode {version}.
#include "text/letter_case.h"

namespace blipft {{

const CapitalRange capital_ranges[{count}] = {{
"""


def main():
    pairs = [(cp, ord(chr(cp).lower())) for cp in range(0x110000)
             if not 0xD800 <= cp <= 0xDFFF and len(chr(cp).lower()) == 1 and chr(cp).lower() != chr(cp)]
    ranges = []  # [first, last, step, distance to the small letter]
    for capital, small in pairs:
        if ranges:
            first, last, step, distance = ranges[-1]
            gap = capital - last
            if small - capital == distance and gap <= 2 and (first == last or gap == step):
                ranges[-1] = [first, capital, gap, distance]
                continue
        ranges.append([capital, capital, 1, small - capital])
    with open(sys.argv[1], "w") as out:
        out.write(HEAD.format(version=unicodedata.unidata_version, count=len(ranges)))
        line = " "
        for first, last, step, distance in ranges:
            item = f" {{{first:#x}, {last:#x}, {step}, {distance}}},"
            if len(line) + len(item) > 118:
                out.write(line + "\n")
                line = " "
            line += item
        out.write(line + "\n};\nconst size_t capital_ranges_size = std::size(capital_ranges);\n\n")
        out.write("}  // namespace blipft\n")


if __name__ == "__main__":
    main()
