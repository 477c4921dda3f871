"""Selection of the steps whose spans are read: all of a short run, else a fixed sample over the whole run."""
import numpy as np

FULL_SPANS = 3_000_000    # of all ranks; up to these every step is read
SAMPLE_SPANS = 2_500_000  # of all ranks, in the sample of a longer run
LEAST_STEPS = 12          # of a sample, however many ranks there are
LEAST_CLUSTERS = 16
PIECE = 8192              # spans of a rank; it is hardly faster to read fewer
LEAST_CLUSTER = 3         # steps taken from one place: the steps on either side of them have to be read, too
SLOWEST = 3               # steps that are shown one by one
SLOW = 1.2                # times the median: a step that is slow


def choose_steps(count, spans, spans_of_rank):
    """Positions of the chosen steps among `count` steps, given the number of spans of all ranks and of one rank.

    The run is cut into equal stretches and a few neighbouring steps are taken from each, at a place that differs from
    stretch to stretch, so that a periodic event is neither always hit nor always missed.
    """
    if spans <= FULL_SPANS:
        return np.arange(count)
    wanted = max(int(SAMPLE_SPANS * count / spans), LEAST_STEPS)
    if wanted >= count:
        return np.arange(count)
    cluster = min(max(int(PIECE * count / max(spans_of_rank, 1)), LEAST_CLUSTER), max(wanted // LEAST_CLUSTERS, 1))
    clusters = wanted // cluster
    edges = np.linspace(0, count, clusters + 1)
    room = np.maximum(np.diff(edges) - cluster, 0)
    place = (np.arange(clusters) + 0.5) * 0.6180339887498949 % 1  # the golden ratio spreads them evenly
    first = (edges[:-1] + place * room).astype(np.int64)
    return np.unique(np.minimum(first[:, None] + np.arange(cluster), count - 1))


def slowest_steps(numbers, longest):
    """The numbers of the few slowest steps, slowest first; none if no step is much slower than the median."""
    order = np.argsort(-longest, kind="stable")[:SLOWEST]
    limit = SLOW * np.median(longest)
    return [int(numbers[i]) for i in order if longest[i] > limit]
