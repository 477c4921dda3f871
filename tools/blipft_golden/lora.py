"""LoRA of PEFT on tiny models: `adapter/` as save_pretrained writes it, all matrices random, so that none is zero.

Gradients and weights after five AdamW steps are the adapters', under PEFT's keys, and merged.<key> are the weights that
merge_and_unload leaves of the first adapted module.
"""
import peft
import torch

from .blip2 import CASES, Blip2
from .decoders import Decoder
from .reference import TinyModel, converted, exact

LLAMA = dict(family="Llama", hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=64, max_position_embeddings=24)


class Lora(TinyModel):
    def __init__(self, base, lora):
        super().__init__(base.seed, base.lengths)
        self.base, self.lora = base, lora
        self.family, self.pad, self.pictures = base.family, base.pad, base.pictures
        self.batch, self.inputs = base.batch, base.inputs

    def save(self, folder):
        """PEFT's adapters of the model with random numbers."""
        self.base.save(folder)
        model = peft.get_peft_model(self.base.load(folder, torch.float32), peft.LoraConfig(**self.lora))
        generator = torch.Generator().manual_seed(self.seed + 1000)
        with torch.no_grad():
            for parameter in self.trained(model).values():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5)
        model.peft_config["default"].base_model_name_or_path = folder.name
        model.save_pretrained(folder / "adapter")
        (folder / "adapter/README.md").unlink(missing_ok=True)

    def load(self, folder, dtype):
        model = self.base.load(folder, dtype)
        return converted(peft.PeftModel.from_pretrained(model, folder / "adapter", is_trainable=True), dtype)

    def trained(self, model):
        """By their keys in adapter_model.safetensors."""
        return {name.replace(".default.", "."): p for name, p in model.named_parameters() if "lora_" in name}

    def more(self, folder, model):
        with exact(self.family):
            model = self.load(folder, torch.float64)
            first = next(name for name in self.trained(model) if "lora_A" in name)
            key = first.replace("base_model.model.", "").replace(".lora_A", "")
            merged = dict(model.merge_and_unload().named_parameters())[key].detach().float().contiguous()
        return {"merged." + key: merged}, dict(peft=peft.__version__, lora=self.lora, merged=key)


MODELS = {
    # Everything, the head too, which its targets name as the lab's script does.
    "lora_all": Lora(Decoder(**LLAMA, seed=11, lengths=[7, 4, 12]), dict(r=4, lora_alpha=6, target_modules=[
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"])),
    # Some parts of packed layers, a scale of its own, a tied head.
    "lora_some": Lora(Decoder(**LLAMA, seed=12, lengths=[5, 9], tie_word_embeddings=True), dict(
        r=3, lora_alpha=2, use_rslora=True, target_modules=["k_proj", "up_proj"])),
    # The language model of BLIP-2.
    "lora_blip2": Lora(Blip2(**{**CASES["ordinary"], "seed": 13}), dict(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])),
}
