"""Sets of time as sorted, disjoint intervals. Busy time is always the length of a union, never a sum of spans."""
import numpy as np


class Union:
    """The union of intervals [begin, end), in ns."""

    def __init__(self, begin, end):
        begin = np.asarray(begin, np.int64)
        end = np.asarray(end, np.int64)
        keep = end > begin
        if not keep.all():
            begin, end = begin[keep], end[keep]
        if len(begin) > 1:
            if (begin[1:] < begin[:-1]).any():
                order = np.argsort(begin, kind="stable")
                begin, end = begin[order], end[order]
            reach = np.maximum.accumulate(end)
            first = np.empty(len(begin), bool)
            first[0] = True
            np.greater(begin[1:], reach[:-1], out=first[1:])
            starts = np.flatnonzero(first)
            begin = begin[starts]
            end = reach[np.append(starts[1:], len(reach)) - 1]
        self.begin, self.end = begin, end
        self.before = np.concatenate(([0], np.cumsum(end - begin)))  # length of all intervals before each one

    def __or__(self, other):
        return Union(np.concatenate((self.begin, other.begin)), np.concatenate((self.end, other.end)))

    def length(self):
        return int(self.before[-1])

    def measure(self, time):
        """Length of the part before each of the given times."""
        time = np.asarray(time, np.int64)
        index = np.searchsorted(self.begin, time, side="right")  # intervals that begin at or before
        if not len(self.begin):
            return np.zeros(time.shape, np.int64)
        last = np.maximum(index - 1, 0)
        beyond = np.where(index > 0, np.maximum(self.end[last] - time, 0), 0)
        return self.before[index] - beyond

    def within(self, begin, end):
        """Length of the part inside of each window [begin, end)."""
        return self.measure(end) - self.measure(begin)

    def gaps(self, begin, end):
        """The parts of sorted, disjoint windows [begin, end) outside of this union: begin, end, window index."""
        begin, end = np.asarray(begin, np.int64), np.asarray(end, np.int64)
        # The complement's edges are the union's edges; cutting them at the windows leaves the gaps.
        gap_begin = np.concatenate((self.end, begin))
        gap_begin.sort()
        window = np.searchsorted(begin, gap_begin, side="right") - 1
        inside = (window >= 0) & (gap_begin < end[np.maximum(window, 0)])
        gap_begin, window = gap_begin[inside], window[inside]
        following = np.searchsorted(self.begin, gap_begin, side="left")
        limit = np.append(self.begin, np.iinfo(np.int64).max)
        gap_end = np.minimum(limit[following], end[window])
        covered = np.searchsorted(self.begin, gap_begin, side="right") - 1
        open_here = (covered < 0) | (gap_begin >= np.append(self.end, 0)[covered])
        keep = open_here & (gap_end > gap_begin)
        gap_begin, gap_end, window = gap_begin[keep], gap_end[keep], window[keep]
        if len(gap_begin):  # a window that begins at an interval's end would appear twice
            once = np.append(True, gap_begin[1:] != gap_begin[:-1])
            gap_begin, gap_end, window = gap_begin[once], gap_end[once], window[once]
        return gap_begin, gap_end, window
