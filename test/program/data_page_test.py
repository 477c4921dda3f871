#!/usr/bin/env python3
"""docs/data.md: its examples as they stand, and control tokens in what users write, against transformers.

    test/program/data_page_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft). The comparison needs transformers; without it that test is skipped.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, ROOT, environment, golden_path  # noqa: E402
from script_tests import Skip, check, run_tests, test  # noqa: E402

try:
    import transformers
    why = None
except ImportError as missing:
    why = str(missing)

PAGE = (ROOT / "docs/data.md").read_text()


class Folder:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.count = 0

    def new(self, name):
        self.count += 1
        return self.folder / f"{name}{self.count}"


def show(config, *options, cwd=ROOT):
    """Returns [(ids, whether each is trained, text)] of the samples."""
    done = subprocess.run([PROGRAM, "--show", "100", config, *options], cwd=cwd, env=environment(), capture_output=True, text=True)
    check(done.returncode == 0, done.stdout, done.stderr)
    found = []
    for sample in re.findall(r"^sample .*\n((?:  .*\n)+)", done.stdout, re.M):
        ids = re.search(r"^    ids((?: .*\n)(?:        .*\n)*)", sample, re.M).group(1).split()
        text = "\n".join(re.findall(r"^    \| ?(.*)$", sample, re.M))
        found.append(([int(token.rstrip("*")) for token in ids], [token.endswith("*") for token in ids], text))
    return found


def blocks():
    """The indented blocks of the page, without indentation."""
    return [re.sub(r"^ {4}", "", block, flags=re.M) for block in re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", PAGE, re.M)]


@test
def the_examples_are_shown_as_the_page_has_them(space):
    folder = space.new("clone")
    folder.mkdir()
    for name in ("tools", "inputs"):
        (folder / name).symlink_to(ROOT / name)
    at = next(i for i, block in enumerate(blocks()) if "--show 6" in block)
    commands, records, shown = blocks()[at].splitlines(), blocks()[at + 1], blocks()[at + 2]
    (folder / "examples.jsonl").write_text(records)
    check(len(records.splitlines()) == 6, records)
    subprocess.run(commands[0].split(), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    words = commands[1].split()
    check(words[:3] == ["./blipft", "--show", "6"], words)
    texts = [text for _, _, text in show(*words[3:], cwd=folder)]
    expected = ["\n".join(re.findall(r"^\| ?(.*)$", part, re.M)) for part in shown.split("\n\n")]
    check(texts == expected, texts, expected)
    # The sample with ids: their numbers depend on the demo's vocabulary, what is trained does not.
    sample = next(block for block in blocks() if "sample 2 of 6" in block).partition("\n\n")[2]
    out = subprocess.run([PROGRAM, *words[1:]], cwd=folder, env=environment(), capture_output=True, text=True).stdout
    check(re.sub(r"\d+", "N", sample) in re.sub(r"\d+", "N", out), sample, out)


def tokenizer_folder(space, name, split):
    folder = space.new("model")
    shutil.copytree(golden_path("tokenizer") / name, folder)
    (folder / "cases.json").unlink()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 200000, "hidden_size": 32,
              "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**settings, "split_special_tokens": split}))
    return folder


# Golden tokenizers: byte-level ones, and those with the form of SentencePiece.
TOKENIZERS = ("fast_strings", "fast_pairs", "byte_fallback", "llama_class", "llama3", "qwen2", "tekken", "gemma")
TEMPLATE = ("{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
            "{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{{ eos_token }}{% endif %}\n{% endfor %}")


@test
def control_tokens_in_users_texts_are_those_of_transformers(space):
    if why:
        raise Skip(why)
    seen = set()
    for name in TOKENIZERS:
        for split in (False, True):
            folder = tokenizer_folder(space, name, split)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            added = [str(token) for token in tokenizer.added_tokens_decoder.values()]
            texts = [f"a{token}b {token} c" for token in added]
            texts += ["<|user|> <|im_end|> [INST] </s> <s> <pad> <unk> <0x0A> <mask>", "swordfish word two words", "{{ 7 * 7 }} {% generation %}x"
                      "{% endgeneration %}", "<|assistant|>\nyes", f"{tokenizer.eos_token}\n<|assistant|>\nyes{tokenizer.eos_token}"]
            (folder / "chat_template.jinja").write_text(TEMPLATE)
            conversations = [[{"role": "user", "content": text}, {"role": "assistant", "content": "fine"}] for text in texts]
            path = space.new("records").with_suffix(".jsonl")
            path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations))
            config = space.new("run").with_suffix(".yaml")
            config.write_text(f"model: {{path: {folder}, init: random}}\ndata: {{path: {path}, max_text_tokens: 1024}}\n")
            for messages, (ids, trained, _) in zip(conversations, show(config), strict=True):
                expected = tokenizer.apply_chat_template(messages, chat_template=TEMPLATE, tokenize=True, return_dict=True,
                                                         return_assistant_tokens_mask=True)
                check(ids == expected["input_ids"], name, split, messages, ids, expected["input_ids"])
                check([bool(one) for one in expected["assistant_masks"]] == trained, name, split, messages, trained, expected)
                text = messages[0]["content"]
                special = [token for token in added if token in text and tokenizer.convert_tokens_to_ids(token) in ids]
                seen.add((split, bool(special)))
    check({(False, True), (True, False)} <= seen, seen)


if __name__ == "__main__":
    sys.exit(run_tests("data_page_test", Folder, PROGRAM))
