"""Small models that read pictures anywhere in a text: Qwen3-VL, Qwen2.5-VL and Gemma 3, with byte-level tokenizers."""
import json

NORM = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


class Qwen:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    image = 256 + 5
    template = ("{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}{%- if message.content is string %}"
                "{{- message.content }}{%- else %}{%- for part in message.content %}"
                "{{- part.text if part.type == 'text' else '<|vision_start|><|image_pad|><|vision_end|>' }}{%- endfor %}{%- endif %}"
                "{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}")
    prompt, end = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>"
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "image_token_id": image,
        "video_token_id": 270, "vision_start_token_id": 259, "vision_end_token_id": 260, "tie_word_embeddings": True,
        "text_config": {"model_type": "qwen3_vl_text", "vocab_size": 272, "hidden_size": 32, "intermediate_size": 48,
                        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 5000000.0,
                        "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}},
        "vision_config": {"model_type": "qwen3_vl", "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
                          "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
                          "num_position_embeddings": 25, "out_hidden_size": 32, "deepstack_visual_indexes": [0],
                          "hidden_act": "gelu_pytorch_tanh"}}
    processor = {"size": {"shortest_edge": 256, "longest_edge": 4096}, "patch_size": 4, "merge_size": 2,
                 "temporal_patch_size": 2, **NORM}
    classes = ("Qwen3VLConfig", "Qwen3VLForConditionalGeneration", "Qwen2VLImageProcessorPil")
    settings = ()

    @staticmethod
    def written(text):
        """The text of a turn as the template writes it, but for pictures."""
        return text

    @staticmethod
    def texts(inputs):
        """The text of each picture."""
        return ["<|vision_start|>" + "<|image_pad|>" * int(grid.prod() // 4) + "<|vision_end|>" for grid in inputs.get("image_grid_thw", [])]

    @staticmethod
    def types(ids):
        return {"mm_token_type_ids": (ids == Qwen.image).int()}


class Qwen25(Qwen):
    config = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "image_token_id": Qwen.image,
        "video_token_id": 270, "vision_start_token_id": 259, "vision_end_token_id": 260, "tie_word_embeddings": True,
        "text_config": {"model_type": "qwen2_5_vl_text", "vocab_size": 272, "hidden_size": 32, "intermediate_size": 48,
                        "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4096,
                        "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 1000000.0, "use_sliding_window": False,
                        "tie_word_embeddings": True, "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}},
        "vision_config": {"model_type": "qwen2_5_vl", "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
                          "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "window_size": 16,
                          "fullatt_block_indexes": [1], "out_hidden_size": 32, "hidden_act": "silu"}}
    classes = ("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration", "Qwen2VLImageProcessorPil")


class Gemma:
    special = ["<pad>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
    image = 256 + 6
    template = ("{{- bos_token }}{%- for message in messages %}"
                "{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}"
                "{%- if message.content is string %}{{- message.content | trim }}{%- else %}{%- for part in message.content %}"
                "{{- part.text | trim if part.type == 'text' else '<start_of_image>' }}{%- endfor %}{%- endif %}"
                "{{- '<end_of_turn>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}")
    prompt, end = "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n", "<end_of_turn>"
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": 16,
        "image_token_index": image, "boi_token_index": 260, "eoi_token_index": 261, "eos_token_id": [271],
        "text_config": {"model_type": "gemma3_text", "vocab_size": 272, "hidden_size": 32, "intermediate_size": 48,
                        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                        "query_pre_attn_scalar": 16, "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                        "max_position_embeddings": 4096},
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                          "num_attention_heads": 2, "image_size": 56, "patch_size": 7, "vision_use_head": False}}
    processor = {"size": {"height": 56, "width": 56}, **NORM}
    classes = ("Gemma3Config", "Gemma3ForConditionalGeneration", "Gemma3ImageProcessorPil")
    settings = ("model.pictures=true",)

    @staticmethod
    def written(text):
        return "<image>".join(part.strip() for part in text.split("<image>"))

    @staticmethod
    def texts(inputs):
        return ["\n\n<start_of_image>" + "<image_soft_token>" * 16 + "<end_of_image>\n\n"] * len(inputs.get("pixel_values", ()))

    @staticmethod
    def types(ids):
        return {"token_type_ids": (ids == Gemma.image).int()}


FAMILIES = {"qwen3_vl": Qwen, "qwen2_5_vl": Qwen25, "gemma3": Gemma}


def byte_letters():
    """The letter of each byte, as byte-level tokenizers write it."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte if byte in kept else 256 + others.index(byte)) for byte in range(256)}


def write_model(folder, family):
    folder.mkdir()
    letters = byte_letters()
    added = [{"id": 256 + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, name in enumerate(family.special)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    files = {
        "config.json": family.config,
        "preprocessor_config.json": family.processor,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": family.special[1],
                                  "eos_token": family.end, "pad_token": family.special[0], "chat_template": family.template},
        "tokenizer.json": {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                           "pre_tokenizer": level, "post_processor": None, "decoder": level,
                           "model": {"type": "BPE", "vocab": {letters[b]: b for b in range(256)}, "merges": []}}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
