#!/usr/bin/env python3
"""Times FlashAttention-2 and cuDNN's attention, as PyTorch calls them, forward and backward, in bf16.

    python3 tools/bench_attention.py                                   the shapes of BLIP-2 and LLaMA
    python3 tools/bench_attention.py --shapes FILE --json FILE         other shapes, and the times as JSON

FILE of --shapes: a list of objects with batch, heads, queries, keys, head_size, causal, dropout (op_bench --json writes
them). Calls are launched back to back behind a waiting kernel, so that no launch counts, over sets of tensors that
together are more than twice the L2 cache; times are medians of several rounds in us. Backward is autograd's: dq, dk and
dv. Queries, keys and values are [batch, tokens, heads, head size] in memory, as a model's projections write them.
"""
import argparse
import json
import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
ROTATE_BYTES = 150 << 20
LAUNCHES, ROUNDS, WARM_UPS = 32, 7, 2
WAIT_CYCLES = 40_000_000  # about 20 ms: longer than the launches of a round


def shape(name, batch, heads, queries, keys, head_size, causal=False, dropout=0.0):
    return dict(name=name, batch=batch, heads=heads, queries=queries, keys=keys, head_size=head_size, causal=causal,
                dropout=dropout)


SHAPES = [
    *[s for b in (16, 64) for s in (
        shape("vit", b, 16, 257, 257, 88), shape("opt", b, 32, 82, 82, 80, True),
        shape("qformer cross", b, 12, 32, 257, 64, dropout=0.1),
        shape("qformer self", b, 12, 32, 32, 64, dropout=0.1))],
    shape("llama 512", 4, 32, 512, 512, 128, True), shape("llama 2048", 4, 32, 2048, 2048, 128, True),
    shape("llama 3b", 4, 32, 512, 512, 100, True), shape("head size 64", 16, 16, 257, 257, 64),
    shape("head size 100", 16, 14, 257, 257, 100),
]


def time_calls(calls, device):
    """Microseconds of one call, the median of the rounds; `calls` are run in turn."""
    count = len(calls) * max(1, LAUNCHES // len(calls))
    times = []
    for number in range(-WARM_UPS, ROUNDS):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            torch.cuda._sleep(WAIT_CYCLES)
            begin.record()
        else:
            start = time.perf_counter()
        for i in range(count):
            calls[i % len(calls)]()
        if device == "cuda":
            end.record()
            torch.cuda.synchronize()
            microseconds = begin.elapsed_time(end) * 1e3
        else:
            microseconds = (time.perf_counter() - start) * 1e6
        if number >= 0:
            times.append(microseconds / count)
    return statistics.median(times)


def make_set(s, device):
    """q, k and v with gradients."""
    sizes = [(s["batch"], tokens, s["heads"], s["head_size"]) for tokens in (s["queries"], s["keys"], s["keys"])]
    return [torch.randn(size, device=device, dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for size in sizes]


def time_shape(s, backend, device):
    """Returns {forward, backward} in us."""
    bytes_of_set = 2 * s["batch"] * s["heads"] * s["head_size"] * (2 * s["queries"] + 2 * s["keys"])
    sets = [make_set(s, device) for _ in range(min(64, max(2, ROTATE_BYTES // bytes_of_set + 1)))]

    def attend(q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=s["causal"], dropout_p=s["dropout"])

    with sdpa_kernel(backend):
        forward = time_calls([lambda t=t: attend(*t) for t in sets], device)  # as in training: saves tensors for backward
        outputs = [attend(*t) for t in sets]
        gradients = [torch.randn_like(out) for out in outputs]
        backward = time_calls([lambda t=t, o=o, g=g: torch.autograd.grad(o, t, g, retain_graph=True)
                               for t, o, g in zip(sets, outputs, gradients)], device)
    return dict(forward=forward, backward=backward)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", help="JSON file with the shapes (default: those of BLIP-2 and LLaMA)")
    parser.add_argument("--json", help="file for the times")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    shapes = SHAPES
    if arguments.shapes:
        with open(arguments.shapes, encoding="utf-8") as file:
            shapes = json.load(file)
    results = []
    for s in shapes:
        result = dict(s)
        for name, backend in BACKENDS.items():
            try:
                result[name] = time_shape(s, backend, arguments.device)
                text = f"forward {result[name]['forward']:8.1f} us, backward {result[name]['backward']:8.1f} us"
            except RuntimeError as error:  # the backend does not support this shape or device
                result[name] = dict(error=(str(error).strip().splitlines() or ["failed"])[0][:200])
                text = result[name]["error"]
            sizes = "x".join(str(s[key]) for key in ("batch", "heads", "queries", "keys", "head_size"))
            print(f"{s['name']:16} {sizes:20} {'causal' if s['causal'] else '':6} {name:6} {text}", flush=True)
        results.append(result)
    if arguments.json:
        device = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(dict(device=device, torch=torch.__version__, shapes=results), file, indent=1)


if __name__ == "__main__":
    main()
