"""Tiny BLIP-2 models with OPT."""
import torch
from transformers import Blip2Config, Blip2ForConditionalGeneration, Blip2QFormerConfig, Blip2VisionConfig, OPTConfig

from .reference import TinyModel, fill

PAD, BOS = 1, 2

CASES = {
    # Ordinary: two heads, head sizes 16 and 8, every size of one tower different from the others'.
    "ordinary": dict(
        seed=1, queries=5, lengths=[7, 4, 6], vision=dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, image_size=28, patch_size=7),
        qformer=dict(hidden_size=16, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2),
        text=dict(hidden_size=32, ffn_dim=56, num_hidden_layers=2, num_attention_heads=2, vocab_size=64,
                  max_position_embeddings=24)),
    # Odd: three heads everywhere, sizes that no vector width divides, a third Q-Former layer, the old vision epsilon.
    "odd": dict(
        seed=2, queries=3, lengths=[5, 9, 2], vision=dict(hidden_size=36, intermediate_size=38, num_hidden_layers=2,
        num_attention_heads=3, image_size=28, patch_size=7, layer_norm_eps=1e-5),
        qformer=dict(hidden_size=24, intermediate_size=30, num_hidden_layers=3, num_attention_heads=3,
                     cross_attention_frequency=2),
        text=dict(hidden_size=48, ffn_dim=54, num_hidden_layers=1, num_attention_heads=3, vocab_size=61,
                  max_position_embeddings=17)),
    # Weights stored in bfloat16.
    "bf16": dict(
        seed=3, queries=4, lengths=[7, 4, 6], dtype=torch.bfloat16,
        vision=dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=32,
                    patch_size=8),
        qformer=dict(hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=3),
        text=dict(hidden_size=32, ffn_dim=48, num_hidden_layers=1, num_attention_heads=2, vocab_size=72,
                  max_position_embeddings=16)),
    # Pictures that the patches do not fill: 3 pixels of each row and column are left over.
    "cut": dict(
        seed=5, queries=3, lengths=[4, 6], vision=dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, image_size=17, patch_size=7),
        qformer=dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2),
        text=dict(hidden_size=16, ffn_dim=24, num_hidden_layers=1, num_attention_heads=2, vocab_size=40,
                  max_position_embeddings=16)),
    # A head of its own, two shards with an index, head sizes 22 and 20 as 88 and 80 in the large models.
    "untied": dict(
        seed=4, queries=4, lengths=[3, 8, 5], tied=False, shard="170KB",
        vision=dict(hidden_size=44, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                    patch_size=7),
        qformer=dict(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
                     cross_attention_frequency=1),
        text=dict(hidden_size=40, ffn_dim=44, num_hidden_layers=2, num_attention_heads=2, vocab_size=56,
                  max_position_embeddings=16)),
}


def key_biases(config):
    """Names of the biases of attention keys in the vision tower and the Q-Former: softmax ignores them."""
    hidden, qformer = config.vision_config.hidden_size, config.qformer_config
    rows = [[f"vision_model.encoder.layers.{i}.self_attn.qkv.bias", hidden, 2 * hidden]
            for i in range(config.vision_config.num_hidden_layers)]
    for i in range(qformer.num_hidden_layers):
        kinds = ["attention"] + (["crossattention"] if i % qformer.cross_attention_frequency == 0 else [])
        rows += [[f"qformer.encoder.layer.{i}.{kind}.attention.key.bias", 0, qformer.hidden_size] for kind in kinds]
    return rows


class Blip2(TinyModel):
    family, model_class, pad, pictures, all_of_bf16 = "OPT", Blip2ForConditionalGeneration, PAD, True, True
    embeddings = ("language_model.model.decoder.embed_tokens.weight", "language_model.model.decoder.embed_positions.weight")

    def make(self, generator):
        case, tied = self.case, self.case.get("tied", True)
        text = OPTConfig(tie_word_embeddings=tied, word_embed_proj_dim=case["text"]["hidden_size"], **case["text"])
        config = Blip2Config(vision_config=Blip2VisionConfig(**case["vision"]).to_dict(),
                             qformer_config=Blip2QFormerConfig(**case["qformer"]).to_dict(), text_config=text.to_dict(),
                             num_query_tokens=case["queries"], image_token_index=case["text"]["vocab_size"] - 3,
                             tie_word_embeddings=tied)
        return fill(Blip2ForConditionalGeneration(config), generator)

    def batch(self, generator):
        size, lengths = self.case["vision"]["image_size"], self.lengths
        batch, tokens = len(lengths), max(lengths)
        pixels = torch.randint(0, 256, (batch, size, size, 3), generator=generator, dtype=torch.uint8)
        ids = torch.full((batch, tokens), PAD, dtype=torch.int32)
        labels = torch.full((batch, tokens - 1), -100, dtype=torch.int32)
        for b, length in enumerate(lengths):
            ids[b, 0] = BOS
            # From 4 on: no special token; below the image token, which is third from the end of the vocabulary.
            ids[b, 1:length] = torch.randint(4, self.case["text"]["vocab_size"] - 3, (length - 1,), generator=generator,
                                             dtype=torch.int32)
            labels[b, :length - 1] = ids[b, 1:length]
        return dict(pixels=pixels, ids=ids, lengths=torch.tensor(lengths, dtype=torch.int32), labels=labels,
                    labels_padding=ids[:, 1:].contiguous())

    def zero_gradients(self, config):
        text = config.text_config
        return key_biases(config) + [[f"language_model.model.decoder.layers.{i}.self_attn.k_proj.bias", 0, text.hidden_size]
                                     for i in range(text.num_hidden_layers)]


MODELS = {f"blip2_{name}": Blip2(**case) for name, case in CASES.items()}
