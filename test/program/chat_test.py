#!/usr/bin/env python3
"""--chat and --system: conversations at the terminal, with the prompts of --generate.

    python3 test/program/chat_test.py [PART-OF-A-NAME...]

Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import json
import os
import pathlib
import pty
import select
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from generation_runs import generate  # noqa: E402
from program_runs import DEVICE, PROGRAM, ROOT, TwoModels, command_line, environment, mpirun  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402


class Chatty(TwoModels):
    """A small LLaMA with random weights that are large enough for every prompt to have a text of its own."""

    def __init__(self, folder):
        super().__init__(folder, f"parallel: {{device: {DEVICE}, threads: 1}}\ntrain: {{precision: 32-true}}\n"
                                 "generate: {max_new_tokens: 6}\n")
        path = self.text / "model/config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "initializer_range": 0.4}))
        self.config = self.configs["text"]


TEMPLATE = ("data.chat_template=llama2", "data.max_text_tokens=160")


def chat(space, lines, *arguments, status=0, ranks=0, config=None):
    done = subprocess.run(command_line(ranks, [PROGRAM, "--chat", config or space.config, f"output.path={space.new()}", *arguments]),
                          cwd=ROOT, env=environment(), input="".join(line + "\n" for line in lines).encode(),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    check(done.returncode == status, done.returncode, done.stdout, done.stderr)
    return done.stdout.decode(), done.stderr.decode()


def answer(space, messages, *arguments):
    """Returns the text of generated.jsonl for the answer that follows these messages."""
    path = space.new("asked").with_suffix(".jsonl")
    path.write_text(json.dumps({"messages": [*messages, {"role": "assistant", "content": "?"}]}) + "\n")
    lines, _, _ = generate(space, 0, f"generate.path={path}", *arguments)
    return lines[0]["text"]


@test
def a_chat_is_the_conversation_that_generate_answers(space):
    for system in ((), ("Be brief.",)):
        messages = [{"role": "system", "content": text} for text in system]
        expected = ""
        for line in ("What is 1 + 1?", "And the next?", "Why so?"):
            messages.append({"role": "user", "content": line})
            messages.append({"role": "assistant", "content": answer(space, messages, *TEMPLATE)})
        expected = [message["content"] for message in messages if message["role"] == "assistant"]
        check(len(set(expected)) == 3, "the answers do not depend on the history", expected)
        options = (*TEMPLATE, *(("--system", *system) if system else ()))
        out, err = chat(space, ["What is 1 + 1?", "", "And the next?", "  ", "Why so?", "/new", "What is 1 + 1?"], *options)
        rest = out
        for text in (*expected, expected[0]):
            at = rest.find(text)
            check(at >= 0 and not rest[:at].strip(), text, out)
            rest = rest[at + len(text):]
        check(not rest.strip() and err.count("tokens/s") == 4, out, err)
        status, alone, _, _ = mpirun(0, [PROGRAM, "--generate", space.config, f"output.path={space.new()}", "--prompt",
                                         "What is 1 + 1?", *options])
        check(status == 0 and alone.strip() == expected[0], alone, expected)


@test
def a_history_that_is_too_long_is_refused(space):
    lines = ["Count the words, please."] * 9
    out, err = chat(space, lines, *TEMPLATE, status=1)
    check("the conversation: found " in err and "tokens, expected at most 160. Type /new for another conversation, or start with "
          "a larger data.max_text_tokens." in err, err)
    check(0 < err.count("tokens/s") < 9, err)
    chat(space, ["/new" if i % 2 else line for i, line in enumerate(lines)], *TEMPLATE)
    chat(space, lines[:6], "data.chat_template=llama2", "data.max_text_tokens=400")


@test
def without_a_chat_template_each_line_is_answered_by_itself(space):
    style = ("data.prompt_style={instruction}=",)
    out, err = chat(space, ["Spell ocean", "Spell ocean"], *style)
    check("data.prompt_style is given: each line is answered by itself." in err and out[:len(out) // 2] == out[len(out) // 2:], out, err)
    for options, words in ((style, "data.chat_template and data.prompt_style: chat"), ((), "a model without a chat template")):
        _, err = chat(space, ["a"], "--system", "Be brief.", *options, status=1)
        check("--system: found " in err and words in err, err)


@test
def pictures(space):
    first, second = (sorted(space.data.rglob("*.png")) + sorted(space.data.rglob("*.jpg")))[:2]
    picture = space.configs["picture"]
    _, err = chat(space, ["what?"], status=1, config=picture)
    check("reads a picture; give --image FILE" in err, err)
    out, err = chat(space, [f"/picture {first}", "what?", f"/picture {second}", "what?"], config=picture)
    check(err.count("tokens/s") == 2 and "/picture FILE" in err, out, err)
    same, _ = chat(space, ["what?", f"/picture {second}", "what?"], "--image", first, config=picture)
    check(same == out, same, out)
    _, err = chat(space, ["/picture /nowhere/x.png"], status=1, config=picture)
    check("/nowhere/x.png" in err, err)
    _, err = chat(space, [f"/picture {first}"], *TEMPLATE, status=1)
    check("reads no picture" in err, err)


@test
def bytes_that_are_no_text_and_lines_without_end(space):
    done = subprocess.run([PROGRAM, "--chat", str(space.config), f"output.path={space.new()}", *TEMPLATE], cwd=ROOT,
                          env=environment(), input=b"a\xff\xfe\x00b\r\nlast", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    check(done.returncode == 0 and done.stderr.count(b"tokens/s") == 2, done)
    out, err = chat(space, ["x " * 100000], *TEMPLATE, status=1)
    check("expected at most 160" in err and out == "", err)
    _, err = chat(space, ["a"], *TEMPLATE, status=1, ranks=2)
    check("answered by one rank, but there are 2" in err, err)


@test
def at_a_terminal_an_error_does_not_end_the_chat(space):
    master, slave = pty.openpty()
    process = subprocess.Popen([PROGRAM, "--chat", str(space.config), f"output.path={space.new()}", *TEMPLATE], cwd=ROOT,
                               env=environment(), stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    text = b""

    def read_until(words, count):
        nonlocal text
        while text.count(words) < count:
            check(select.select([master], [], [], 60)[0], "no answer", text)
            text += os.read(master, 65536)

    read_until(b"> ", 1)
    for line, marks in ((b"x " * 300, 2), (b"What is 1 + 1?", 3)):
        os.write(master, line + b"\n")
        read_until(b"\n> ", marks)
    check(b"expected at most 160" in text and text.count(b"tokens/s") == 1, text)
    os.write(master, b"\x04")
    check(process.wait(timeout=60) == 0, text)
    os.close(master)


if __name__ == "__main__":
    sys.exit(run_tests("chat_test", Chatty, PROGRAM))
