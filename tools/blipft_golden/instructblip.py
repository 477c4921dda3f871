"""Tiny InstructBLIP models with a LLaMA; only the answers are labels."""
import torch
import transformers

from .blip2 import key_biases
from .reference import TinyModel, fill, mask_of, padded

CASES = {
    # Cross attention in every second layer, instructions of other lengths than the texts, grouped heads.
    "ordinary": dict(
        seed=1, queries=5, lengths=[9, 5, 7], prompts=[4, 3, 6], instructions=[6, 9, 2],
        vision=dict(hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                    patch_size=14),
        qformer=dict(vocab_size=37, hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
                     max_position_embeddings=20),
        text=dict(vocab_size=53, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=24, pad_token_id=0)),
    # Three heads, one query, sizes that no vector width divides, an instruction as long as its positions, a tied head.
    "odd": dict(
        seed=2, queries=1, lengths=[4, 11], prompts=[2, 6], instructions=[11, 3], tied=True,
        vision=dict(hidden_size=21, intermediate_size=26, num_hidden_layers=1, num_attention_heads=3, image_size=17,
                    patch_size=7),
        qformer=dict(vocab_size=31, hidden_size=27, intermediate_size=22, num_hidden_layers=2, num_attention_heads=3,
                     max_position_embeddings=11, cross_attention_frequency=1),
        text=dict(vocab_size=47, hidden_size=30, intermediate_size=34, num_hidden_layers=1, num_attention_heads=3,
                  max_position_embeddings=16, pad_token_id=0)),
    # Weights stored in bfloat16.
    "bf16": dict(
        seed=3, queries=4, lengths=[9, 5, 7], prompts=[4, 3, 6], instructions=[6, 9, 2], dtype=torch.bfloat16,
        vision=dict(hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                    patch_size=14),
        qformer=dict(vocab_size=37, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                     max_position_embeddings=20),
        text=dict(vocab_size=53, hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4,
                  max_position_embeddings=24, pad_token_id=0)),
}


def make_model(vision, qformer, text, queries, generator, **more):
    config = transformers.InstructBlipConfig(
        vision_config=transformers.InstructBlipVisionConfig(**vision).to_dict(),
        qformer_config=transformers.InstructBlipQFormerConfig(encoder_hidden_size=vision["hidden_size"],
                                                              **qformer).to_dict(),
        text_config=transformers.LlamaConfig(**text).to_dict(), num_query_tokens=queries,
        image_token_index=text["vocab_size"] - 1, **more)
    model = transformers.InstructBlipForConditionalGeneration(config)
    return fill(model, generator)


def batch_of(pixels, texts, learnt, instructions):
    """Pictures u8 [B, S, S, 3] and lists of ids as tensors."""
    labels = [[i if keep else -100 for i, keep in zip(row[1:], keeps[1:])] for row, keeps in zip(texts, learnt)]
    ids, lengths = padded(texts, 0)
    instruction_ids, instruction_lengths = padded(instructions, 0)
    return dict(pixels=pixels, ids=ids, lengths=lengths, labels=padded(labels, -100)[0],
                learnt=padded(learnt, 0, torch.uint8)[0], instruction_ids=instruction_ids,
                instruction_lengths=instruction_lengths)


class InstructBlip(TinyModel):
    family, model_class = "Llama", transformers.InstructBlipForConditionalGeneration
    pictures, compare_padding = True, False

    def make(self, generator):
        case, tied = self.case, self.case.get("tied", False)
        return make_model(case["vision"], case["qformer"], {**case["text"], "tie_word_embeddings": tied}, case["queries"],
                          generator, tie_word_embeddings=tied)

    def batch(self, generator):
        case = self.case

        def draw(count, below):
            return torch.randint(3, below, (count,), generator=generator).tolist()
        side, samples = case["vision"]["image_size"], len(self.lengths)
        pixels = torch.randint(0, 256, (samples, side, side, 3), generator=generator, dtype=torch.uint8)
        texts = [draw(length, case["text"]["vocab_size"] - 1) for length in self.lengths]
        learnt = [[t >= prompt for t in range(length)] for length, prompt in zip(self.lengths, case["prompts"])]
        return batch_of(pixels, texts, learnt, [draw(length, case["qformer"]["vocab_size"]) for length in case["instructions"]])

    def inputs(self, model, batch):
        asked = batch["instruction_ids"].long()
        return dict(super().inputs(model, batch), qformer_input_ids=asked,
                    qformer_attention_mask=mask_of(asked, batch["instruction_lengths"]))

    def zero_gradients(self, config):
        return key_biases(config)


MODELS = {f"instructblip_{name}": InstructBlip(**case) for name, case in CASES.items()}
