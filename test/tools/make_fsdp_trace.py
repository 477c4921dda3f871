"""Makes the trace of a plausible FSDP run on four ranks, in which every rank and every clock is known."""
import numpy as np

import make_synthetic_trace as synthetic

RANKS, STEPS = 4, 24
UNITS = ["vision.layers.0", "vision.layers.1", "language.layers.0", "language.layers.1", "language.head"]
P = {name: i for i, name in enumerate(synthetic.PHASES)}


class FsdpRun:
    """Four FSDP ranks: gathers run ahead of the compute they are for, reduce-scatters behind it; rank 2 is slower.

    A collective ends on all ranks when the last one has come and the bytes have moved.
    """

    def __init__(self):
        self.random = np.random.default_rng(0)
        self.now = np.full(RANKS, 10_000_000)       # when each rank's compute stream is free
        self.network = np.full(RANKS, 10_000_000)   # and its communication stream
        self.steps, self.spans, self.memory = ([[] for _ in range(RANKS)] for _ in range(3))
        for step in range(STEPS):
            self.add_step(step)

    def add(self, phase, stream, begin, end, step, micro, unit, size=0, flops=0.0):
        for rank in range(RANKS):
            self.spans[rank].append((step, micro, unit, P[phase], stream, begin[rank], end[rank], size, flops))

    def collective(self, phase, *where):
        end = np.full(RANKS, self.network.max() + int(3e6 * self.random.uniform(0.9, 1.2)))
        self.add(phase, 1, self.network, end, *where, size=50_000_000)
        self.network = end

    def compute(self, phase, length, *where, flops=2e12):
        times = length * self.random.uniform(0.95, 1.05, RANKS) * np.where(np.arange(RANKS) == 2, 1.1, 1.0)
        end = self.now + times.astype(np.int64)
        self.add(phase, 0, self.now, end, *where, flops=flops)
        self.now = end

    def add_step(self, step):
        begin = np.maximum(self.now, self.network) + 50_000
        self.add("data_wait", 3, begin, begin + 1_500_000, step, 0, -1)
        self.now = self.network = begin + 2_000_000
        for micro in range(2):
            for phase, units in (("forward", range(5)), ("backward", range(4, -1, -1))):
                for unit in units:
                    self.collective("gather", step, micro, unit)
                    self.now = np.maximum(self.now, self.network)
                    self.compute(phase, 4e6 if phase == "forward" else 8e6, step, micro, unit)
                    if phase == "backward":
                        self.network = np.maximum(self.network, self.now)
                        self.collective("reduce_scatter", step, micro, unit)
        self.now = np.maximum(self.now, self.network)
        self.compute("optimizer", 3e6, step, 1, -1, flops=0.0)
        for rank in range(RANKS):
            self.steps[rank].append((step, step // 8, 9 * 0.9**step, 1e-4 * (1 - step / STEPS), 2.0, 160.0, 300.0,
                                     begin[rank], self.now[rank], 1_500_000, 50))
            if step < 2:
                self.memory[rank] += self.memory_of(step, int(self.now[rank]))

    def memory_of(self, step, now):
        activations = {"before_forward": 0, "after_forward": 5 + step, "after_backward": 1, "after_optimizer": 0}
        return [(step, moment.encode(), owner, now, size << 30) for moment, held in activations.items()
                for owner, size in ((b"parameters", 3), (b"optimizer", 6), (b"activations", held))]

    def tables(self, rank):
        device = [(at, 95.0 + rank, 640.0, 1700.0, 2600.0, 50.0, 20 << 30, 2 << 30)
                  for at in range(0, int(self.now[rank]), 200_000_000)]
        plan = [(b"p", b"parameters", 3 << 30), (b"o", b"optimizer", 6 << 30), (b"a", b"activations", 6 << 30)]
        return {"steps": self.steps[rank], "spans": self.spans[rank], "memory": self.memory[rank], "plan": plan,
                "device": device}

    def write(self, folder, clocks=(0, 0, 0, 0)):
        """clocks: how many ns each rank's clock is ahead."""
        folder.mkdir()
        for rank in range(RANKS):
            tables = self.tables(rank)
            for table in ("steps", "spans"):
                rows = np.array(tables[table], synthetic.dtypes(synthetic.PHASES)[table])
                for name in ("begin_ns", "end_ns"):
                    rows[name] += clocks[rank]
                tables[table] = rows
            synthetic.write_trace(folder / f"trace.rank{rank:04d}.h5", tables, UNITS)
        return folder
