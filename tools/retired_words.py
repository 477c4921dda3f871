#!/usr/bin/env python3
"""Retired words: names, comments, messages and pages do not use the words of tools/retired_words.txt. tools/code_rules.py checks it.

The list has three parts. "names": parts of C++ identifiers with several parts (most_rows, kMostRows). "openings": the first
words of a sentence in a comment or docstring. "texts": words of messages (string literals), scripts, run files and pages.
"allow FILE WORD: reason" excepts a word in a file.
"""
import collections
import io
import os
import re
import tokenize

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "retired_words.txt")
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


def read_list():
    """({part: {word: what to write instead}}, {(file, word)} that are allowed)"""
    words, allowed, part = collections.defaultdict(dict), set(), None
    with open(LIST, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            if line in ("names:", "openings:", "texts:"):
                part = line[:-1]
            elif match := re.fullmatch(r"allow (\S+) (.+?): (.+)", line):
                allowed.add((match[1], match[2].lower()))
            elif match := re.fullmatch(r"(.+?) -> (.+)", line):
                words[part][match[1].lower()] = match[2]
            else:
                raise ValueError(f"{LIST}:{number}: found {line!r}, expected 'WORD -> REPLACEMENT' or 'allow FILE WORD: REASON'")
    return words, allowed


def split_line(line):
    """(code without literals, literals, comment) of a line of C++; the comment is None if there is none."""
    code, literals, at = "", [], 0
    while at < len(line):
        if line.startswith("//", at):
            return code, literals, line[at:].lstrip("/").lstrip("<").strip()
        if literal := LITERAL.match(line, at):
            literals.append(literal[0][1:-1])
            code, at = code + " ", literal.end()
        else:
            code, at = code + line[at], at + 1
    return code, literals, None


def sentences(comment):
    """[(line number, sentence)] of a comment, [(line number, text)]"""
    found, begin, text = [], None, []
    for number, line in comment:
        for word in line.split():
            begin = begin if text else number
            text.append(word)
            if word[-1] in ".:?!":
                found.append((begin, " ".join(text)))
                text = []
    return found + ([(begin, " ".join(text))] if text else [])


def openings(words, comment):
    for number, sentence in sentences(comment):
        for opening, better in words.items():
            if sentence[0].isupper() and re.match(re.escape(opening) + r"\b(?!')", sentence, re.IGNORECASE):
                yield number, opening, better, sentence


def texts(words, number, text):
    for word, better in words.items():
        if re.search(r"(?<![\w.])" + re.escape(word) + r"(?![\w=])", text, re.IGNORECASE):
            yield number, word, better, text.strip()


def of_code(words, lines):
    comment, follows_code = [], False
    for number, line in enumerate(lines, 1):
        code, literals, text = split_line(line)
        if text is None or code.strip() or follows_code:   # a comment after code is a separate comment
            yield from openings(words["openings"], comment)
            comment = []
        if text is not None:
            comment.append((number, text))
        follows_code = text is not None and bool(code.strip())
        if line.lstrip().startswith("#include"):
            continue
        for name in re.findall(r"[A-Za-z_]\w*", code):
            parts = [part.lower() for part in PARTS.findall(name)]
            for part in set(parts) & set(words["names"]) if len(parts) > 1 else ():
                yield number, part, words["names"][part], name
        for literal in literals:
            yield from texts(words["texts"], number, literal)
    yield from openings(words["openings"], comment)


def of_python(words, lines):
    comment, last = [], None                # last: the line of a comment that stands alone
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        number = token.start[0]
        if token.type == tokenize.COMMENT:
            alone = not token.line[:token.start[1]].strip()
            if not alone or last != number - 1:
                yield from openings(words["openings"], comment)
                comment = []
            comment.append((number, token.string.lstrip("#: ")))
            last = number if alone else None
        elif token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)):
            text = list(enumerate(token.string.split("\n"), number))
            if token.string.startswith('"""'):
                yield from openings(words["openings"], [(line, part.strip('" ')) for line, part in text])
            for line, part in text:
                yield from texts(words["texts"], line, part)
    yield from openings(words["openings"], comment)


def of_script(words, lines):
    """Shell scripts and run files, whose comments begin with #."""
    comment = []
    for number, line in enumerate(lines, 1):
        code, _, text = line.partition("#") if line.startswith("#") or " #" in line else (line, "", "")
        if code.strip() or not text:
            yield from openings(words["openings"], comment)
            comment = []
        if text:
            comment.append((number, text.strip()))
        yield from texts(words["texts"], number, line)
    yield from openings(words["openings"], comment)


def of_page(words, lines):
    fenced = False
    for number, line in enumerate(lines, 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith("    "):
            yield from texts(words["texts"], number, re.sub(r"`[^`]*`", " ", line))


CHECKS = {".h": of_code, ".cpp": of_code, ".cu": of_code, ".cuh": of_code, ".py": of_python, ".sh": of_script, ".yaml": of_script,
          ".md": of_page}
FOLDERS = ("include", "src", "test", "tools", "inputs", "jobs")


def files():
    for top in FOLDERS:
        for folder, _, names in sorted(os.walk(top)):
            if "fuzz/corpus" not in folder:
                yield from (f"{folder}/{name}" for name in sorted(names) if os.path.splitext(name)[1] in CHECKS)
    pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    pages += [f"docs/{name}" for name in sorted(os.listdir("docs"))] if os.path.isdir("docs") else []
    yield from (page for page in pages if page.endswith(".md") and os.path.exists(page))


def breaches():
    words, allowed = read_list()
    found = []
    for path in files():
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n")
        for number, word, better, context in CHECKS[os.path.splitext(path)[1]](words, lines):
            if (path, word) not in allowed:
                found.append(f"{path}:{number}: \"{word}\" in \"{context[:60]}\"; write {better}")
    return found
