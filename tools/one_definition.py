"""One definition: types of one namespace have different names. tools/code_rules.py checks it.

Two types with one name in one namespace link without an error, and one of them may get the other's destructor. Types in
unnamed namespaces and inside other types are not visible in other files.
"""
import collections
import os
import re

NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\((?:.*?)\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
TOKEN = re.compile(r"(?:inline\s+)?namespace\b\s*([\w:]*)\s*\{"
                   r"|\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+(?:\[\[[^\]]*\]\]\s*|alignas\([^)]*\)\s*)*"
                   r"(\w+)(?:\s+final)?\s*(?::(?!:)[^;{}()]*)?\{"
                   r"|[{}]")


def types(text):
    """(namespace, name, line) of the types that a namespace holds."""
    text = NOT_CODE.sub(lambda m: "\n" * m[0].count("\n") or " ", text)
    around = []                            # for each open brace: the name of a namespace, or None
    for token in TOKEN.finditer(text):
        if token[0] == "}":
            if around:
                around.pop()
        elif token[1] is not None:
            around.append(token[1])
        else:
            if token[2] and all(around):
                yield "::".join(around), token[2], text.count("\n", 0, token.start()) + 1
            around.append(None)


def breaches():
    places = collections.defaultdict(list)
    for top in ("include", "src", "test", "tools"):
        for folder, _, names in os.walk(top):
            for name in sorted(names):
                if name.endswith((".h", ".cuh", ".cpp", ".cu")):
                    with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
                        for space, type_name, line in types(file.read()):
                            places[f"{space}::{type_name}"].append(f"{folder}/{name}:{line}")
    return [f"{name} is defined in {' and in '.join(where)}; give one of them another name"
            for name, where in sorted(places.items()) if len(where) > 1]
