"""The configurations of the table, the same step in PyTorch, and how long each takes on four H200."""
TEXT_TOKENS = 50
WARMUP = 3  # the first steps of blipft, which capture the graph and fill the queues, are left out

# eager, best: arguments of bench_torch.py, plain and in the fastest variant known for the row. expected: seconds of a
# step on an H200 (blipft, eager, best), the base of the estimates.
COMPILED = ["--compile", "--fused"]
GATHERED_ONCE = ["fsdp2", *COMPILED, "--no-sync", "--reshard", "0"]
ROWS = [
    dict(name="single-16x4", title="16 x 4",
         strategy="single", batch=16, accumulate=4, expected=(0.37, 0.55, 0.52),
         eager=["single"], best=["single", *COMPILED]),
    dict(name="single-64x1", title="64 x 1",
         strategy="single", batch=64, accumulate=1, expected=(0.35, 0.45, 0.41),
         eager=["single"], best=["single", *COMPILED]),
    dict(name="single-16x4-ckpt", title="16 x 4, act_ckpt full",
         strategy="single", batch=16, accumulate=4, expected=(0.48, 0.81, 0.8),
         keys=["train.act_ckpt=full"], eager=["single", "--ckpt"], best=["single", "--fused", "--ckpt"]),
    dict(name="ddp-16x4", title="DDP, 16 x 4",
         strategy="ddp", batch=16, accumulate=4, expected=(0.38, 0.58, 0.58),
         eager=["ddp"], best=["ddp", "--fused"]),  # compiled it is no faster
    dict(name="ddp-64x1", title="DDP, 64 x 1",
         strategy="ddp", batch=64, accumulate=1, expected=(0.36, 0.48, 0.44),
         eager=["ddp"], best=["ddp", *COMPILED]),
    dict(name="fsdp-16x4", title="FSDP, reshard always, 16 x 4",
         strategy="fsdp", batch=16, accumulate=4, expected=(0.45, 1.0, 0.86),
         keys=["parallel.reshard=always"], eager=["fsdp1"], best=GATHERED_ONCE),
    dict(name="fsdp-64x1", title="FSDP, reshard always, 64 x 1",
         strategy="fsdp", batch=64, accumulate=1, expected=(0.36, 0.49, 0.47),
         keys=["parallel.reshard=always"], eager=["fsdp1"], best=["fsdp2", *COMPILED]),
    dict(name="fsdp-16x4-ckpt", title="FSDP, reshard always, act_ckpt full, 16 x 4",
         strategy="fsdp", batch=16, accumulate=4, expected=(0.57, 1.43, 1.4),
         keys=["parallel.reshard=always", "train.act_ckpt=full"], eager=["fsdp1", "--ckpt"],
         best=["fsdp2", "--fused", "--ckpt"]),
    dict(name="fsdp-16x4-auto", title="FSDP, 16 x 4",
         strategy="fsdp", batch=16, accumulate=4, expected=(0.37, 1.0, 0.86),
         keys=["parallel.reshard=auto"], eager=["fsdp1"], best=GATHERED_ONCE),
]
NAMES = [row["name"] for row in ROWS]
# The order of PyTorch's runs within the budget: every row's best variant, then the plain ones.
VARIANTS = ("best", "eager")
TORCH_ORDER = ["single-16x4", "fsdp-16x4", "ddp-16x4", "fsdp-64x1", "ddp-64x1", "single-64x1", "fsdp-16x4-ckpt",
               "single-16x4-ckpt", "fsdp-16x4-auto"]

# Reasons for skipped runs.
NO_TIME, CUT_SHORT = "the budget is spent", "the budget was spent while it ran"
INTERRUPTED = "interrupted: the table has what was measured until then"

# Seconds from command to first step, and from the last step to the prompt.
BLIPFT_START = {"single": 6, "ddp": 8, "fsdp": 10}
TORCH_START, TORCH_RANKS_START, TORCH_COMPILE = 20, 8, 40


def torch_steps(steps):
    """Steps that PyTorch is timed for, after two to warm up."""
    return max(3, steps // 2)


def blipft_estimate(row, steps):
    """Seconds of one run on H200."""
    return BLIPFT_START[row["strategy"]] + row["expected"][0] * steps


def torch_estimate(row, variant, steps):
    start = TORCH_START + (TORCH_RANKS_START if row["strategy"] != "single" else 0)
    start += TORCH_COMPILE if "--compile" in row[variant] else 0
    return start + row["expected"][1 if variant == "eager" else 2] * (2 + torch_steps(steps))
