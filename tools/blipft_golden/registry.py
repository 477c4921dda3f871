"""The sets of golden data, and what makes them."""
import importlib
import pathlib
import shutil
import tempfile

from .archive import GOLDEN, pack, unpack

# Modules whose MODELS are one set each: the tiny models.
MODEL_FAMILIES = ("blip2", "decoders", "t5", "instructblip", "lora")
# Other sets, and the modules that write their files, in this order; PLAIN: a folder with one file, which is no archive.
PARTS = {
    "tokenizer": ("small_tokenizers", "sentencepiece_models", "bert", "decode"),
    "text": ("conversations", "chat_templates"),
    "generation": ("generation", "model_generation"),
    "metrics": ("metrics",),
    "images": ("images",),
    "pixels": ("pixels",),
    "patch_positions": ("patch_positions",),
    "vision_qwen3_vl": ("vision_models",),
    "vision_qwen2_5_vl": ("vision_models",),
    "vision_gemma3": ("vision_models",),
    "quantize": ("quantize",),
    "safetensors": ("safetensors_file",),
}
PLAIN = ("quantize", "safetensors")


def module(name):
    return importlib.import_module(f"blipft_golden.{name}")


def tiny_models():
    """{set: TinyModel} of all families."""
    return {name: tiny for family in MODEL_FAMILIES for name, tiny in module(family).MODELS.items()}


def make(name, options):
    """Makes a set anew, or of a name SET/PART that part alone; what is not made stays as it is."""
    set_name, _, part = name.partition("/")
    target = GOLDEN / set_name if set_name in PLAIN else GOLDEN / f"{set_name}.safetensors"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / set_name
        folder.mkdir()
        if set_name in PARTS:
            if target.is_file():
                unpack(target, folder)
            for each in [part] if part else PARTS[set_name]:
                if getattr(options, getattr(module(each), "NEEDED_OPTION", "shared")):
                    module(each).make(folder, options)
                else:
                    print(f"{set_name}/{each} is left as it is: give --{module(each).NEEDED_OPTION}")
        else:
            module("reference").make(tiny_models()[set_name], folder)
        if set_name in PLAIN:
            shutil.copytree(folder, target, dirs_exist_ok=True)
        else:
            pack(folder, target)
    print(f"{target}: {sum(path.stat().st_size for path in [target, *target.rglob('*')] if path.is_file())} bytes")
