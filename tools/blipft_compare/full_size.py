"""The results of transformers for a batch that blipft trains on: loss, gradient norm, losses of the first steps.

  tools/compare.py transformers MODEL_DIR DATA_DIR --batch 16 --precision 32-true --grad-norm
  tools/compare.py transformers MODEL_DIR DATA_DIR --batch 16 --precision bf16-true --steps 5 --lr 2e-5
  tools/compare.py transformers MODEL_DIR DATA_DIR --batch 16 --precision bf16-true --saved runs/run/model

MODEL_DIR is a BLIP-2 or a causal language model (llama, qwen3, gemma2 ...), which reads the texts alone.
DATA_DIR is an ImageFolder: metadata.jsonl with {"file_name", "text"}. Step s takes rows s * batch, s * batch + 1, ...
in the file's order and begins again when a whole batch is no longer left. Pictures are decoded as `datasets` does it
(by `datasets` itself where it is installed: turned by their EXIF orientation) and go through the transformers image
processor (PIL; from 5.23 on it puts transparency on white, before it leaves it out), captions through the tokenizer:
for BLIP-2 </s> + text, else as the tokenizer's files say, cut to --max-text-tokens ids, padded to the batch's longest.
The model sees the image tokens, then the text; every text id but the first is a label; padding is not
(--loss-on-padding: it is). The model is in eval mode (no dropout), attention is PyTorch's, TF32 is off.

blipft does the same with (one rank; any strategy and world with the same number of samples a step will do):

  blipft RUN.yaml model.path=MODEL_DIR data.path=DATA_DIR data.shuffle=false train.dropout=false \
    train.batch_size=16 train.accumulate_grad_batches=1 train.precision=32-true train.max_steps=5 train.lr=2e-5 \
    [train.loss_on_padding=true] [output.save_model=true]

Its loss and gradient norm of step 0 (printed, and /steps of the trace) stand beside "loss" and "grad_norm" here, those
of step s beside losses[s] and grad_norms[s] (--steps). After a run with output.save_model, --saved DIR loads what
blipft wrote (any key missing or too many is an error), and prints the loss on the batch of step 0 as "saved_loss": it
must equal, to rounding, this script's own loss after as many --steps ("final_loss").
Beside transformers before 5.23 a picture with transparency needs data.transparency=drop there.
In 32-true expect agreement to about 1e-5 relative, in bf16-true to about 1e-2: two orders of summation, 8 bits.
With --loss-on-padding the gradient norms differ a little by design of torch: an Embedding with padding_idx drops the
gradient of the padding id's row.

Prints one JSON line. Needs torch and transformers, for BLIP-2 also PIL.
"""
import argparse
import json
import os

import torch
import transformers
from transformers import (AutoConfig, AutoModelForCausalLM, AutoTokenizer, Blip2ForConditionalGeneration,
                          GPT2Tokenizer)

PRECISIONS = {"32-true": torch.float32, "bf16-true": torch.bfloat16}


def read_rows(directory):
    path = os.path.join(directory, "metadata.jsonl")
    rows, number = [], 0
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict) or "file_name" not in row or "text" not in row:
                    raise SystemExit(f"{path}:{number}: found {line.strip()[:80]}, expected file_name and text")
                rows.append(row)
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}; DATA_DIR is a folder that holds metadata.jsonl")
    except ValueError as error:
        raise SystemExit(f"{path}:{number}: no JSON: {error}")
    return rows


def rows_of_step(arguments, rows):
    if arguments.batch > len(rows):
        raise SystemExit(f"{arguments.data}: {len(rows)} samples, --batch {arguments.batch} needs more")
    if not arguments.samples:
        return range(arguments.batch)
    try:
        chosen = [int(number) for number in arguments.samples.split(",")]
    except ValueError:
        raise SystemExit(f"--samples {arguments.samples}: expected row numbers, as 7,3,12")
    for number in chosen:
        if not 0 <= number < len(rows):
            raise SystemExit(f"--samples {arguments.samples}: row {number} is not in {arguments.data}, which has {len(rows)}")
    return chosen


def load_processor(directory):
    """The image processor on PIL: the default one would resize with torchvision, whose pixels differ."""
    try:
        from transformers import BlipImageProcessorPil as Processor
    except ImportError:  # before 5.x the class of this name was the PIL one
        from transformers import BlipImageProcessor as Processor
    return Processor.from_pretrained(directory)


def reads_pictures(model):
    return model.config.model_type == "blip-2"


def load_language_tokenizer(directory):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    if tokenizer.pad_token is None:  # its value does not matter
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.bos_token
    return tokenizer


def load_tokenizer(directory):
    if os.path.exists(os.path.join(directory, "tokenizer_config.json")):
        tokenizer = AutoTokenizer.from_pretrained(directory)
    else:
        tokenizer = GPT2Tokenizer(vocab=os.path.join(directory, "vocab.json"),
                                  merges=os.path.join(directory, "merges.txt"), bos_token="</s>", eos_token="</s>",
                                  unk_token="</s>", pad_token="<pad>", add_bos_token=True)
    if tokenizer("a").input_ids[0] != 2 or tokenizer.pad_token_id != 1:
        raise SystemExit(f"{directory}: texts start with id {tokenizer('a').input_ids[0]}, padding is "
                         f"{tokenizer.pad_token_id}; OPT needs 2 and 1")
    return tokenizer


def load_model(directory, arguments):
    pictures = AutoConfig.from_pretrained(directory).model_type == "blip-2"
    model, report = (Blip2ForConditionalGeneration if pictures else AutoModelForCausalLM).from_pretrained(
        directory, dtype=PRECISIONS[arguments.precision], attn_implementation=arguments.attention,
        output_loading_info=True)
    wrong = {key: sorted(value) for key, value in report.items() if value}
    if wrong:
        raise SystemExit(f"{directory}: {wrong}")
    if pictures and model.config.image_token_id is None:  # from before the image token; the id is only a marker
        model.config.image_token_id = model.config.text_config.vocab_size - 1
    return model.to(arguments.device).eval()


def load_picture(path):
    """As load_dataset("imagefolder") gives it: in the file's own mode, turned by its EXIF orientation."""
    from PIL import Image, ImageOps
    try:
        from datasets import Image as Decoder
        return Decoder().decode_example({"path": path, "bytes": None})
    except ImportError:
        picture = Image.open(path)
        picture.load()
        return ImageOps.exif_transpose(picture) if picture.getexif().get(0x0112) is not None else picture


def make_batch(rows, model, processor, tokenizer, arguments):
    text = tokenizer([row["text"] for row in rows], padding="longest", truncation=True, padding_side="right",
                     max_length=arguments.max_text_tokens, return_tensors="pt")
    labels = text.input_ids.clone()
    if not arguments.loss_on_padding:
        labels[text.attention_mask == 0] = -100
    labels[:, 0] = -100  # the first id is given and no label
    if not reads_pictures(model):
        batch = dict(input_ids=text.input_ids, attention_mask=text.attention_mask, labels=labels)
        return {key: value.to(arguments.device) for key, value in batch.items()}
    pictures = [load_picture(os.path.join(arguments.data, row["file_name"])) for row in rows]
    pixels = processor(images=pictures, return_tensors="pt").pixel_values
    image = torch.full((len(rows), model.config.num_query_tokens), model.config.image_token_id)
    batch = dict(pixel_values=pixels.to(model.dtype), input_ids=torch.cat([image, text.input_ids], 1),
                 attention_mask=torch.cat([torch.ones_like(image), text.attention_mask], 1),
                 labels=torch.cat([torch.full_like(image, -100), labels], 1))
    return {key: value.to(arguments.device) for key, value in batch.items()}


def gradient_norm(model):
    squares = [p.grad.float().square().sum().double() for p in model.parameters() if p.grad is not None]
    return torch.stack(squares).sum().sqrt().item()


def loss_only(model, batch):
    with torch.no_grad():
        return model(**batch, use_cache=False).loss.item()


def train(model, batches, first, arguments, result):
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=arguments.weight_decay)
    losses, norms = [], []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        losses.append(loss.item())
        norms.append(gradient_norm(model))
        optimizer.step()
    result.update(losses=losses, grad_norms=norms, final_loss=loss_only(model, first))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL_DIR")
    parser.add_argument("data", metavar="DATA_DIR")
    parser.add_argument("--batch", type=int, default=16, help="samples of one step")
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="32-true")
    parser.add_argument("--grad-norm", action="store_true", help="backward too")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--samples-in-order", action="store_true", help="rows 0, 1, 2, ... (this is the default)")
    order.add_argument("--samples", help="rows of step 0 instead, as 7,3,12")
    parser.add_argument("--max-text-tokens", type=int, default=50)
    parser.add_argument("--loss-on-padding", action="store_true")
    parser.add_argument("--steps", type=int, default=0, help="train this many AdamW steps")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--saved", metavar="DIR", help="model that blipft saved: its loss on the batch of step 0")
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", metavar="FILE", help="write the line there too")
    arguments = parser.parse_args()
    # The patch embedding is a convolution, and cuDNN would run it in TF32.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    rows = read_rows(arguments.data)
    size = arguments.batch
    chosen = rows_of_step(arguments, rows)
    if not os.path.exists(os.path.join(arguments.model, "config.json")):
        raise SystemExit(f"{arguments.model}: no config.json there; MODEL_DIR is a folder that save_pretrained wrote")
    model = load_model(arguments.model, arguments)
    pictures = reads_pictures(model)
    processor = load_processor(arguments.model) if pictures else None
    tokenizer = (load_tokenizer if pictures else load_language_tokenizer)(arguments.model)

    def batch_of(indices):
        return make_batch([rows[i] for i in indices], model, processor, tokenizer, arguments)
    first = batch_of(chosen)
    result = dict(model=arguments.model, samples=len(chosen), precision=arguments.precision, device=arguments.device,
                  text_tokens=first["input_ids"].shape[1] - (model.config.num_query_tokens if pictures else 0),
                  labels=int((first["labels"] >= 0).sum()), loss_on_padding=arguments.loss_on_padding,
                  torch=torch.__version__, transformers=transformers.__version__)
    if arguments.grad_norm:
        loss = model(**first, use_cache=False).loss
        loss.backward()
        result.update(loss=loss.item(), grad_norm=gradient_norm(model))
    else:
        result["loss"] = loss_only(model, first)
    if arguments.steps:
        cycle = len(rows) // size
        batches = (first if s == 0 else batch_of(range(s % cycle * size, s % cycle * size + size))
                   for s in range(arguments.steps))
        train(model, batches, first, arguments, result)
    if arguments.saved:
        del model
        result["saved_loss"] = loss_only(load_model(arguments.saved, arguments), first)
    line = json.dumps(result)
    print(line)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(line + "\n")

