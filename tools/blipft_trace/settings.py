"""The effective configuration of a run, and the differences between two."""
import pathlib

from .files import TraceError
from .parts import open_run

# Keys of paths and of resuming do not make another run.
LEFT_OUT = {"output.path", "output.overwrite", "checkpoint.resume", "checkpoint.path"}


def parse(text):
    """{"train.lr": "1e-05"} of a configuration as the program writes it: sections, each with a line a key."""
    settings, section = {}, ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon:
            continue
        if not line.startswith(" "):
            section = name.strip()
        else:
            settings[f"{section}.{name.strip()}"] = value.strip()
    return settings


def of_folder(folder):
    """The settings in a run folder's config.yaml; empty if a run wrote none."""
    try:
        text = (pathlib.Path(folder) / "config.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return parse(text) if text.startswith("# blipft config.yaml of run ") else {}


def of_run(path, run=None):
    """The settings of a run's newest part: from its trace, else from config.yaml. `run`: the run, if it is open already."""
    try:
        part = (run or open_run(path)).parts[-1]
        return parse(str(part.attributes.get("config", "")))
    except TraceError:
        return of_folder(path)


def different(several):
    """{key: [value in each, None if unknown]} of the keys whose values differ."""
    keys = [key for settings in several for key in settings]
    answer = {}
    for key in dict.fromkeys(keys):
        values = [settings.get(key) for settings in several]
        if key not in LEFT_OUT and len(set(values)) > 1:
            answer[key] = values
    return answer
