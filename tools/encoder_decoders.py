"""Random tiny models with a T5 (T5 itself, BLIP-2, InstructBLIP) for compare_families.py and compare_generation.py:
configurations, weights, records of prompts and answers, and what transformers makes of them. Needs torch and transformers."""
import contextlib
import json
import math
import random
import shutil

import torch
import transformers
from safetensors.torch import save_file
from transformers.models.t5 import modeling_t5


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


def fill(model, generator):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif "relative_attention_bias" in name:
                parameter.copy_(0.7 * noise)
            elif name.endswith("shared.weight"):
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * (1.2 / math.sqrt(parameter.shape[1])))
            if name.endswith(".q.weight"):       # whose scores are not scaled down
                parameter.mul_(1.5 / math.sqrt(model.config.d_kv))
    return model


def write_model(folder, values, own_head, generator, dtype=torch.float32):
    """A checkpoint as the hub has them: config.json with what is given, and the head where it has one of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    model = fill(transformers.T5ForConditionalGeneration(transformers.T5Config(**values)), generator)
    tensors = {key: value.clone() for key, value in model.state_dict().items()
               if key != "lm_head.weight" and "embed_tokens" not in key}
    if own_head:
        tensors["lm_head.weight"] = torch.randn(tensors["shared.weight"].shape, generator=generator) / math.sqrt(values["d_model"])
    tensors = {key: value.to(dtype) for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(values, model_type="t5", architectures=["T5ForConditionalGeneration"])))


def exact_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


@contextlib.contextmanager
def exact(dtype):
    """While open, norms are computed in float64 where their input is."""
    old = modeling_t5.T5LayerNorm.forward
    if dtype == torch.float64:
        modeling_t5.T5LayerNorm.forward = exact_norm
    try:
        yield
    finally:
        modeling_t5.T5LayerNorm.forward = old


def load(folder, dtype):
    model, report = transformers.T5ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {key: sorted(value) for key, value in report.items() if value}
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    return model.to(dtype).eval()


def batch_of(tokenizer, records, tokens):
    """As blipft reads them: each side cut to so many rows, of which the decoder's start is one."""
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
    """What compare_families.py asks of a family."""
    tokens_of_tokenizer = 138
    data = "texts.jsonl"

    def __init__(self, root, words, batch, tokens):
        self.root, self.words, self.batch, self.tokens = root, words, batch, tokens

    def make_folder(self, folder, seed):
        pick = random.Random(f"t5 {seed}")
        values, own_head = of_t5(pick, self.tokens_of_tokenizer)
        write_model(folder / "model", values, own_head, torch.Generator().manual_seed(seed))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(self.root / "test/golden/tokenizer/t5" / file, folder / "model" / file)
        records = [dict(prompt=self._text(pick, 0, 7), completion=self._text(pick, 1, 5)) for _ in range(self.batch)]
        (folder / self.data).write_text("".join(json.dumps(record) + "\n" for record in records))
        return dict(values, own_head=own_head), records, pick

    def _text(self, pick, least, most):
        return " ".join(pick.choice(self.words) for _ in range(pick.randint(least, most)))

    def _load(self, folder, dtype):
        return load(folder, dtype)

    def _batch(self, folder, records):
        return batch_of(tokenizer_of(folder / "model"), records, self.tokens)

    def run(self, folder, records, dtype, rounding_seed=None, place="model"):
        """Loss, gradients and the longest text."""
        batch = self._batch(folder, records)
        if "pixel_values" in batch:
            batch["pixel_values"] = batch["pixel_values"].to(dtype)
        with exact(dtype):
            model = self._load(folder / place, dtype)
            if rounding_seed is not None:
                generator = torch.Generator().manual_seed(rounding_seed)
                with torch.no_grad():
                    for p in model.parameters():
                        p.mul_(1 + 2 ** -24 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
            loss = model(**batch).loss
            loss.backward()
        longest = max(batch["input_ids"].shape[1], batch["labels"].shape[1])
        gradients = {key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in model.named_parameters()}
        return loss.item(), {key: g.double() for key, g in gradients.items()}, longest

    def train(self, folder, records, steps, lr):
        """Losses of so many steps of SGD in float64, and the parameters after them."""
        batch, losses = self._batch(folder, records), []
        with exact(torch.float64):
            model = self._load(folder / "model", torch.float64)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            for _ in range(steps):
                optimizer.zero_grad()
                loss = model(**batch).loss
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            losses.append(model(**batch).loss.item())
        return losses, {key: p.detach() for key, p in model.named_parameters()}

    def parameters(self, folder, place):
        return dict(self._load(folder / place, torch.float64).named_parameters())


SIDE = 28                                  # of pictures


CLASSES = {"blip2": (transformers.Blip2Config, transformers.Blip2ForConditionalGeneration),
           "instructblip": (transformers.InstructBlipConfig, transformers.InstructBlipForConditionalGeneration)}
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


def write_blip_of(kind, folder, settings, own_head, generator, dtype=torch.float32):
    """One of such settings, with random weights, as the hub has them."""
    config_class, model_class = CLASSES[kind]
    values, side = settings["text_config"], settings["vision_config"]["image_size"]
    qformer = dict(settings["qformer_config"], encoder_hidden_size=settings["vision_config"]["hidden_size"])
    config = config_class(**dict(settings, qformer_config=qformer))
    model = model_class(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if not name.startswith("language_model."):
                norm = "norm" in name.lower() and name.endswith("weight")
                parameter.copy_(1 + 0.2 * noise if norm else 0.1 * noise if parameter.dim() == 1
                                else noise * (1.2 / math.sqrt(parameter[0].numel())))
    fill(model.language_model, generator)
    tensors = {key: value.clone() for key, value in model.state_dict().items()
               if not key.endswith("lm_head.weight") and ".embed_tokens." not in key}
    if own_head:
        shape = tensors["language_model.shared.weight"].shape
        tensors["language_model.lm_head.weight"] = torch.randn(shape, generator=generator) / math.sqrt(values["d_model"])
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.to(dtype) for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    written = config.to_dict()
    written["text_config"] = values
    (folder / "config.json").write_text(json.dumps(dict(written, architectures=[model_class.__name__])))
    (folder / "preprocessor_config.json").write_text(json.dumps(
        {"size": {"height": side, "width": side}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}))


def load_blip(kind, folder, dtype):
    model, report = CLASSES[kind][1].from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {key: sorted(value) for key, value in report.items() if value}
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    return model.to(dtype).eval()


class Blip2T5(T5):
    """The same behind a picture: pictures with a prompt and an answer."""
    data, kind = "pictures", "blip2"

    def make_folder(self, folder, seed):
        import numpy
        from PIL import Image
        pick = random.Random(f"{self.kind}_t5 {seed}")
        values = write_blip(self.kind, folder / "model", pick, self.tokens_of_tokenizer, torch.Generator().manual_seed(seed))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(self.root / "test/golden/tokenizer/t5" / file, folder / "model" / file)
        self._add_to_folder(folder)
        (folder / self.data).mkdir()
        records = []
        for i in range(self.batch):
            pixels = numpy.frombuffer(pick.randbytes(SIDE * SIDE * 3), numpy.uint8).reshape(SIDE, SIDE, 3)
            Image.fromarray(pixels).save(folder / self.data / f"{i}.png")
            records.append(dict(file_name=f"{i}.png", prompt=self._text(pick, 1, 7), answer=self._text(pick, 1, 5)))
        (folder / self.data / "metadata.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
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

    def _load(self, folder, dtype):
        return load_blip(self.kind, folder, dtype)


class InstructBlipT5(Blip2T5):
    """The same with a Q-Former that reads the prompts, by a tokenizer of its own."""
    kind = "instructblip"

    def _add_to_folder(self, folder):
        shutil.copytree(self.root / "test/golden/tokenizer/bert", folder / "model/qformer_tokenizer",
                        ignore=shutil.ignore_patterns("cases.json"))

    def _batch(self, folder, records):
        batch = super()._batch(folder, records)
        bert = transformers.AutoTokenizer.from_pretrained(folder / "model/qformer_tokenizer")
        ids = [bert(record["prompt"]).input_ids for record in records]
        ids = [row if len(row) <= self.tokens else row[:self.tokens - 1] + row[-1:] for row in ids]
        most = max(map(len, ids))
        batch["qformer_input_ids"] = torch.tensor([row + [0] * (most - len(row)) for row in ids])
        batch["qformer_attention_mask"] = torch.tensor([[1] * len(row) + [0] * (most - len(row)) for row in ids])
        return batch
