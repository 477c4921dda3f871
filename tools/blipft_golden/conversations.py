"""Conversations and instructions, with their ids and labels.

Conversations go through transformers' apply_chat_template with the published templates of llama2, llama3, chatml and
zephyr; the labels are its return_assistant_tokens_mask with {% generation %} around what an assistant says
and the token that ends its turn. Instructions become ids as in LitGPT 0.5.13 (SFTDataset with the prompt style Alpaca),
whose few lines stand below. LitGPT takes tokenizer.json as it is; so do the sums of the real instructions of the shared data.
Random instructions use the tokenizer that AutoTokenizer makes of LLaMA's, which reads a space before a text
and a literal "\u2581" otherwise. Conversations and instructions are random; of the rest only check sums are written.
Needs transformers 5, tokenizers and jinja2.
"""
import json
import os
import random

from tokenizers import Tokenizer

from .archive import golden_path
from .tokenizer_cases import checksum, reference, write

SYSTEM_FIRST = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
                "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}"
                "{% endif %}")
PUBLISHED = {
    "llama2": SYSTEM_FIRST + (
        r"{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        r"{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        r"{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + system_message + "
        r"'\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
        r"{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        r"{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}"
        r"{% endfor %}"),
    "llama3": (
        r"{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
        r"message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 "
        r"%}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
        r"{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"),
    "chatml": (
        r"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
        r"'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"),
    "zephyr": (
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
        "{{ '<|user|>\\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
        "{{ '<|system|>\\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
        "{{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"),
}
# The template with {% generation %} around the labels. "\n" as an expression: a line end behind a block is dropped.
MARKED = {
    "llama2": PUBLISHED["llama2"].replace(r"{{ ' '  + content.strip() + ' ' + eos_token }}",
                                          r"{% generation %}{{ ' '  + content.strip() + ' ' + eos_token }}"
                                          r"{% endgeneration %}"),
    "llama3": (
        r"{% for message in messages %}{% if loop.index0 == 0 %}{{ bos_token }}{% endif %}"
        r"{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}{% if message['role'] == 'assistant' %}"
        r"{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{% else %}"
        r"{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"),
    "chatml": (
        r"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}"
        r"{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
        r"{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"),
    "zephyr": (
        r"{% for message in messages %}{{ '<|' + message['role'] + '|>\n' }}{% if message['role'] == 'assistant' %}"
        r"{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{% else %}"
        r"{{ message['content'] + eos_token }}{% endif %}{{ '\n' }}{% endfor %}"),
}
NEEDS = {"llama2": ("bos_token", "eos_token"), "llama3": ("bos_token",), "chatml": (), "zephyr": ("eos_token",)}
PARTS = ["a", "the", "Hello", "World", " red", " ", "  ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\x1c", "'s",
         "'LL", "!", "...", "1", "12345", "\u0663", "\u00bd", "\u00e9", "e\u0301", "\u0301", "\u4e2d\u6587", "\u0645",
         "\U0001f600", "\U0001f468\u200d\U0001f469", "\u200b", "</s>", "<s>", "<unk>", "[INST]", " [/INST] ",
         "<<SYS>>", "<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|assistant|>", "<", ">", "_", "\u2581", "\ufffd",
         "\u1100\u1161", "\uac00\u11a8", "\ud55c", "{% if x %}", "{{ y }}", "\"", "\\n", "&amp;", "```py\nx = 1\n```",
         "the quick brown fox", "caf\u00e9 au lait"]
PLAIN_PARTS = [part for part in PARTS if not part.strip().startswith("<") and "[" not in part]


def text(rng, parts, most=12):
    return "".join(rng.choice(parts) for _ in range(rng.choice([0, 1, 1, 2, rng.randint(1, most)])))


def conversation(rng):
    messages = [{"role": "system", "content": text(rng, PARTS)}] if rng.random() < 0.4 else []
    if rng.random() < 0.8:
        for turn in range(rng.randint(1, 7)):
            messages.append({"role": ("user", "assistant")[turn % 2], "content": text(rng, PARTS)})
        return messages
    for _ in range(rng.randint(1, 5)):
        messages.append({"role": rng.choice(["system", "user", "assistant"]), "content": text(rng, PARTS)})
    return messages


def takes_turns(messages):
    rest = messages[1:] if messages[0]["role"] == "system" else messages
    return all(message["role"] == ("user", "assistant")[i % 2] for i, message in enumerate(rest))


def chat_sum(tokenizer, name, messages):
    """Check sum of 2 * id + is_label; null where the template does not take the messages."""
    if name == "llama2" and not takes_turns(messages):
        return None
    rendered = tokenizer.apply_chat_template(messages, chat_template=PUBLISHED[name], tokenize=False)
    assert rendered == tokenizer.apply_chat_template(messages, chat_template=MARKED[name], tokenize=False), messages
    out = tokenizer.apply_chat_template(messages, chat_template=MARKED[name], tokenize=True, return_dict=True,
                                        return_assistant_tokens_mask=True)
    same = tokenizer.apply_chat_template(messages, chat_template=PUBLISHED[name], tokenize=True, return_dict=True)
    assert out["input_ids"] == same["input_ids"], messages
    return checksum([2 * i + m for i, m in zip(out["input_ids"], out["assistant_masks"])])


# LitGPT 0.5.13: prompts.py, Alpaca.apply
def alpaca(instruction, given):
    if given:
        return ("Below is an instruction that describes a task, paired with an input that provides further context. "
                "Write a response that appropriately completes the request.\n\n"
                f"### Instruction:\n{instruction}\n\n### Input:\n{given}\n\n### Response:\n")
    return ("Below is an instruction that describes a task. "
            "Write a response that appropriately completes the request.\n\n"
            f"### Instruction:\n{instruction}\n\n### Response:\n")


class LitTokenizer:
    """LitGPT 0.5.13: tokenizer.py, with the Hugging Face backend."""

    def __init__(self, processor, bos, eos):
        self.processor = processor
        self.bos_id, self.eos_id = self.processor.token_to_id(bos), self.processor.token_to_id(eos)

    def encode(self, string, bos=True, eos=False, max_length=-1):
        tokens = self.processor.encode(string).ids
        if bos:
            if not tokens or tokens[0] != self.bos_id:
                tokens = [self.bos_id] + tokens
        elif tokens and tokens[0] == self.bos_id:
            tokens = tokens[1:]
        if eos and (not tokens or tokens[-1] != self.eos_id):
            tokens = tokens + [self.eos_id]
        elif not eos and tokens and tokens[-1] == self.eos_id:
            tokens = tokens[:-1]
        return tokens[:max_length] if max_length > 0 else tokens


# LitGPT 0.5.13: data/base.py, SFTDataset.__getitem__; learnt instead of labels
def litgpt_sum(tokenizer, record, mask_prompt, max_seq_length):
    prompt = tokenizer.encode(alpaca(record["instruction"], record.get("input")), max_length=max_seq_length)
    response = tokenizer.encode(record["output"], bos=False, eos=True, max_length=max_seq_length)
    ids = (prompt + response)[:max_seq_length]
    learnt = [int(not mask_prompt or i >= len(prompt)) for i in range(len(ids))]
    return checksum([2 * i + m for i, m in zip(ids, learnt)])


def records_of(path, limit):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in list(lines)[:limit]]


def make(folder, options):
    rng = random.Random(16)
    paths = {name: str(golden_path(f"tokenizer/{name}")) for name in ("byte_fallback", "llama_class", "llama3", "qwen2")}
    shared = {name: os.path.join(options.shared, "data/tokenizers", name) for name in ("llama", "open_llama")}

    conversations = [conversation(rng) for _ in range(400)]
    sums = {}
    for name, path in {**paths, **shared}.items():
        tokenizer = reference(path)
        sums[name] = {template: [chat_sum(tokenizer, template, messages) for messages in conversations]
                      for template in PUBLISHED if all(getattr(tokenizer, token) for token in NEEDS[template])}
        print(name, {template: len(values) for template, values in sums[name].items()})
    write(os.path.join(folder, "chat.json"),
          {"published": PUBLISHED, "conversations": conversations, "sums": sums})

    records = [{"instruction": text(rng, PLAIN_PARTS), "input": text(rng, PLAIN_PARTS), "output": text(rng, PLAIN_PARTS)}
               for _ in range(200)]
    files = {name: records_of(os.path.join(options.shared, "data/instructions", name), 400)
             for name in ("alpaca.jsonl", "dolly.jsonl")}
    sums = {}
    for name, path in {"llama3": paths["llama3"], **shared}.items():
        bos, eos = ("<|begin_of_text|>", "<|eot_id|>") if name == "llama3" else ("<s>", "</s>")
        tokenizer = LitTokenizer(Tokenizer.from_file(os.path.join(path, "tokenizer.json")), bos, eos)
        automatic = LitTokenizer(reference(path).backend_tokenizer, bos, eos)
        sums[name] = [{"mask_prompt": mask, "max_seq_length": length,
                       "random": [litgpt_sum(automatic, record, mask, length) for record in records],
                       "files": {} if name == "llama3" else {
                           file: [litgpt_sum(tokenizer, record, mask, length) for record in read]
                           for file, read in files.items()}}
                      for mask in (False, True) for length in (64, 512)]
    write(os.path.join(folder, "alpaca.json"), {"records": records, "sums": sums})
