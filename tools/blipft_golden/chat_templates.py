"""What transformers makes of conversations with the families' chat templates.

The folder of --templates has the Jinja texts as models publish them, NAME--VARIANT.jinja for the template that data.chat_template calls NAME
(of chat_template in tokenizer_config.json, or chat_template.jinja). They are not kept here: of each its digest is, by
which it is recognised, and a check sum of what it makes of every conversation, with and without the generation prompt;
null where it refuses. All variants of a name must make the same. A variant that ends in "rules" has a family's rules, not
its published text, and gives no digest. Needs transformers 5 and jinja2.
"""
import collections
import datetime
import os
import random
from unittest import mock

from transformers.utils import chat_template_utils

from .archive import golden_path
from .conversations import PARTS, text
from .tokenizer_cases import reference, write

THINKING = ["<think>", "</think>", "\n", "\n\n", "<think>\nhm\n</think>\n\n", "<tool_response>", "</tool_response>",
            "/think", "/no_think", "/system_override", "<think>a</think>b</think>"]


NEEDED_OPTION = "templates"                # the option without which nothing can be made


def fnv(data):
    value = 0x811C9DC5
    for byte in data.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def digest(jinja):
    value = 0xCBF29CE484222325
    for byte in jinja.replace("\\n", "\n").encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def conversation(rng):
    parts = PARTS + THINKING if rng.random() < 0.5 else PARTS
    messages = [{"role": "system", "content": text(rng, parts)}] if rng.random() < 0.4 else []
    if rng.random() < 0.8:
        for turn in range(rng.randint(1, 7)):
            messages.append({"role": ("user", "assistant")[turn % 2], "content": text(rng, parts)})
        return messages
    for _ in range(rng.randint(1, 5)):
        messages.append({"role": rng.choice(["system", "user", "assistant"]), "content": text(rng, parts)})
    return messages


class Day(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 1, 9)


def rendered(tokenizer, name, jinja, messages, generation):
    # Gemma's texts make a turn of "system" of one in an assistant's place, which no model of theirs has seen.
    if name.startswith("gemma") and any(message["role"] == "system" for message in messages[1:]):
        return None
    try:
        return fnv(tokenizer.apply_chat_template(messages, chat_template=jinja, tokenize=False, date_string="09 Jan 2025",
                                                 add_generation_prompt=generation))
    except Exception as error:  # raise_exception of a template
        if "TemplateError" not in type(error).__name__:
            raise
        return None


def make(folder, options):
    rng = random.Random(28)
    conversations = [conversation(rng) for _ in range(160)]
    tokenizer = reference(golden_path("tokenizer/llama_class"))
    families = collections.defaultdict(lambda: {"digests": [], "sums": None})
    with mock.patch.object(chat_template_utils, "datetime", Day):
        for file in sorted(os.listdir(options.templates)):
            name, variant = file.removesuffix(".jinja").split("--")
            with open(os.path.join(options.templates, file), encoding="utf-8") as opened:
                jinja = opened.read()
            if not variant.endswith("rules"):
                families[name]["digests"].append(f"0x{digest(jinja):016X}")
            sums = [[rendered(tokenizer, name, jinja, messages, generation) for generation in (False, True)]
                    for messages in conversations]
            if families[name]["sums"] is None:
                families[name]["sums"] = sums
            different = sum(a != b for a, b in zip(sums, families[name]["sums"]))
            refused = sum(one[0] is None for one in sums)
            print(f"{file}: digest 0x{digest(jinja):016X}, {refused} refused, {different} unlike the first variant's")
    write(os.path.join(folder, "families.json"), {"date": "2025-01-09", "conversations": conversations,
                                                    "families": families})
