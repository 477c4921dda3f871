#!/usr/bin/env python3
"""The PyTorch side of tools/bench.py --families and --llama: the same training step in transformers (and PEFT), random weights, bf16.

    python3 tools/bench_families_torch.py --model FOLDER --batch 2 --accumulate 8 --tokens 4096 [--lora 16] [--recompute]
    python3 tools/bench_families_torch.py --model FOLDER --batch 4 --accumulate 4 --tokens 120 --photo 768x1024 [--lora 16]
    torchrun --nproc-per-node 4 tools/bench_families_torch.py --strategy fsdp --shard-ranks 2 [--mixed] ...

FOLDER has a config.json. Layers are compiled, AdamW is the fused one, attention is scaled_dot_product_attention. With
pictures, --tokens counts the labels of the language model, which follow one picture (--photo: the size to which the
processor scales it). The last line is RESULT and a JSON object: step_s (the median
distance between the beginnings of consecutive steps on the device's clock), allocated_gib at the peak, parameters, loss.
"""
import argparse
import contextlib
import json
import os
import statistics

import torch
import torch.distributed as dist
import transformers


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True)
    add("--batch", type=int, required=True)
    add("--accumulate", type=int, default=1)
    add("--tokens", type=int, required=True)
    add("--photo", help="HEIGHTxWIDTH in pixels, for models that read pictures of any size or Gemma 3")
    add("--lora", type=int, default=0, help="rank of adapters on every matrix of the layers")
    add("--strategy", choices=("single", "ddp", "fsdp"), default="single", help="fsdp: fully_shard, gathered once a step")
    add("--shard-ranks", type=int, help="fsdp: the ranks that share one copy of the parameters (default all)")
    add("--mixed", action="store_true", help="f32 parameters, arithmetic in bf16")
    add("--recompute", action="store_true", help="activation checkpointing")
    add("--steps", type=int, default=4, help="steps that are timed")
    add("--warmup", type=int, default=2, help="steps before them")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


def make_model(arguments, config):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if arguments.mixed else torch.bfloat16)
    with torch.device(arguments.device):
        if config.model_type == "blip-2":
            model = transformers.Blip2ForConditionalGeneration(config)
        elif arguments.photo:
            model = transformers.AutoModelForImageTextToText.from_config(config)
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
    torch._dynamo.config.recompile_limit = 64  # layers of one class differ in constants that the compiler guards
    layers = [module for module in model.modules()
              if type(module).__name__.endswith(("DecoderLayer", "EncoderLayer", "QFormerLayer", "T5Block", "VisionBlock"))]
    for layer in layers:
        layer.compile()
    return distribute(arguments, model, layers)


def distribute(arguments, model, layers):
    if arguments.strategy == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if arguments.strategy == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        ranks = dist.get_world_size()
        sharing = arguments.shard_ranks or ranks
        mesh = init_device_mesh(arguments.device, (ranks // sharing, sharing), mesh_dim_names=("copies", "shards"))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for module in [*layers, model]:
            fully_shard(module, mesh=mesh if sharing < ranks else mesh["shards"], reshard_after_forward=False, mp_policy=policy)
    return model


def start_ranks(arguments):
    """Joins the other ranks; returns this one's number."""
    if arguments.strategy == "single":
        return 0
    rank = int(os.environ["LOCAL_RANK"])
    if arguments.device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if arguments.device == "cuda" else "gloo")
    return rank


def summed_later(arguments, model, last):
    """The context of a micro-batch: only the last one sums gradients over the ranks."""
    if arguments.strategy == "fsdp":
        model.set_requires_gradient_sync(last)
    return model.no_sync() if arguments.strategy == "ddp" and not last else contextlib.nullcontext()


def make_batch(arguments, config):
    device, samples = arguments.device, arguments.batch
    if arguments.photo:
        return make_photo_batch(arguments, config)
    if config.model_type != "blip-2":
        ids = torch.randint(3, 400, (samples, arguments.tokens), device=device)
        return dict(input_ids=ids, labels=ids, use_cache=False)
    size = config.vision_config.image_size
    labels = torch.randint(3, 400, (samples, arguments.tokens), device=device)
    ids = torch.full((samples, config.num_query_tokens + 1), config.image_token_index, device=device)
    ids[:, -1] = config.text_config.eos_token_id
    return dict(pixel_values=torch.randn(samples, 3, size, size, device=device, dtype=torch.bfloat16), input_ids=ids,
                attention_mask=torch.ones_like(ids), labels=labels)


def make_photo_batch(arguments, config):
    """Samples of one picture and then text, as the family's processor makes them."""
    device, samples, vision = arguments.device, arguments.batch, config.vision_config
    if config.model_type == "gemma3":
        rows, image_id, size = config.mm_tokens_per_image, config.image_token_id, vision.image_size
        pixels = dict(pixel_values=torch.randn(samples, 3, size, size, device=device, dtype=torch.bfloat16))
    else:
        height, width = (int(side) // vision.patch_size for side in arguments.photo.split("x"))
        rows, image_id = height * width // vision.spatial_merge_size ** 2, config.image_token_id
        patches = torch.randn(samples * height * width, 3 * 2 * vision.patch_size ** 2, device=device, dtype=torch.bfloat16)
        pixels = dict(pixel_values=patches, image_grid_thw=torch.tensor([[1, height, width]] * samples, device=device))
    ids = torch.randint(3, 400, (samples, 4 + rows + arguments.tokens), device=device)
    ids[:, 4:4 + rows] = image_id
    labels = ids.clone()
    labels[:, :4 + rows] = -100
    kinds = "token_type_ids" if config.model_type == "gemma3" else "mm_token_type_ids"
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids), kinds: (ids == image_id).long(),
            "use_cache": False, **pixels}


def main():
    arguments = parse_arguments()
    cuda, rank = arguments.device == "cuda", start_ranks(arguments)
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
        for micro_batch in range(arguments.accumulate):
            with summed_later(arguments, model, micro_batch == arguments.accumulate - 1):
                loss = model(**batch).loss
                (loss / arguments.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    periods = []
    if cuda:
        torch.cuda.synchronize()
        periods = [a.elapsed_time(b) * 1e-3 for a, b in zip(clock, clock[1:])][arguments.warmup:]
    if rank == 0:
        say_result(model, trained, periods, loss, cuda)
    if dist.is_initialized():
        dist.destroy_process_group()


def say_result(model, trained, periods, loss, cuda):
    print("RESULT " + json.dumps(dict(
        step_s=statistics.median(periods) if cuda else None, periods_s=periods, loss=float(loss.detach()),
        parameters=sum(parameter.numel() for parameter in model.parameters()), trained=sum(p.numel() for p in trained),
        allocated_gib=torch.cuda.max_memory_allocated() / 2 ** 30 if cuda else None,
        torch=torch.__version__, transformers=transformers.__version__)), flush=True)


if __name__ == "__main__":
    main()
