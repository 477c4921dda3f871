"""Finds the rows of a range of steps in a table without reading the file.

Rows are written as steps finish, so their step numbers grow along the table, or nearly: neighbouring pieces may
overlap. A search over single pieces then finds a step. Pieces that the search reads are checked against that order; a table
that breaks it is read once as a whole, for the bounds of every piece.
"""
import bisect
import collections
import sys

import numpy as np

LEAST_PIECE = 4096  # rows; pieces are whole HDF5 chunks
PROBES = 9          # pieces read before the first search
KEPT_PIECES = 8     # in memory
GROUP = 32          # pieces read at once from a long range
GUESSES = 6         # searches by interpolation, before bisection


class StepIndex:
    def __init__(self, trace, table="spans"):
        self.trace, self.table = trace, table
        self.rows = trace.rows(table)
        chunk = (trace.dataset(table).chunks or (LEAST_PIECE,))[0] if self.rows else LEAST_PIECE
        self.piece = chunk * -(-LEAST_PIECE // chunk)
        self.count = -(-self.rows // self.piece)
        self.known, self.low, self.high = [], [], []  # known pieces, in order, with their smallest and largest step
        self.kept = collections.OrderedDict()
        self.ordered = True
        for number in np.unique(np.linspace(0, max(self.count - 1, 0), PROBES).astype(int)) if self.count else []:
            self.look(int(number))

    def read_piece(self, number):
        """The rows of a piece; a few are kept."""
        rows = self.kept.get(number)
        if rows is None:
            rows = self.trace.read(self.table, number * self.piece, min((number + 1) * self.piece, self.rows))
            self.kept[number] = rows
            if len(self.kept) > KEPT_PIECES:
                self.kept.popitem(last=False)
        return rows

    def forget(self):
        """Releases the memory of the kept pieces."""
        self.kept.clear()

    def look(self, number):
        """Records the bounds of a piece, and returns its index among the known ones."""
        at = bisect.bisect_left(self.known, number)
        if at < len(self.known) and self.known[at] == number:
            return at
        steps = self.read_piece(number)["step"]
        low, high = int(steps.min()), int(steps.max())
        self.known.insert(at, number)
        self.low.insert(at, low)
        self.high.insert(at, high)
        before = at and (self.low[at - 1] > low or self.high[at - 1] > high)
        after = at + 1 < len(self.known) and (self.low[at + 1] < low or self.high[at + 1] < high)
        if (before or after) and self.ordered:
            self.read_all_bounds()
            at = number
        return at

    def read_all_bounds(self):
        """Reads all bounds of a table that is not in order of steps."""
        self.ordered = False
        if sys.stderr.isatty():
            print(f"{self.trace.path}: /{self.table} is not in order of steps; reading all of it", file=sys.stderr)
        self.known = list(range(self.count))
        steps = (self.trace.read(self.table, i * self.piece, (i + 1) * self.piece)["step"] for i in self.known)
        bounds = [(int(rows.min()), int(rows.max())) for rows in steps]
        self.low, self.high = [low for low, _ in bounds], [high for _, high in bounds]

    def first_with(self, bounds, step):
        """The first piece whose bound (self.low or self.high) is at least `step`; the number of pieces: none."""
        tries = 0
        while self.ordered:
            at = bisect.bisect_left(bounds, step)
            left = self.known[at - 1] if at else -1
            if at == len(self.known):
                return self.count  # the last piece is always known
            right = self.known[at]
            if right - left <= 1:
                return right
            guess = (left + right) // 2
            if tries < GUESSES and at and bounds[at] > bounds[at - 1]:
                share = (step - bounds[at - 1]) / (bounds[at] - bounds[at - 1])
                guess = min(max(left + round(share * (right - left)), left + 1), right - 1)
            tries += 1
            self.look(guess)
        return None

    def groups(self, first, last):
        """The rows of the steps first..last (both included), in the table's order, in groups of some pieces."""
        if not self.count:
            return
        begin = self.first_with(self.high, first)
        end = self.first_with(self.low, last + 1)
        if self.ordered:
            ranges = [(begin, end)]
        else:  # the order may just have been found to be broken
            hits = np.flatnonzero((np.array(self.low) <= last) & (np.array(self.high) >= first))
            runs = np.split(hits, np.flatnonzero(np.diff(hits) > 1) + 1) if len(hits) else []
            ranges = [(int(run[0]), int(run[-1]) + 1) for run in runs]
        for begin, end in ranges:
            few = end - begin <= KEPT_PIECES // 2
            for number in range(begin, end, 1 if few else GROUP):
                rows = self.read_piece(number) if few else self.trace.read(
                    self.table, number * self.piece, min(min(number + GROUP, end) * self.piece, self.rows))
                keep = (rows["step"] >= first) & (rows["step"] <= last)
                yield rows if keep.all() else rows[keep]

    def read(self, first, last):
        """All rows in one array."""
        groups = list(self.groups(first, last))
        if not groups:
            return self.trace.read(self.table, 0, 0)
        return groups[0] if len(groups) == 1 else np.concatenate(groups)
