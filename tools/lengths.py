"""Lengths: no file of include/ and src/ is longer than 500 lines, except tables of data (*_table.cpp, *_tables.cpp), and no
function longer than 60 lines, except kernels with a comment before them. tools/code_rules.py checks it."""
import os
import re

MOST_LINES, MOST_OF_A_FUNCTION = 500, 60
FOLDERS = ("include", "src")
NO_FUNCTION = re.compile(r"\s*(namespace|class|struct|enum|union|extern|if|for|while|switch|do|else|try|catch|return|case|default|"
                         r"using|typedef|static_assert|constexpr\s+\w+\[|#|//|\}|@|BLIPFT_)")
TABLE = re.compile(r"_tables?\.cpp$")
KERNEL = re.compile(r"__(global|device)__")


def functions(lines):
    """(first line, lines, name) of what looks like a function: a signature that ends with "{", up to a "}" below its first letter."""
    i = 0
    while i < len(lines):
        first = lines[i]
        indent = len(first) - len(first.lstrip())
        if not first.strip() or indent > 2 or NO_FUNCTION.match(first) or "(" not in first:
            i += 1
            continue
        end = i                            # first line of the signature
        while end < len(lines) and end < i + 12 and not re.search(r"[{;}]\s*(//.*)?$", lines[end]):
            end += 1
        if end == len(lines) or not re.search(r"\{\s*(//.*)?$", lines[end]):
            i = end + 1 if end > i else i + 1
            continue
        close = end + 1
        while close < len(lines) and not re.match(r" {%d}\}" % indent, lines[close]):
            close += 1
        yield i, close - i + 1, first.strip()
        i = close + 1


def breaches_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().split("\n")
    count = len(lines) - (lines[-1] == "")
    if count > MOST_LINES and not TABLE.search(path):
        yield f"{path}: {count} lines, at most {MOST_LINES}; cut it by what is in it"
    for first, length, name in functions(lines):
        before = first
        while before > 0 and re.match(r"\s*(template|__global__|__device__)", lines[before - 1]):
            before -= 1
        explained = before > 0 and lines[before - 1].lstrip().startswith("//")
        kernel = any(KERNEL.search(line) for line in lines[before:first + 1])
        if length > MOST_OF_A_FUNCTION and not (kernel and explained):
            yield f"{path}:{first + 1}: {length} lines, at most {MOST_OF_A_FUNCTION}: {name[:90]}"


def breaches():
    found = []
    for top in FOLDERS:
        for folder, _, names in sorted(os.walk(top)):
            for name in sorted(names):
                if name.endswith((".h", ".cpp", ".cu", ".cuh")):
                    found += breaches_of(f"{folder}/{name}")
    return found
