"""Random tiny models with a T5 (T5 itself, BLIP-2, InstructBLIP): configurations, weights, records of prompts and answers, and
the results of transformers."""
import json
import random

import torch
import transformers

from blipft_golden.archive import copy_tokenizer
from blipft_golden.reference import exact, load
from blipft_golden.t5 import CLASSES, write_blip_of, write_model

from .runs import BATCH, WORDS, gradients_of, round_once, write_lines


def of_t5(pick, vocabulary):
    """A config.json: original ones (relu, one matrix for both ends), T5 v1.1's, and what transformers 5 writes."""
    form = pick.choice(["relu", "gelu", "gated-gelu", "gated-gelu", "gated-silu", "gated-relu"])
    buckets = pick.choice([4, 8, 12, 32, 64])
    config = dict(vocab_size=vocabulary + pick.randint(0, 9), d_model=pick.randint(8, 40), d_kv=pick.choice([1, 3, 5, 8, 13, 16, 33]),
                  d_ff=pick.randint(9, 70), num_layers=pick.randint(1, 3), num_heads=pick.randint(1, 4),
                  relative_attention_num_buckets=buckets,
                  relative_attention_max_distance=buckets // 2 + pick.choice([1, 2, 5, 20, 100]), dropout_rate=0.1,
                  layer_norm_epsilon=pick.choice([1e-5, 1e-6]), feed_forward_proj=form, is_encoder_decoder=True,
                  pad_token_id=0, eos_token_id=1, decoder_start_token_id=pick.choice([0, 0, 0, 3]))
    if pick.random() < 0.5:
        config["num_decoder_layers"] = pick.randint(1, 3)
    if form == "gated-gelu" and pick.random() < 0.5:
        config["dense_act_fn"] = "gelu"
    own_head = pick.random() < 0.5
    if own_head:
        config.update(pick.choice([dict(tie_word_embeddings=False),
                                   dict(tie_word_embeddings=True, scale_decoder_outputs=False)]))
    elif pick.random() < 0.3:
        config["tie_word_embeddings"] = True
    return config, own_head


def batch_of(tokenizer, records, tokens):
    """Texts as blipft reads them: each side is cut to max_text_tokens rows, with the decoder's start."""
    def encode(text, most):
        return tokenizer(text, truncation=True, max_length=most).input_ids
    sources = [encode(record["prompt"], tokens) for record in records]
    answers = [encode(record["completion"], tokens - 1) for record in records]
    def padded(rows, value):
        most = max(map(len, rows))
        return torch.tensor([row + [value] * (most - len(row)) for row in rows])
    return dict(input_ids=padded(sources, 0), attention_mask=padded([[1] * len(row) for row in sources], 0),
                labels=padded(answers, -100))


def tokenizer_of(folder):
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="</s>", pad_token="<pad>")


class T5:
    """The interface of a family in families.py."""
    tokens_of_tokenizer = 138
    data, has_steps = "texts.jsonl", True
    model_class = transformers.T5ForConditionalGeneration

    def __init__(self, tokens):
        self.tokens = tokens

    def make_folder(self, folder, seed):
        pick = random.Random(f"t5 {seed}")
        values, own_head = of_t5(pick, self.tokens_of_tokenizer)
        write_model(folder / "model", values, own_head, torch.Generator().manual_seed(seed))
        copy_tokenizer("t5", folder / "model")
        records = [dict(prompt=self._text(pick, 0, 7), completion=self._text(pick, 1, 5)) for _ in range(BATCH)]
        write_lines(folder / self.data, records)
        return dict(values, own_head=own_head), records, pick

    def _text(self, pick, least, most):
        return " ".join(pick.choice(WORDS) for _ in range(pick.randint(least, most)))

    def load(self, folder, dtype):
        return load(self.model_class, folder, dtype)

    def _batch(self, folder, records):
        return batch_of(tokenizer_of(folder / "model"), records, self.tokens)

    def run(self, folder, records, dtype, rounding_seed=None, place="model"):
        """Loss, gradients and the longest text."""
        batch = self._batch(folder, records)
        if "pixel_values" in batch:
            batch["pixel_values"] = batch["pixel_values"].to(dtype)
        with exact("T5", dtype):
            model = self.load(folder / place, dtype)
            if rounding_seed is not None:
                round_once(model, rounding_seed)
            loss = model(**batch).loss
            loss.backward()
        longest = max(batch["input_ids"].shape[1], batch["labels"].shape[1])
        return loss.item(), gradients_of(model), longest

    def train(self, folder, records, steps, lr):
        """Losses of `steps` steps of SGD in float64, and the parameters after them."""
        batch, losses = self._batch(folder, records), []
        with exact("T5"):
            model = self.load(folder / "model", torch.float64)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            for _ in range(steps):
                optimizer.zero_grad()
                loss = model(**batch).loss
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            losses.append(model(**batch).loss.item())
        return losses, {key: p.detach() for key, p in model.named_parameters()}

SIDE = 28                                  # of pictures


BERT_IDS = 287                             # of test/golden/tokenizer/bert


def write_blip(kind, folder, pick, vocabulary, generator, **of_text):
    """A random tiny BLIP-2 or InstructBLIP with a T5."""
    values, own_head = of_t5(pick, vocabulary)
    values.update(model_type="t5", **of_text)
    heads, hidden = pick.choice([(1, 12), (2, 16), (3, 30)])
    qformer_heads, qformer_hidden = pick.choice([(1, 10), (2, 24), (4, 32)])
    words = dict(vocab_size=50)
    if kind == "instructblip":
        words = dict(vocab_size=BERT_IDS + pick.randint(0, 9), max_position_embeddings=pick.choice([64, 90]),
                     pad_token_id=pick.choice([0, 0, 5]))
    vision = dict(hidden_size=hidden, intermediate_size=pick.randint(9, 50), num_hidden_layers=pick.randint(1, 2),
                  num_attention_heads=heads, image_size=SIDE, patch_size=pick.choice([7, 14]))
    qformer = dict(hidden_size=qformer_hidden, num_hidden_layers=pick.randint(1, 3), num_attention_heads=qformer_heads,
                   intermediate_size=pick.randint(9, 50), **words, cross_attention_frequency=pick.randint(1, 2))
    queries = pick.randint(1, 9)
    write_blip_of(kind, folder, dict(vision_config=vision, qformer_config=qformer, text_config=values,
                                     num_query_tokens=queries, image_token_index=vocabulary - 1), own_head, generator)
    return dict(values, own_head=own_head, vision=hidden, queries=queries)


class Blip2T5(T5):
    """BLIP-2 with a T5: pictures with a prompt and an answer."""
    data, kind = "pictures", "blip2"
    model_class = CLASSES["blip2"][1]

    def make_folder(self, folder, seed):
        import numpy
        from PIL import Image
        pick = random.Random(f"{self.kind}_t5 {seed}")
        values = write_blip(self.kind, folder / "model", pick, self.tokens_of_tokenizer, torch.Generator().manual_seed(seed))
        copy_tokenizer("t5", folder / "model")
        self._add_to_folder(folder)
        (folder / self.data).mkdir()
        records = []
        for i in range(BATCH):
            pixels = numpy.frombuffer(pick.randbytes(SIDE * SIDE * 3), numpy.uint8).reshape(SIDE, SIDE, 3)
            Image.fromarray(pixels).save(folder / self.data / f"{i}.png")
            records.append(dict(file_name=f"{i}.png", prompt=self._text(pick, 1, 7), answer=self._text(pick, 1, 5)))
        write_lines(folder / self.data / "metadata.jsonl", records)
        return values, records, pick

    def _add_to_folder(self, folder):
        pass

    def _batch(self, folder, records):
        import numpy
        from PIL import Image
        texts = [dict(prompt=record["prompt"], completion=record["answer"]) for record in records]
        batch = batch_of(tokenizer_of(folder / "model"), texts, self.tokens)
        config = json.loads((folder / "model/config.json").read_text())
        image = torch.full((len(records), config["num_query_tokens"]), config["image_token_index"])
        batch["input_ids"] = torch.cat([image, batch["input_ids"]], 1)
        batch["attention_mask"] = torch.cat([torch.ones_like(image), batch["attention_mask"]], 1)
        pixels = [numpy.array(Image.open(folder / self.data / record["file_name"])) for record in records]
        batch["pixel_values"] = torch.tensor(numpy.stack(pixels)).permute(0, 3, 1, 2).double() / 255 * 2 - 1
        return batch


class InstructBlipT5(Blip2T5):
    """InstructBLIP with a T5: its Q-Former reads the prompts too, with its own tokenizer."""
    kind, model_class = "instructblip", CLASSES["instructblip"][1]

    def _add_to_folder(self, folder):
        copy_tokenizer("bert", folder / "model/qformer_tokenizer")

    def _batch(self, folder, records):
        batch = super()._batch(folder, records)
        bert = transformers.AutoTokenizer.from_pretrained(folder / "model/qformer_tokenizer")
        ids = [bert(record["prompt"]).input_ids for record in records]
        ids = [row if len(row) <= self.tokens else row[:self.tokens - 1] + row[-1:] for row in ids]
        most = max(map(len, ids))
        batch["qformer_input_ids"] = torch.tensor([row + [0] * (most - len(row)) for row in ids])
        batch["qformer_attention_mask"] = torch.tensor([[1] * len(row) + [0] * (most - len(row)) for row in ids])
        return batch
