#!/usr/bin/env python3
"""--show: the samples of a run as they are trained, in every form of data.

    python3 test/program/show_samples_test.py [PART-OF-A-NAME...]

Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import json
import os
import pathlib
import pty
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, ROOT, TwoModels, copy_tokenizer, environment, golden_path, mpirun, trained  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

REST = "parallel: {device: cpu, threads: 1}\ntrain: {precision: 32-true, batch_size: 4}\n"


class Shown(TwoModels):
    def __init__(self, folder):
        super().__init__(folder, REST)


def show(space, kind, *arguments, count="3", status=0):
    found, out, err, _ = mpirun(0, [PROGRAM, "--show", count, space.configs[kind], *arguments])
    check(found == status, found, out, err)
    return out if status == 0 else (out, err)


def records(space, *lines):
    path = space.new("records").with_suffix(".jsonl")
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return f"data.path={path}"


def samples_of(out):
    return re.findall(r"^sample .*\n(?:  .*\n)+", out, re.M)


def text_of(sample):
    return "\n".join(re.findall(r"^    \| (.*)$", sample, re.M))


@test
def texts_with_what_is_trained(space):
    style = ("data.prompt_style={instruction}=", "data.mask_prompt=true")
    data = records(space, {"instruction": "1 + 1", "output": "2"}, {"instruction": "Turn", "output": "a\x1b[31mb\u009b"},
                   {"instruction": "much", "output": "word " * 200})
    out = show(space, "text", data, *style)
    first, second, third = samples_of(out)
    check("records" in first and text_of(first) == "<s>1 + 1=[[2</s>]]", first)
    ids = re.search(r"^    ids (.*)$", first, re.M).group(1).split()
    check([token.endswith("*") for token in ids] == [False] * (len(ids) - 2) + [True, True], ids)
    check(f"{len(ids)} tokens, 2 trained" in first, first)
    check(r"a\x1b[31mb\u009b" in second and "\x1b" not in out and "\x9b" not in out, repr(second))
    check(re.search(r"96 of \d+ tokens \(cut: data.max_text_tokens\), \d+ trained", third), third)
    check("]]<<cut: " in text_of(third) and "more tokens>>" in text_of(third), third)
    check(re.search(r"^lengths of all 3 samples", out, re.M) and re.search(r"^text +\d+ ", out, re.M), out)
    check("cut         1 of 3 (33.3 %) to data.max_text_tokens 96; the first:" in out, out)


@test
def nothing_to_train_and_unread_keys(space):
    data = records(space, {"prompt": "a", "completion": "", "source": "web"}, {"prompt": "b", "completion": "c", "source": "web"})
    out = show(space, "text", data, "data.mask_prompt=true", "data.append_eos=false")
    check("  nothing of it is trained" in samples_of(out)[0] and "nothing" not in samples_of(out)[1], out)
    check(re.search(r"^untrained +1 of 2 \(50.0 %\) have nothing to train; the first: .*:1$", out, re.M), out)
    check("note: keys of the records that are not read: source (2)" in out, out)


@test
def broken_records_are_shown_and_end_as_a_run_would(space):
    data = records(space, {"text": "a"}, '{"text": 5}', {"text": "b"})
    out, err = show(space, "text", data, status=2)
    check("cannot be read\n" in samples_of(out)[1] and ":2: key" in samples_of(out)[1], out)
    check(re.search(r"^unreadable +1 of 3", out, re.M) and "data.on_bad_sample=skip" in err, out, err)
    check(len(samples_of(show(space, "text", data, "data.on_bad_sample=skip"))) == 3)


@test
def a_tokenizer_without_a_known_decoder_shows_its_ids(space):
    model = space.copy(space.text / "model")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps({**tokenizer, "decoder": {"type": "CTC"}}))
    one, other = (re.findall(r"^    ids .*", show(space, "text", *options), re.M) for options in ((), (f"model.path={model}",)))
    check(one == other and len(one) == 3, one, other)
    check("no text: " in show(space, "text", f"model.path={model}"), "no reason is printed")


@test
def conversations(space):
    data = records(space, {"messages": [{"role": "system", "content": "Count."}, {"role": "user", "content": "1?"},
                                        {"role": "assistant", "content": "2"}, {"role": "user", "content": "3?"},
                                        {"role": "assistant", "content": "4"}]})
    out = show(space, "text", data, "data.chat_template=llama2", "data.max_text_tokens=128")
    check(re.search(r"\[\[ ?2 ?</s>\]\]", text_of(out)) and re.search(r"\[\[ ?4 ?</s>\]\]", text_of(out)), out)
    check(text_of(out).count("[[") == 2 and "Count." in text_of(out), out)
    last = show(space, "text", data, "data.chat_template=llama2", "data.max_text_tokens=128", "data.train_on=last")
    check(text_of(last).count("[[") == 1, last)


@test
def an_end_of_answers_that_is_no_token_is_warned_of(space):
    turns = {"messages": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}]}
    data, texts = records(space, *[turns] * 4), records(space, *[{"text": "a b"}] * 4)
    for options, warned in (((data, "data.chat_template=chatml"), True), ((data, "data.chat_template=llama2"), False),
                            ((texts, "data.chat_template=chatml"), False)):
        shown = show(space, "text", *options)
        result = trained(space, "text", 1, *options, "train.max_steps=1")
        for out in (shown, result.out + result.err):
            found = re.search(r'warning: the chat template ends answers with "<\|im_end\|>", which the tokenizer in .* splits into '
                              r"\d+ tokens: generation does not stop there. Set data.chat_template", out)
            check(bool(found) == warned and ("splits into" in out) == warned, options, out)


@test
def an_end_of_answers_at_which_generation_does_not_stop_is_warned_of(space):
    data = records(space, *[{"messages": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}]}] * 4)
    model, template = space.copy(space.text / "model"), space.new("ends").with_suffix(".jinja")
    template.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}<pad>{% endfor %}"
                        "{% if add_generation_prompt %}<assistant>{% endif %}")
    options = (data, f"data.chat_template={template}", f"model.path={model}")
    out = show(space, "text", *options)
    found = re.search(r'^warning: answers end with "<pad>" \(id (\d+)\), and generation stops only at other tokens: '
                      + re.escape(f"{model}/generation_config.json"), out, re.M)
    check(found and "Add the id there." in out, out)
    result = trained(space, "text", 1, *options, "train.max_steps=1")
    check('warning: answers end with "<pad>"' in result.out + result.err, result)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, int(found[1])]}))
    check("warning" not in show(space, "text", *options), "warned after the id was added")


@test
def pictures_and_their_answers(space):
    out = show(space, "picture")
    check(len(re.findall(r"^  picture  \d+ x \d+ pixels, \d+ bytes; read as 56 x 56$", out, re.M)) == 3, out)
    entries = [json.loads(line)["file_name"] for line in (space.data / "metadata.jsonl").read_text().splitlines()][:2]
    folder = space.copy(space.data)
    (folder / "metadata.jsonl").write_text("".join(json.dumps(
        {"file_name": name, "prompt": "what?", "answer": ["red", "red", "blue"], "width": 5}) + "\n" for name in entries))
    out = show(space, "picture", f"data.path={folder}")
    check('answers  "red" (2), "blue" (1); one is drawn in each epoch' in out, out)
    out = show(space, "text", f"data.path={space.data}")  # a model of texts
    check("picture  not read by this model" in out, out)


@test
def source_target_and_instruction(space):
    for golden, tokenizer, record in (("t5_v11", "t5", {"prompt": "Translate: one two three", "completion": "eins"}),
                                      ("t5_instructblip", "t5", {"file_name": "gray.jpg", "prompt": "what is it, a picture?",
                                                                 "answer": "yes it is"})):
        model, data = space.new("model"), space.new("data")
        copy_tokenizer(tokenizer, model)
        config = json.loads((golden_path(golden) / "config.json").read_text())
        for part in (config, config.get("text_config", {}), config.get("qformer_config", {})):
            part.update({"vocab_size": 200000} if "vocab_size" in part else {})
        (model / "config.json").write_text(json.dumps(config))
        data.mkdir()
        if "vision_config" in config:
            copy_tokenizer("bert_json", model / "qformer_tokenizer")
            (model / "preprocessor_config.json").write_text(json.dumps({"size": config["vision_config"]["image_size"]}))
            (data / "gray.jpg").write_bytes((golden_path("images") / "gray.jpg").read_bytes())
        path = data / ("metadata.jsonl" if "file_name" in record else "data.jsonl")
        path.write_text(json.dumps(record) + "\n")
        run = space.new("run").with_suffix(".yaml")
        run.write_text(f"model: {{path: {model}, init: random}}\ndata: {{path: {data if 'file_name' in record else path}, "
                       "max_text_tokens: 6}\n")
        status, out, err, _ = mpirun(0, [PROGRAM, "--show", "1", run])
        check(status == 0, out, err)
        check(re.search(r"^  source  6 of \d+ tokens \(cut: data.max_text_tokens\)\n    \| .*<<cut: .*>></s>$", out, re.M), out)
        check(re.search(r"^  target  \d+.* tokens.*, \d+ trained\n    \| <pad>\[\[ ?\w+", out, re.M), out)
        instruction = re.search(r"^  instruction  6 of \d+ tokens \(cut: data.max_text_tokens\)\n    \| \[CLS\].*<<cut: .*>>.*\[SEP\]$",
                                out, re.M)
        check(bool(instruction) == ("file_name" in record), out)
        for row in ("source", "target", "trained", *(["instruction"] if instruction else [])):
            check(re.search(rf"^{row} +\d+ ", out, re.M), row, out)


@test
def random_samples_and_the_folder_of_a_run(space):
    one, again = (re.findall(r"^sample (\d+)", show(space, "text", count="random:5"), re.M) for _ in range(2))
    other = re.findall(r"^sample (\d+)", show(space, "text", "train.seed=8", count="random:5"), re.M)
    check(len(one) == 5 and one == again and one != other and one != ["1", "2", "3", "4", "5"], one, again, other)
    run = trained(space, "text", 1, "train.max_steps=1").output
    status, out, err, _ = mpirun(0, [PROGRAM, "--show", run])
    check(status == 0 and samples_of(out) == samples_of(show(space, "text")), out, err)


@test
def a_text_that_is_too_long_for_the_model_is_refused(space):
    for kind, message in (("text", r"the model has \d+ positions \(config\.json: max_position_embeddings\)$"),
                          ("picture", r"\(config\.json: max_position_embeddings\), of which 8 come before the text$")):
        status, _, err, _ = mpirun(0, [PROGRAM, "--show", "1", str(space.configs[kind]), "data.max_text_tokens=99999"])
        check(status == 2 and re.search(r"data\.max_text_tokens: found 99999, expected at most .*" + message, err.strip()), status, err)


@test
def colours_on_a_terminal(space):
    master, slave = pty.openpty()
    process = subprocess.Popen([PROGRAM, "--show", "1", str(space.configs["text"]), "data.mask_prompt=true"], cwd=ROOT,
                               env=environment(), stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    os.close(slave)
    text = b""
    try:
        while piece := os.read(master, 65536):
            text += piece
    except OSError:
        pass                                 # the other end is closed
    check(process.wait(timeout=60) == 0 and b"\x1b[1;32m" in text and b"[[" not in text, text)
    os.close(master)


@test
def no_colours_on_the_terminal_of_a_launcher_that_prints_elsewhere(space):
    launcher = "import os, subprocess, sys; subprocess.call(sys.argv[3:], stdout=open(sys.argv[1], 'w'), env={**os.environ, sys.argv[2]: '0'})"
    for variable in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"):
        master, slave = pty.openpty()
        command = [sys.executable, "-c", launcher, os.ttyname(slave), variable, PROGRAM, "--show", "1", str(space.configs["text"]),
                   "data.mask_prompt=true"]
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        text = b""
        while b"ids; " not in text and b"ids: " not in text:
            text += os.read(master, 65536)
        os.close(slave)
        os.close(master)
        process.wait(timeout=60)
        check(b"[[" in text and b"\x1b[1;32m" not in text, variable, text)


if __name__ == "__main__":
    sys.exit(run_tests("show_samples_test", Shown, PROGRAM))
