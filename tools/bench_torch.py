#!/usr/bin/env python3
"""The training step that tools/bench.py times, in PyTorch: transformers' BLIP-2 opt-2.7b, random weights and inputs.

    python3 tools/bench_torch.py --strategy single --bs 16 --accum 4
    torchrun --nproc-per-node 4 tools/bench_torch.py --strategy fsdp2 --compile --fused --bs 64 --accum 1

Everything is bf16 (parameters, gradients, AdamW's moments); a sample has 32 picture and --seq text positions, all with
labels but the pictures'. A step's time is the median distance between the beginnings of consecutive steps on the
device's clock, the first two left out. The last line of rank 0 is RESULT and a JSON object: step_s, samples_s,
first_step_s (from the start of this script), allocated_gib and reserved_gib (of the caching allocator, at the peak).
"""
import argparse
import contextlib
import json
import os
import statistics
import time

START = time.perf_counter()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

QUERIES, IMAGE_TOKEN, VOCABULARY = 32, 50265, 50304


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--strategy", choices=("single", "ddp", "fsdp1", "fsdp2"), default="single",
        help="fsdp1: FullyShardedDataParallel; fsdp2: fully_shard")
    add("--bs", type=int, default=16, help="samples of a micro-batch of one GPU")
    add("--accum", type=int, default=4, help="micro-batches of a step")
    add("--seq", type=int, default=50, help="text positions")
    add("--steps", type=int, default=5, help="steps that are timed")
    add("--warmup", type=int, default=2, help="steps before them")
    add("--compile", action="store_true", help="torch.compile for each layer")
    add("--fused", action="store_true", help="the fused AdamW")
    add("--ckpt", action="store_true", help="activation checkpointing")
    add("--no-sync", action="store_true", help="fsdp: reduce gradients in the last micro-batch alone")
    add("--reshard", type=int, choices=(0, 1), default=1, help="fsdp2, 0: gathered parameters stay for the whole step")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--tiny", action="store_true", help="a small model, to test this script")
    return parser.parse_args()


def make_config(tiny):
    from transformers import Blip2Config, Blip2QFormerConfig, Blip2VisionConfig, OPTConfig
    vision, qformer = {}, {}
    text = dict(hidden_size=2560, num_hidden_layers=32, ffn_dim=10240, num_attention_heads=32, word_embed_proj_dim=2560)
    if tiny:
        vision = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2)
        qformer = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
                       encoder_hidden_size=64)
        text = dict(hidden_size=64, num_hidden_layers=2, ffn_dim=128, num_attention_heads=2, word_embed_proj_dim=64)
    decoder = OPTConfig(vocab_size=VOCABULARY, max_position_embeddings=2048, do_layer_norm_before=True, use_cache=False,
                        **text)
    return Blip2Config(vision_config=Blip2VisionConfig(**vision).to_dict(), num_query_tokens=QUERIES,
                       qformer_config=Blip2QFormerConfig(**qformer).to_dict(), text_config=decoder.to_dict(),
                       image_token_index=IMAGE_TOKEN)


def make_model(arguments, device):
    """The model in bf16, and the classes of its layers."""
    from transformers import Blip2ForConditionalGeneration
    from transformers.models.blip_2 import modeling_blip_2
    from transformers.models.opt import modeling_opt
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Blip2ForConditionalGeneration(make_config(arguments.tiny))
    torch.set_default_dtype(torch.float32)
    model.train()
    if arguments.ckpt:
        model.gradient_checkpointing_enable()
    layers = (modeling_blip_2.Blip2EncoderLayer, modeling_blip_2.Blip2QFormerLayer, modeling_opt.OPTDecoderLayer)
    if arguments.compile:
        torch._dynamo.config.recompile_limit = 64  # layers of one class differ in constants that the compiler guards
        for module in model.modules():
            if isinstance(module, layers):
                module.compile()
    return model, layers


def make_batch(arguments, device):
    """Random pictures and tokens; picture positions come first and have no labels."""
    samples = arguments.bs
    text = torch.randint(4, 50000, (samples, arguments.seq), device=device)
    text[:, 0] = 2
    pictures = torch.full((samples, QUERIES), IMAGE_TOKEN, device=device)
    ids = torch.cat([pictures, text], 1)
    return dict(pixel_values=torch.randn(samples, 3, 224, 224, device=device, dtype=torch.bfloat16), input_ids=ids,
                attention_mask=torch.ones_like(ids), labels=torch.cat([torch.full_like(pictures, -100), text], 1))


def distribute(arguments, model, layers, device):
    """The model under its strategy, and `micro_batch(last)`: the context of a micro-batch."""
    ids = [device.index] if device.type == "cuda" else None
    if arguments.strategy == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
        return model, lambda last: contextlib.nullcontext() if last else model.no_sync()
    if arguments.strategy == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        types = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
        model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy(set(layers)), device_id=device,
                                         mixed_precision=types, use_orig_params=True)
        return model, lambda last: contextlib.nullcontext() if last or not arguments.no_sync else model.no_sync()
    if arguments.strategy == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        settings = dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
                        reshard_after_forward=bool(arguments.reshard))
        for module in [m for m in model.modules() if isinstance(m, layers)]:
            fully_shard(module, **settings)
        fully_shard(model, **settings)

        @contextlib.contextmanager
        def micro_batch(last):
            if arguments.no_sync:
                model.set_requires_gradient_sync(last)
            if not arguments.reshard:
                model.set_reshard_after_backward(last)
            yield
        return model, micro_batch
    return model, lambda last: contextlib.nullcontext()


class Clock:
    """Readings of the device's clock by events, for which no step waits."""

    def __init__(self, cuda):
        self.cuda, self.readings = cuda, []

    def read(self):
        if self.cuda:
            self.readings.append(torch.cuda.Event(enable_timing=True))
            self.readings[-1].record()
        else:
            self.readings.append(time.perf_counter())

    def periods(self):
        """Seconds between consecutive readings."""
        if self.cuda:
            torch.cuda.synchronize()
        pairs = zip(self.readings, self.readings[1:])
        return [a.elapsed_time(b) * 1e-3 if self.cuda else b - a for a, b in pairs]


def train(arguments, model, micro_batch, batch, cuda):
    """Times of the steps, the end of the first one, and the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=arguments.fused or None)
    clock, first_end = Clock(cuda), None
    for step in range(arguments.warmup + arguments.steps):
        if cuda and step == arguments.warmup:
            torch.cuda.reset_peak_memory_stats()
        clock.read()
        for index in range(arguments.accum):
            with micro_batch(index + 1 == arguments.accum):
                loss = model(**batch).loss
                (loss / arguments.accum).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if first_end is None:
            loss.item()
            first_end = time.perf_counter()
    clock.read()
    return clock.periods()[arguments.warmup:], first_end, float(loss.detach())


def main():
    arguments = parse_arguments()
    world, rank, local = (int(os.environ.get(name, default)) for name, default in
                          (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = arguments.device == "cuda"
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    model, layers = make_model(arguments, device)
    model, micro_batch = distribute(arguments, model, layers, device)
    periods, first_end, loss = train(arguments, model, micro_batch, make_batch(arguments, device), cuda)
    if rank == 0:
        seconds = statistics.median(periods)
        memory = dict(allocated_gib=torch.cuda.max_memory_allocated() / 2 ** 30,
                      reserved_gib=torch.cuda.max_memory_reserved() / 2 ** 30) if cuda else {}
        print("RESULT " + json.dumps(dict(
            step_s=seconds, samples_s=arguments.bs * arguments.accum * world / seconds, first_step_s=first_end - START,
            **memory, loss=loss, periods_s=periods, gpus=world, torch=torch.__version__)), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
