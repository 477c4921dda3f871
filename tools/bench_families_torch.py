#!/usr/bin/env python3
"""What tools/bench.py --families puts beside blipft: the same training step in transformers (and PEFT), random weights, bf16.

    python3 tools/bench_families_torch.py --model FOLDER --batch 2 --accumulate 8 --tokens 4096 [--lora 16] [--recompute]

FOLDER has a config.json. Layers are compiled, AdamW is the fused one, attention is scaled_dot_product_attention. Of a model
with pictures --tokens are those that the language model learns. The last line is RESULT and a JSON object: step_s (the median
distance between the beginnings of consecutive steps on the device's clock), allocated_gib at the peak, parameters, loss.
"""
import argparse
import json
import statistics

import torch
import transformers


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True)
    add("--batch", type=int, required=True)
    add("--accumulate", type=int, default=1)
    add("--tokens", type=int, required=True)
    add("--lora", type=int, default=0, help="rank of adapters on every matrix of the layers")
    add("--recompute", action="store_true", help="activation checkpointing")
    add("--steps", type=int, default=4, help="steps that are timed")
    add("--warmup", type=int, default=2, help="steps before them")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


def make_model(arguments, config):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(arguments.device):
        if config.model_type == "blip-2":
            model = transformers.Blip2ForConditionalGeneration(config)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config.get_text_config())
    torch.set_default_dtype(torch.float32)
    model.train()
    if arguments.lora:
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(r=arguments.lora, lora_alpha=2 * arguments.lora, lora_dropout=0.0,
                                                           target_modules="all-linear", task_type="CAUSAL_LM"))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16)
    if arguments.recompute:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    torch._dynamo.config.recompile_limit = 64  # layers of one class differ in numbers that the compiler guards
    for module in model.modules():
        if type(module).__name__.endswith(("DecoderLayer", "EncoderLayer", "QFormerLayer", "T5Block")):
            module.compile()
    return model


def make_batch(arguments, config):
    device, samples = arguments.device, arguments.batch
    if config.model_type != "blip-2":
        ids = torch.randint(3, 400, (samples, arguments.tokens), device=device)
        return dict(input_ids=ids, labels=ids, use_cache=False)
    size = config.vision_config.image_size
    labels = torch.randint(3, 400, (samples, arguments.tokens), device=device)
    ids = torch.full((samples, config.num_query_tokens + 1), config.image_token_index, device=device)
    ids[:, -1] = config.text_config.eos_token_id
    return dict(pixel_values=torch.randn(samples, 3, size, size, device=device, dtype=torch.bfloat16), input_ids=ids,
                attention_mask=torch.ones_like(ids), labels=labels)


def main():
    arguments = parse_arguments()
    cuda = arguments.device == "cuda"
    config = transformers.AutoConfig.from_pretrained(arguments.model)
    model = make_model(arguments, config)
    batch = make_batch(arguments, config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=cuda)
    clock = []
    for _ in range(arguments.warmup + arguments.steps + 1):
        if cuda:
            clock.append(torch.cuda.Event(enable_timing=True))
            clock[-1].record()
        for _ in range(arguments.accumulate):
            loss = model(**batch).loss
            (loss / arguments.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    periods = []
    if cuda:
        torch.cuda.synchronize()
        periods = [a.elapsed_time(b) * 1e-3 for a, b in zip(clock, clock[1:])][arguments.warmup:]
    print("RESULT " + json.dumps(dict(
        step_s=statistics.median(periods) if cuda else None, periods_s=periods, loss=float(loss.detach()),
        parameters=sum(parameter.numel() for parameter in model.parameters()), trained=sum(p.numel() for p in trained),
        allocated_gib=torch.cuda.max_memory_allocated() / 2 ** 30 if cuda else None,
        torch=torch.__version__, transformers=transformers.__version__)), flush=True)


if __name__ == "__main__":
    main()
