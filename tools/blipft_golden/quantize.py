"""Block-wise quantisation and 8-bit Adam after the papers, with numpy. With --bitsandbytes it is compared with that library on the
CPU, too (needs torch and bitsandbytes).

Code books: QLoRA (Dettmers et al. 2023) and 8-bit optimizers (Dettmers et al. 2022). A number's code is the count of
midpoints between neighbouring values that lie below number * (1 / absmax), all in f32; int8 rounds number * (127 /
absmax) to the nearest integer, ties to even.
"""
import json
import pathlib

import numpy as np

F = np.float32
NF4 = np.array([-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1],
               F)


def dynamic_values(signed):
    """Midpoints of linear divisions of [0.1, 1], a decade each; bounds as torch.linspace rounds them in f32."""
    values = [0.0, 1.0]
    for i in range(7):
        parts = 2 ** (i if signed else i + 1)
        step = (F(1) - F(0.1)) / F(parts)
        bounds = np.array([F(float(F(0.1)) + float(step) * j) if j < (parts + 1) // 2 else
                           F(1 - float(step) * (parts - j)) for j in range(parts + 1)], F)
        means = F(10.0 ** (i - 6)) * ((bounds[:-1] + bounds[1:]) * F(0.5))
        values += list(means) + ([-m for m in means] if signed else [])
    return np.sort(np.array(values, F))


BOOKS = {"nf4": (NF4, 64), "int8": (None, 64), "dynamic8": (dynamic_values(True), 256),
         "dynamic8_unsigned": (dynamic_values(False), 256)}


def encode(name, x):
    """Codes of whole blocks, one an element, and scales."""
    values, block = BOOKS[name]
    blocks = np.zeros(-(-len(x) // block) * block, F)
    blocks[:len(x)] = x
    blocks = blocks.reshape(-1, block)
    scales = np.abs(blocks).max(1)
    factor = np.divide(F(127 if name == "int8" else 1), scales, where=scales > 0, out=np.zeros_like(scales))
    y = blocks * factor[:, None]
    if values is None:
        codes = np.rint(y).astype(np.int8).view(np.uint8)
    else:
        codes = np.searchsorted((values[:-1] + values[1:]) * F(0.5), y.ravel(), side="left").astype(np.uint8)
    return codes.ravel(), scales


def decode(name, codes, scales, n):
    values, block = BOOKS[name]
    if values is None:
        x = codes.view(np.int8).astype(F).reshape(-1, block) * (scales / F(127))[:, None]
    else:
        x = values[codes].reshape(-1, block) * scales[:, None]
    return x.ravel()[:n]


def packed(name, codes):
    return codes[::2] << 4 | codes[1::2] if name == "nf4" else codes


def numbers(name, rng):
    """Weights of several sizes, a heavy tail, exact midpoints, zeros, and a cut block at the end."""
    values, block = BOOKS[name]
    parts = [rng.normal(0, s, block) for s in (0.02, 1, 1e-6, 3e4)] + [rng.standard_t(2, 2 * block), np.zeros(block)]
    ties = np.zeros(block, F)
    steps = (np.arange(block) - block // 2 + 0.5) / 127 if values is None else (values[:-1] + values[1:]) * F(0.5)
    ties[:min(block, len(steps))] = steps[:block]
    ties[-1] = 1
    x = np.concatenate(parts + [ties, rng.normal(0, 1, block // 2 + 5)]).astype(F)
    return np.abs(x) if name == "dynamic8_unsigned" else x


def adam(rng, n=1000, steps=3):
    """AdamW with moments in codes; every step in f32."""
    lr, b1, b2, eps, wd = F(1e-2), F(0.9), F(0.95), F(1e-6), F(0.1)
    p = rng.normal(0, 1, n).astype(F)
    grads = (rng.normal(0, 1, (steps, n)) * np.exp(rng.normal(0, 3, n))).astype(F)
    result = {"adam.p": p.copy(), "adam.grads": grads}
    state = {name: encode(name, np.zeros(n, F)) for name in ("dynamic8", "dynamic8_unsigned")}
    for t, g in enumerate(grads, 1):
        m, v = (decode(name, *state[name], n) for name in state)
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        p -= lr * wd * p
        p -= lr * (m / F(1 - float(b1) ** t)) / (np.sqrt(v / F(1 - float(b2) ** t)) + eps)
        state = {"dynamic8": encode("dynamic8", m), "dynamic8_unsigned": encode("dynamic8_unsigned", v)}
    for name, (codes, scales) in state.items():
        result |= {f"adam.{name}.codes": codes, f"adam.{name}.scales": scales}
    return result | {"adam.updated": p}


def golden():
    rng = np.random.default_rng(17)
    tensors = {}
    for name, (values, _) in BOOKS.items():
        x = numbers(name, rng)
        codes, scales = encode(name, x)
        tensors |= {f"{name}.x": x, f"{name}.codes": packed(name, codes), f"{name}.scales": scales,
                    f"{name}.decoded": decode(name, codes, scales, len(x))}
        if values is not None:
            tensors[f"{name}.values"] = values
    return tensors | adam(rng)


def save(tensors, path):
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": {"float32": "F32", "uint8": "U8"}[t.dtype.name], "shape": list(t.shape),
                        "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in tensors.values()))


def compare(tensors):
    import bitsandbytes
    import torch
    from bitsandbytes import functional
    print("bitsandbytes", bitsandbytes.__version__, "torch", torch.__version__)
    same = lambda a, b: f"{int((a == b).sum())} of {a.size} equal"
    for name, signed in (("dynamic8", True), ("dynamic8_unsigned", False)):
        code = functional.create_dynamic_map(signed)
        print(name, "values:", same(tensors[f"{name}.values"], code.numpy()))
        x = torch.from_numpy(tensors[f"{name}.x"])
        codes, state = functional.quantize_blockwise(x, code=code.clone(), blocksize=256)
        own = tensors[f"{name}.codes"][:len(x)]
        far = np.abs(codes.numpy().astype(int) - own.astype(int)).max()
        print(name, "codes:", same(codes.numpy(), own), f"(at most {far} apart), scales:",
              same(state.absmax.numpy(), tensors[f"{name}.scales"]))
        state.absmax = torch.from_numpy(tensors[f"{name}.scales"])
        decoded = functional.dequantize_blockwise(torch.from_numpy(own.copy()), state)
        print(name, "decoded:", same(decoded.numpy(), tensors[f"{name}.decoded"]))
        # Its definition, in torch, as the backend for devices without kernels computes it.
        bounds, blocks = (code[:-1] + code[1:]) / 2, torch.nn.functional.pad(x, (0, -len(x) % 256)).view(-1, 256)
        scaled = blocks * (1.0 / blocks.abs().max(1)[0].clamp(min=1e-38))[:, None]
        print(name, "codes by its definition:", same(torch.bucketize(scaled, bounds).numpy().ravel(),
                                                     tensors[f"{name}.codes"]))
    x = torch.from_numpy(tensors["nf4.x"])
    codes, state = functional.quantize_4bit(x, blocksize=64, quant_type="nf4")
    own = tensors["nf4.codes"][:len(codes.ravel())]
    print("nf4 codes:", same(codes.numpy().ravel(), own), "scales:", same(state.absmax.numpy(), tensors["nf4.scales"]))
    print("nf4 decoded:", same(functional.dequantize_4bit(codes, state).numpy(), tensors["nf4.decoded"]))


def make(folder, options):
    tensors = golden()
    if options.bitsandbytes:
        compare(tensors)
    save(tensors, pathlib.Path(folder) / "model.safetensors")
