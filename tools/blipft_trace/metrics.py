"""metrics.jsonl of a run folder: a row a line. Each step has one row. A resume removes the rows of repeated steps, so the
file may become shorter while it is followed."""
import json
import pathlib

NAME = "metrics.jsonl"


def is_ours(path):
    """Returns True if a run wrote this file: its first row says so."""
    try:
        with open(path, "rb") as file:
            return file.readline(4096).startswith(b'{"event":"run","made_by":"blipft"')
    except OSError:
        return False


def path_of(run):
    """The file of a run folder, or None."""
    path = pathlib.Path(run) / NAME
    return path if is_ours(path) else None


class Follower:
    """The rows of a file that may be growing, as they come."""

    def __init__(self, path):
        self.path, self.at = pathlib.Path(path), 0

    def new_rows(self):
        """The rows since the last call, or all rows if the file became shorter; and True if it did."""
        try:
            size = self.path.stat().st_size
            shorter = size < self.at
            if shorter:
                self.at = 0
            if size == self.at:
                return [], shorter
            with open(self.path, "rb") as file:
                file.seek(self.at)
                data = file.read()
        except OSError:  # the folder is being replaced, or its file system does not answer
            return [], False
        whole = data[:data.rfind(b"\n") + 1]  # the last line may be half written
        self.at += len(whole)
        return [row for row in map(parse, whole.splitlines()) if row is not None], shorter


def parse(line):
    """A row, or None for an invalid line."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def read_rows(run):
    """All rows of a run folder; empty without such a file."""
    path = path_of(run)
    return Follower(path).new_rows()[0] if path else []


def of_event(rows, event):
    return [row for row in rows if row.get("event") == event]
