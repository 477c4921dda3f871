"""Tiny decoders of texts: LLaMA, its younger relatives and Gemma."""
import torch
import transformers

from .reference import TinyModel, fill

BOS, PAD = 1, 3
PLAIN = dict(rope_type="default", rope_theta=100.0)

CASES = {
    # As many heads of keys and values as of queries, of size 16; an own head.
    "llama_mha": dict(seed=1, family="Llama", lengths=[7, 4, 12], hidden_size=32, intermediate_size=56,
                num_hidden_layers=2, num_attention_heads=2, vocab_size=64, max_position_embeddings=24),
    # 8 heads over 4, of size 64, wider together than the hidden size; tied; LLaMA 3's scaling, in which the wavelengths
    # of 32 frequencies fall below, between and above the bounds.
    "llama_gqa": dict(seed=2, family="Llama", lengths=[5, 12, 3], hidden_size=24, intermediate_size=40,
                num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4, head_dim=64, vocab_size=61,
                max_position_embeddings=128, tie_word_embeddings=True,
                rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                     high_freq_factor=4.0, original_max_position_embeddings=32)),
    # 6 heads over 2, of size 22; linear scaling; biases everywhere; two shards.
    "llama_odd": dict(seed=3, family="Llama", lengths=[9, 2, 6, 11], shard="100KB", hidden_size=30, intermediate_size=38,
                num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=22, vocab_size=53,
                max_position_embeddings=16, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5,
                rope_parameters=dict(rope_type="linear", rope_theta=100.0, factor=2.5)),
    # Biases of q, k and v; tied; a padding token that also stands in the texts, where its embedding gets no gradient.
    # A small base: pairs that hardly turn have key biases whose gradient all but vanishes, and AdamW divides by it.
    "llama_qwen2": dict(seed=4, family="Qwen2", lengths=[8, 10, 5], pads_inside=True, hidden_size=32,
                  intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  vocab_size=67, max_position_embeddings=32, tie_word_embeddings=True, pad_token_id=PAD,
                  rope_parameters=dict(rope_type="default", rope_theta=100.0)),
    # Heads of size 100; a sliding window that the longest text just fits.
    "llama_mistral": dict(seed=5, family="Mistral", lengths=[12, 6], hidden_size=20, intermediate_size=36,
                    num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=100, vocab_size=50,
                    max_position_embeddings=64, sliding_window=12),
    # Weights stored in bfloat16.
    "llama_bf16": dict(seed=6, family="Llama", lengths=[7, 4, 12], dtype=torch.bfloat16, hidden_size=32,
                 intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 vocab_size=72, max_position_embeddings=16),
    # Norms of each head of queries and keys, heads wider together than the hidden size; a window in the second layer.
    "modern_qwen3": dict(seed=1, family="Qwen3", lengths=[7, 4, 12], hidden_size=28, intermediate_size=44, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, head_dim=18, vocab_size=64, max_position_embeddings=32,
                  tie_word_embeddings=True, use_sliding_window=True, sliding_window=5, max_window_layers=1,
                  rope_parameters=PLAIN),
    # Every second layer without rotary positions, biases everywhere.
    "modern_smollm3": dict(seed=2, family="SmolLM3", lengths=[9, 3, 11], hidden_size=24, intermediate_size=40,
                    num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=58,
                    max_position_embeddings=24, attention_bias=True, mlp_bias=True, no_rope_layer_interval=2,
                    pads_inside=True, pad_token_id=PAD, rope_parameters=PLAIN),
    # Norms after the branches, norms of all queries and of all keys.
    "modern_olmo2": dict(seed=3, family="Olmo2", lengths=[6, 10, 5], hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, vocab_size=60, max_position_embeddings=32,
                  pad_token_id=None, rope_parameters=PLAIN),
    # Fused matrices, a part of each head that turns, factors of the short texts and a magnitude; a window.
    "modern_phi3": dict(seed=4, family="Phi3", lengths=[12, 5, 8], hidden_size=32, intermediate_size=36, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, vocab_size=62, max_position_embeddings=64,
                 original_max_position_embeddings=16, sliding_window=6, pad_token_id=None, tie_word_embeddings=True,
                 rope_parameters=dict(rope_type="longrope", rope_theta=100.0, partial_rotary_factor=0.75,
                                      short_factor=[1.0, 1.25, 2.0], long_factor=[1.0, 3.0, 9.0])),
    # Four norms a layer, both caps where they bend, a window in every other layer, heads of size 20.
    "modern_gemma2": dict(seed=5, family="Gemma2", lengths=[11, 4, 8], pads_inside=True, hidden_size=30, intermediate_size=42,
                   num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=20, vocab_size=57,
                   max_position_embeddings=32, query_pre_attn_scalar=9, sliding_window=4, pad_token_id=PAD,
                   attn_logit_softcapping=1.5, final_logit_softcapping=2.0, rope_parameters=PLAIN),
    # Norms of queries and keys beside the four, two bases of rotary positions, one of them scaled.
    "modern_gemma3": dict(seed=6, family="Gemma3", lengths=[10, 12, 3], hidden_size=24, intermediate_size=40,
                   num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=24, vocab_size=55,
                   max_position_embeddings=32, query_pre_attn_scalar=12, sliding_window=5, pad_token_id=None,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                   rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=4.0),
                                        sliding_attention=dict(rope_type="default", rope_theta=100.0))),
    # Factors of embedded tokens, branches, scores and logits.
    "modern_granite": dict(seed=9, family="Granite", lengths=[8, 5, 11], hidden_size=32, intermediate_size=44, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, vocab_size=61, max_position_embeddings=32,
                    tie_word_embeddings=True, pad_token_id=None, embedding_multiplier=3.0, residual_multiplier=0.22,
                    attention_multiplier=0.2, logits_scaling=0.75, rope_parameters=PLAIN),
    # Norms before and after, gate and up as one matrix, half of each head turns, pairs of neighbours, biases of q, k and v.
    "modern_glm4": dict(seed=10, family="Glm4", lengths=[10, 4, 7], hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=12, vocab_size=59, max_position_embeddings=32,
                 pad_token_id=None, eos_token_id=2, attention_bias=True,
                 rope_parameters=dict(PLAIN, partial_rotary_factor=0.5)),
    # Weights stored in bfloat16: norms of heads, and what is rounded once.
    "modern_qwen3_bf16": dict(seed=7, family="Qwen3", lengths=[7, 4, 12], dtype=torch.bfloat16, hidden_size=32,
                       intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                       head_dim=16, vocab_size=72, max_position_embeddings=16),
    "modern_gemma3_bf16": dict(seed=8, family="Gemma3", lengths=[7, 4, 12], dtype=torch.bfloat16, hidden_size=32,
                        intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                        head_dim=16, vocab_size=72, max_position_embeddings=16, sliding_window=4, pad_token_id=None,
                        query_pre_attn_scalar=16,
                        layer_types=["sliding_attention", "full_attention"]),
    "modern_granite_bf16": dict(seed=11, family="Granite", lengths=[7, 4, 12], dtype=torch.bfloat16, hidden_size=32,
                         intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                         vocab_size=72, max_position_embeddings=16, pad_token_id=None, embedding_multiplier=3.0,
                         residual_multiplier=0.22, attention_multiplier=0.2, logits_scaling=0.5),
}


def config_class(family):
    return getattr(transformers, family + ("TextConfig" if family == "Gemma3" else "Config"))


def make_decoder(family, config, generator):
    """Gemma stores its norms less 1."""
    model = transformers.AutoModelForCausalLM.from_config(config_class(family)(**config))
    return fill(model, generator, 0 if family.startswith("Gemma") else 1)


class Decoder(TinyModel):
    pad = PAD

    def __init__(self, family, pads_inside=False, **case):
        super().__init__(**{key: case.pop(key) for key in ("seed", "lengths", "dtype", "shard") if key in case}, **case)
        self.family, self.pads_inside = family, pads_inside
        config = config_class(family)(**case)
        types = getattr(config, "layer_types", None) or ["sliding_attention"]
        # Then padding may see padding alone, of which transformers makes what its attention implementation makes of it.
        windows = bool(getattr(config, "sliding_window", None)) and "sliding_attention" in types
        self.compare_padding = family in ("Llama", "Mistral", "Qwen2") or not windows

    def make(self, generator):
        return make_decoder(self.family, self.case, generator)

    def batch(self, generator):
        lengths, first = self.lengths, PAD if self.pads_inside else PAD + 1
        ids = torch.full((len(lengths), max(lengths)), PAD, dtype=torch.int32)
        labels = torch.full((len(lengths), max(lengths) - 1), -100, dtype=torch.int32)
        for b, length in enumerate(lengths):
            ids[b, 0] = BOS
            ids[b, 1:length] = torch.randint(first, self.case["vocab_size"], (length - 1,), generator=generator, dtype=torch.int32)
            if self.pads_inside:
                ids[b, 2] = PAD
            labels[b, :length - 1] = ids[b, 1:length]
        return dict(ids=ids, lengths=torch.tensor(lengths, dtype=torch.int32), labels=labels,
                    labels_padding=ids[:, 1:].contiguous())

    def zero_gradients(self, config):
        """If layers do not rotate keys, a bias adds the same to all scores of a query, and softmax ignores it."""
        if config.model_type == "glm4" and config.attention_bias:
            size = config.head_dim
            turned = int(size * config.rope_parameters["partial_rotary_factor"])
            return [(f"model.layers.{i}.self_attn.k_proj.bias", head * size + turned, (head + 1) * size)
                    for i in range(config.num_hidden_layers) for head in range(config.num_key_value_heads)]
        if config.model_type != "smollm3" or not config.attention_bias:
            return []
        width = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
        return [(f"model.layers.{i}.self_attn.k_proj.bias", 0, width)
                for i, turns in enumerate(config.no_rope_layers) if not turns]

    def more(self, folder, model):
        return ({"frequencies": model.model.rotary_emb.inv_freq} if self.family in ("Llama", "Mistral", "Qwen2") else {}), {}


MODELS = {name: Decoder(**case) for name, case in CASES.items()}
