"""The tiny vision-language models of vision_models.py: configurations and samples, fixed ones and drawn ones."""
import torch

from .reference import PIXEL_MEAN, PIXEL_STD

CASES = 40
HALF = [0.5, 0.5, 0.5]
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def picture_rows(family, config, values):
    """f32 [3, H, W] as the model reads it, the grid (Qwen), and how many ids stand for it."""
    vision = config.vision_config
    if family == "gemma3":
        return values[None], None, config.mm_tokens_per_image
    p, m, t = vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size
    h, w = values.shape[1] // p, values.shape[2] // p
    rows = values.reshape(3, h // m, m, p, w // m, m, p).permute(1, 4, 2, 5, 0, 3, 6)
    rows = rows[:, :, :, :, :, None].expand(-1, -1, -1, -1, -1, t, -1, -1)
    return rows.reshape(h * w, 3 * t * p * p).contiguous(), (1, h, w), h * w // (m * m)


def drawn_samples(rng, name, vocabulary, draw_picture):
    """One to four samples with none to four pictures each. draw_picture(): (height, width, ids that stand for it)."""
    start, end, image = vocabulary - 6, vocabulary - 5, vocabulary - 4
    samples, number = [], 0

    def text(low, high):
        return [rng.randrange(4, vocabulary - 8) for _ in range(rng.randint(low, high))]
    for _ in range(rng.randint(1, 4)):
        stream, pictures = text(1, 4), []
        for _ in range(rng.choice([0, 1, 1, 2, 3, 4])):
            height, width, tokens = draw_picture()
            stream += [start] + [image] * tokens + [end] + text(0, 3)
            pictures.append([f"{name}.picture{number}", height, width])
            number += 1
        stream += text(2, 6)
        label = [int(n > 0 and i != image and rng.random() < 0.5) for n, i in enumerate(stream)]
        samples.append(dict(ids=stream, label=label[:-1] + [1], pictures=pictures))
    return samples


def drawn_lora(rng):
    targets = rng.choice(["all-linear", ["q_proj", "v_proj"], SEVEN])
    return dict(r=rng.choice([2, 3, 4]), lora_alpha=rng.choice([2, 6, 8]), target_modules=targets)


def sections(rng, half):
    first, second = sorted(rng.sample(range(1, half), 2))
    return [first, second - first, half - second]


def qwen_text(rng, heads, keys, size, hidden, **more):
    half = size // 2
    parts = sections(rng, half)
    # Interleaved sections: y and x must fit into the frequencies they take.
    while max(parts[1:]) * 3 > half + 1:
        parts = sections(rng, half)
    return dict(hidden_size=hidden, intermediate_size=rng.choice([40, 52, 64]), num_hidden_layers=rng.randint(1, 4),
                num_attention_heads=heads, num_key_value_heads=keys, vocab_size=rng.randint(60, 110), max_position_embeddings=512,
                rope_parameters=dict(rope_type="default", rope_theta=rng.choice([100.0, 1e4, 5e6]), mrope_section=parts),
                **more)


def qwen_pictures(rng, patch, merge):
    def draw():
        h, w = (merge * rng.choice([1, 1, 2, 3, rng.randint(1, 6)]) for _ in range(2))
        return h * patch, w * patch, h * w // (merge * merge)
    return draw


def ids_of(image):
    return dict(image_token_id=image, video_token_id=image + 1, vision_start_token_id=image - 2, vision_end_token_id=image - 1)


def qwen3_vl(rng, number):
    if number == 0:
        text = dict(vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=32, max_position_embeddings=512, rms_norm_eps=1e-6,
                    rope_parameters=dict(rope_type="default", rope_theta=5e6, mrope_section=[6, 5, 5]))
        vision = dict(depth=3, hidden_size=32, intermediate_size=64, num_heads=2, patch_size=4, spatial_merge_size=2,
                      temporal_patch_size=2, num_position_embeddings=25, deepstack_visual_indexes=[0, 2], out_hidden_size=48)
        stream = [5, 6, 7, 88] + [90] * 6 + [89, 8, 9, 88] + [90] * 2 + [89, 10, 11, 12, 13]
        return fixed("a", dict(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids_of(90)),
                     stream, [["q3a.picture0", 16, 24], ["q3a.picture1", 8, 16]], HALF, HALF, PUBLISHED["a"], MISTAKES["a"])
    size, keys, heads = rng.choice([16, 24, 32]), rng.choice([1, 2]), rng.choice([2, 4])
    hidden = rng.choice([24, 40, 48])
    text = qwen_text(rng, heads, keys, size, hidden, head_dim=size, rms_norm_eps=rng.choice([1e-6, 1e-5]))
    vision_heads, vision_size = rng.choice([1, 2, 3]), rng.choice([8, 12, 16, 20])
    patch, merge, depth = rng.choice([2, 4, 6]), rng.choice([2, 2, 2, 3]), rng.randint(1, 4)
    taps = rng.randint(0, min(depth, text["num_hidden_layers"]))
    vision = dict(depth=depth, hidden_size=vision_heads * vision_size, intermediate_size=rng.choice([28, 48]),
                  num_heads=vision_heads, patch_size=patch, spatial_merge_size=merge, temporal_patch_size=rng.choice([2, 2, 1]),
                  num_position_embeddings=rng.choice([4, 9, 25, 49]),
                  deepstack_visual_indexes=sorted(rng.sample(range(depth), taps)), out_hidden_size=hidden)
    name, vocabulary = f"qwen3_{number}", text["vocab_size"]
    return dict(name=name, config=dict(text_config=text, vision_config=vision, tie_word_embeddings=rng.random() < 0.4,
                                       **ids_of(vocabulary - 4)),
                samples=drawn_samples(rng, name, vocabulary, qwen_pictures(rng, patch, merge)), lora=drawn_lora(rng), mean=HALF,
                std=HALF)


def qwen2_5_vl(rng, number):
    if number == 0:
        text = dict(vocab_size=96, hidden_size=64, intermediate_size=80, num_hidden_layers=2, num_attention_heads=2,
                    num_key_value_heads=1, max_position_embeddings=512, rms_norm_eps=1e-6,
                    rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[4, 6, 6]))
        vision = dict(depth=3, hidden_size=32, intermediate_size=44, num_heads=2, patch_size=4, spatial_merge_size=2,
                      temporal_patch_size=2, window_size=16, fullatt_block_indexes=[1], out_hidden_size=64)
        stream = [5, 6, 7, 88] + [90] * 15 + [89, 8, 9, 88] + [90] * 2 + [89, 10, 11, 12, 13]
        return fixed("b", dict(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids_of(90)),
                     stream, [["q25a.picture0", 24, 40], ["q25a.picture1", 16, 8]], PIXEL_MEAN, PIXEL_STD, PUBLISHED["b"],
                     MISTAKES["b"])
    heads, size = rng.choice([(2, 16), (2, 24), (4, 16), (3, 32)])
    keys = rng.choice([k for k in (1, 2) if heads % k == 0])
    text = qwen_text(rng, heads, keys, size, heads * size, rms_norm_eps=rng.choice([1e-6, 1e-5]), tie_word_embeddings=rng.random() < 0.4)
    vision_heads, vision_size = rng.choice([1, 2, 3]), rng.choice([8, 12, 16, 20])
    patch, merge, depth = rng.choice([2, 4, 6]), rng.choice([2, 2, 2, 3]), rng.randint(1, 4)
    vision = dict(depth=depth, hidden_size=vision_heads * vision_size, intermediate_size=rng.choice([28, 48]),
                  num_heads=vision_heads, patch_size=patch, spatial_merge_size=merge, temporal_patch_size=2,
                  window_size=patch * merge * rng.choice([1, 2, 2, 3]),
                  fullatt_block_indexes=sorted(rng.sample(range(depth), rng.randint(0, depth))), out_hidden_size=heads * size)
    name, vocabulary = f"qwen25_{number}", text["vocab_size"]
    return dict(name=name, config=dict(text_config=text, vision_config=vision, tie_word_embeddings=text["tie_word_embeddings"],
                                       **ids_of(vocabulary - 4)),
                samples=drawn_samples(rng, name, vocabulary, qwen_pictures(rng, patch, merge)), lora=drawn_lora(rng),
                mean=PIXEL_MEAN, std=PIXEL_STD)


def gemma3(rng, number):
    if number == 0:
        text = dict(vocab_size=96, hidden_size=64, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=32, query_pre_attn_scalar=24, sliding_window=8,
                    layer_types=["sliding_attention", "full_attention"] * 2, max_position_embeddings=512, rms_norm_eps=1e-6,
                    rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                                         sliding_attention=dict(rope_type="default", rope_theta=1e4)))
        vision = dict(hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=2, image_size=56,
                      patch_size=7, vision_use_head=False)
        stream = [2, 5, 6, 88] + [90] * 16 + [89, 7, 8, 88] + [90] * 16 + [89, 10, 11, 12, 13]
        return fixed("c", dict(text_config=text, vision_config=vision, mm_tokens_per_image=16, image_token_index=90,
                               boi_token_index=88, eoi_token_index=89),
                     stream, [["g3a.picture0", 56, 56], ["g3a.picture1", 56, 56]], HALF, HALF, PUBLISHED["c"], MISTAKES["c"])
    layers, size = rng.randint(1, 4), rng.choice([16, 24, 32])
    heads, keys = rng.choice([(2, 1), (4, 2), (2, 2)])
    text = dict(vocab_size=rng.randint(60, 110), hidden_size=rng.choice([24, 40, 64]), intermediate_size=rng.choice([40, 64]),
                num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=keys, head_dim=size,
                query_pre_attn_scalar=rng.choice([12, 24, size]), sliding_window=rng.choice([4, 8, 16]),
                layer_types=[rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers)],
                max_position_embeddings=512, rms_norm_eps=1e-6,
                rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=rng.choice([2.0, 8.0])),
                                     sliding_attention=dict(rope_type="default", rope_theta=1e4)))
    side, pool, patch, vision_heads = rng.choice([1, 2, 3]), rng.choice([1, 2, 3]), rng.choice([2, 4, 7]), rng.choice([1, 2])
    image = side * pool * patch
    vision = dict(hidden_size=vision_heads * rng.choice([8, 12, 16]), intermediate_size=rng.choice([28, 44]),
                  num_hidden_layers=rng.randint(1, 3), num_attention_heads=vision_heads, image_size=image, patch_size=patch,
                  vision_use_head=False)
    name, vocabulary = f"gemma3_{number}", text["vocab_size"]
    return dict(name=name, config=dict(text_config=text, vision_config=vision, mm_tokens_per_image=side * side,
                                       image_token_index=vocabulary - 4, boi_token_index=vocabulary - 6,
                                       eoi_token_index=vocabulary - 5, tie_word_embeddings=rng.random() < 0.8),
                samples=drawn_samples(rng, name, vocabulary, lambda: (image, image, side * side)), lora=drawn_lora(rng), mean=HALF,
                std=HALF)


def fixed(name, config, stream, pictures, mean, std, published, mistakes):
    sample = dict(ids=stream, label=[int(n >= len(stream) - 4) for n in range(len(stream))], pictures=pictures)
    return dict(name=name, config=config, samples=[sample], lora=dict(r=4, lora_alpha=8, target_modules="all-linear"), mean=mean,
                std=std, published=published, mistakes=mistakes)


PUBLISHED = {
    "a": dict(loss=4.784448, logits=[-0.89936, -0.30751, 1.80640, 0.36572], gradient_norm=32.5186, bf16_loss=4.785841,
              gradients={"model.visual.pos_embed.weight": 1.14811, "model.visual.patch_embed.proj.weight": 7.85865}),
    "b": dict(loss=5.089348, logits=[0.04964, 0.85427, 0.04593, 0.87324], gradient_norm=23.9030, bf16_loss=5.088485,
              gradients={"model.visual.patch_embed.proj.weight": 9.38550}),
    "c": dict(loss=5.907274, logits=[0.74882, 0.42503, 0.21982, 0.10138], gradient_norm=20.0811, bf16_loss=5.901041,
              gradients={"model.multi_modal_projector.mm_input_projection_weight": 5.17425}),
}
MISTAKES = {
    "a": [["chunked sections", 4.801205], ["1-D positions", 4.714576], ["text goes on at its token index", 4.712099],
          ["picture advances by height", 4.694553], ["no DeepStack", 4.952464], ["DeepStack a layer early", 4.469068],
          ["tanh GELU in mergers", 4.784551], ["erf GELU in blocks", 4.784355], ["attention across pictures", 4.662459],
          ["raster positions, block rows", 4.500986], ["vision rotary (x, y)", 4.530034],
          ["y and x interleaved in the vision rotary", 4.592286], ["half-pixel table", 4.686328],
          ["row as time, channel", 5.030279], ["qkv by head", 4.954762], ["theta 5e5", 4.643702], ["labels = ids", 5.091650],
          ["labels = ids without image ids", 5.287846]],
    "b": [["all layers full", 5.267360], ["all layers windowed", 5.185576], ["order not undone", 5.147273],
          ["order undone twice", 5.142220], ["window twice as wide", 5.273921], ["1-D positions", 4.938212],
          ["eps 1e-5", 5.089553]],
    "c": [["causal", 5.947981], ["(causal and window) or block", 5.860550], ["boi, eoi in the block", 5.881311],
          ["pictures see each other", 5.875643], ["picture rows times sqrt(h)", 5.076319], ["no post_layernorm", 5.932594],
          ["soft norm w", 5.978982], ["factor 8 everywhere", 5.938234], ["factor 8 nowhere", 5.644778],
          ["scale D^-0.5", 5.915584]],
}
GOLDEN_CASES = {"qwen3_vl": qwen3_vl, "qwen2_5_vl": qwen2_5_vl, "gemma3": gemma3}
