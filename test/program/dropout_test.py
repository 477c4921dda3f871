#!/usr/bin/env python3
"""Dropout masks depend on the seed, the sample and the row within the sample alone: neither data.text_padding nor the number
of ranks changes them. T5, BLIP-2 with T5 and InstructBLIP drop probabilities of attention over texts."""
import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, TwoModels, golden_path, ranks_up_to, run  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

SAMPLES_A_STEP, STEPS = 12, 2


class Families(TwoModels):
    """The demos' data and tokenizers with models of golden config.json files."""

    def __init__(self, folder):
        super().__init__(folder, "")
        vocabulary = json.loads((self.text / "model/config.json").read_text())["vocab_size"]
        pictures = json.loads((self.model / "config.json").read_text())["text_config"]["vocab_size"]
        self.families = {
            "t5": (self.folder_of("t5", self.text / "model", self.golden("t5_v11", vocab_size=vocabulary)),
                   self.text / "data/instructions.jsonl"),
            "blip2_t5": (self.folder_of("blip2_t5", self.model, self.picture_model("blip-2", pictures)), self.data),
            "instructblip": (self.folder_of("instructblip", self.model, self.picture_model("instructblip", pictures)), self.data)}
        instructblip = self.families["instructblip"][0]
        shutil.copytree(self.model, instructblip / "qformer_tokenizer", ignore=shutil.ignore_patterns("config.json"))

    @staticmethod
    def golden(name, **more):
        return {**json.loads(golden_path(f"{name}/config.json").read_text()), **more}

    def picture_model(self, model_type, vocabulary):
        config = self.golden("t5_instructblip", model_type=model_type, image_token_index=vocabulary - 1)
        config["vision_config"]["image_size"] = 56          # as the demo's preprocessor_config.json says
        config["text_config"]["vocab_size"] = vocabulary
        config["qformer_config"].update(vocab_size=vocabulary, max_position_embeddings=64)
        if model_type == "blip-2":
            config["qformer_config"]["model_type"] = "blip_2_qformer"
            config["vision_config"]["model_type"] = "blip_2_vision_model"
        return config

    def folder_of(self, name, tokenizer, config):
        folder = self.folder / name
        shutil.copytree(tokenizer, folder)
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def losses(self, family, ranks, padding):
        model, data = self.families[family]
        ways = ("single", "ddp", "fsdp", "ddp")[ranks - 1]
        prompt = [] if family == "t5" else ["data.prompt_template=what is in this picture of shapes?"]
        return list(run(self, ranks, f"model.path={model}", "model.init=random", f"data.path={data}", "data.max_text_tokens=48",
                        f"data.text_padding={padding}", "train.dropout=true", f"train.batch_size={SAMPLES_A_STEP // ranks}",
                        f"train.max_steps={STEPS}", f"parallel.strategy={ways}", *prompt).losses())


def same_losses(family):
    def losses_are_the_same_on_any_number_of_ranks_and_for_every_padding(space):
        expected = space.losses(family, 1, "packed")
        for ranks, padding in ((1, "longest"), (1, "max"), (2, "longest"), (3, "longest"), (4, "longest"), (3, "packed")):
            if ranks > ranks_up_to(ranks):
                continue
            found = space.losses(family, ranks, padding)
            for one, other in zip(expected, found, strict=True):
                # Sums of f32 in another order; another mask changes the second digit or the third.
                check(abs(one / other - 1) < 1e-5, family, ranks, padding, expected, found)
    losses_are_the_same_on_any_number_of_ranks_and_for_every_padding.__name__ = (
        f"{family}_losses_are_the_same_on_any_number_of_ranks_and_for_every_padding")
    return losses_are_the_same_on_any_number_of_ranks_and_for_every_padding


for name in ("t5", "blip2_t5", "instructblip"):
    test(same_losses(name))

if __name__ == "__main__":
    sys.exit(run_tests("dropout_test", Families, PROGRAM))
