#!/usr/bin/env python3
"""The small files of a saved model: the dtype of its tensors, and what transformers 5 needs to generate."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, TwoModels, mpirun, read_safetensors, run  # noqa: E402
from script_tests import Skip, check, run_tests, test  # noqa: E402

QUERIES = 8


class Models(TwoModels):
    def __init__(self, folder):
        super().__init__(folder, "")

    def text_run(self, *options):
        return run(self, 0, f"data.path={self.text / 'data/instructions.jsonl'}", "data.max_text_tokens=64", "train.max_steps=1",
                   "output.save_model=true", *options)


def dtypes(folder):
    config = json.loads((folder / "config.json").read_text())
    check(config["dtype"] == config["torch_dtype"], config)
    return config["dtype"], {dtype for dtype, _, _ in read_safetensors(folder / "model.safetensors").values()}


@test
def config_json_has_the_dtype_of_the_tensors(space):
    bf16 = space.text_run(f"model.path={space.text / 'model'}", "output.save_dtype=bf16").output / "model"
    check(dtypes(bf16) == ("bfloat16", {"BF16"}), dtypes(bf16))
    adapters = ("adapter.kind=lora", "adapter.r=2", "adapter.targets=[q, v]", "output.save_merged=true", "model.init=pretrained")
    for dtype in ("f32", "bf16"):
        precision = () if dtype == "f32" else ("train.precision=bf16-true",)
        merged = space.text_run(f"model.path={bf16}", *adapters, f"adapter.dtype={dtype}", *precision).output / "model"
        check(dtypes(merged) == ("bfloat16", {"BF16"}), dtype, dtypes(merged))
    merged = space.text_run(f"model.path={bf16}", *adapters, "output.save_dtype=f32").output / "model"
    check(dtypes(merged) == ("float32", {"F32"}), dtypes(merged))
    # Trained weights in f32 beside frozen ones: what is trained must not be rounded.
    mixed = space.text_run(f"model.path={bf16}", "model.init=pretrained", "model.freeze=[layers]").output / "model"
    check(dtypes(mixed) == ("float32", {"F32", "BF16"}), dtypes(mixed))


@test
def a_folder_of_blip2_that_transformers_5_cannot_generate_with_is_completed(space):
    for file, of_file in (("", None), ('{"processor_class": "Blip2Processor", "num_query_tokens": null, "more": 3}', {"more": 3})):
        model = space.copy(space.model)
        config = json.loads((model / "config.json").read_text())
        token = config.pop("image_token_index")
        (model / "config.json").write_text(json.dumps(config))
        (model / "processor_config.json").unlink()
        if file:
            (model / "processor_config.json").write_text(file)
        result = run(space, 0, f"model.path={model}", "train.max_steps=1", "output.save_model=true")
        saved = result.output / "model"
        check(json.loads((saved / "config.json").read_text())["image_token_index"] == token, token)
        processor = json.loads((saved / "processor_config.json").read_text())
        check(processor == {"processor_class": "Blip2Processor", "num_query_tokens": QUERIES, **(of_file or {})}, processor)
        check(f"note: {model}/config.json: image_token_index: found none; the saved model has {token}" in result.err, result)
        check(f"note: {model}/processor_config.json: " in result.err, result)
        # The saved folder is complete: nothing to say.
        again = run(space, 0, f"model.path={saved}", "model.init=pretrained", "train.max_steps=1", "output.save_model=true")
        check("image_token_index" not in again.err and "processor_config" not in again.err, again)
    # The embeddings have no row for the token: said, and the model is saved all the same.
    config["text_config"]["vocab_size"] = token
    (model / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [one for one in tokenizer["added_tokens"] if one["content"] != "<image>"]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (model / name).unlink()
    result = run(space, 0, f"model.path={model}", "train.max_steps=1", "output.save_model=true")
    check(f"the embeddings have {token} rows: resize them there first" in result.err, result)
    check("image_token_index" not in json.loads((result.output / "model/config.json").read_text()), result)


@test
def transformers_generates_from_a_completed_folder(space):
    try:
        from PIL import Image
        from transformers import Blip2ForConditionalGeneration, Blip2Processor
    except ImportError as missing:
        raise Skip(str(missing))
    model = space.copy(space.model)
    config = json.loads((model / "config.json").read_text())
    del config["image_token_index"]
    (model / "config.json").write_text(json.dumps(config))
    (model / "processor_config.json").unlink()
    saved = run(space, 0, f"model.path={model}", "train.max_steps=1", "output.save_model=true").output / "model"
    processor = Blip2Processor.from_pretrained(saved)
    inputs = processor(images=Image.open(sorted(space.data.rglob("*.jpg"))[0]), text="a", return_tensors="pt")
    ids = Blip2ForConditionalGeneration.from_pretrained(saved).generate(**inputs, max_new_tokens=5, do_sample=False)
    check(inputs["input_ids"].shape[1] > QUERIES and ids.shape[1] > inputs["input_ids"].shape[1], inputs, ids)


@test
def what_is_complete_is_copied(space):
    result = run(space, 0, "train.max_steps=1", "output.save_model=true")
    for name in ("processor_config.json", "tokenizer.json"):
        check((result.output / "model" / name).read_bytes() == (space.model / name).read_bytes(), name)
    check("note:" not in result.err or "image_token" not in result.err, result)
    status, out, err, _ = mpirun(0, [PROGRAM, "--generate", result.output / "config.yaml", "generate.samples=1"])
    check(status == 0, out, err)


@test
def saved_folders_have_the_trained_template_and_the_tokenizer(space):
    template = space.text / "mine.jinja"
    template.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
                        "{% if add_generation_prompt %}<assistant>{% endif %}")
    records = space.text / "chats.jsonl"
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "World"}]
    records.write_text(json.dumps({"messages": turns}) + "\n")
    trained = space.text_run(f"model.path={space.text / 'model'}").output / "model"
    result = space.text_run(f"model.path={trained}", f"data.path={records}", f"data.chat_template={template}",
                            "model.init=pretrained", "adapter.kind=lora", "adapter.r=2", "adapter.targets=[q, v]", "output.save_merged=true",
                            "train.batch_size=1")
    for folder in ("model", "adapter"):
        check((result.output / folder / "chat_template.jinja").read_text() == template.read_text(), folder)
        check((result.output / folder / "tokenizer.json").exists(), folder)
    status, out, err, _ = mpirun(0, [PROGRAM, "--generate", result.output / "config.yaml", "generate.samples=1",
                                     "generate.max_new_tokens=2"])
    check(status == 0, out, err)


if __name__ == "__main__":
    sys.exit(run_tests("saved_model_test", Models, PROGRAM))
