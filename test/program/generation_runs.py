"""Helpers of the tests of --generate and --evaluate: a model whose texts differ, and a run that returns its texts."""
import json
import pathlib
import re

from program_runs import PROGRAM, Space, mpirun
from script_tests import check


class Eloquent(Space):
    """Random weights that are large enough for every picture to have a text of its own."""

    def shrink(self):
        super().shrink()
        path = self.model / "config.json"
        config = json.loads(path.read_text())
        for section in ("vision_config", "qformer_config"):
            config[section]["initializer_range"] = 0.3
        config["text_config"]["init_std"] = 0.3
        path.write_text(json.dumps(config))


SHORT = ("generate.max_new_tokens=8", "generate.samples=10")


def generate(space, ranks, *options, action="--generate", expected=0):
    """The lines of generated.jsonl, in their order, and the folder."""
    output = space.new()
    if not any(option.startswith("output.path=") for option in options):
        options = (f"output.path={output}", *options)
    status, out, err, _ = mpirun(ranks, [PROGRAM, action, space.config, *options])
    check(status == expected, status, out, err)
    if expected:
        return err
    folder = pathlib.Path(re.search(r"^texts +(.*)/generated.jsonl$", out, re.M).group(1))
    lines = [json.loads(line) for line in (folder / "generated.jsonl").read_text().splitlines()]
    return sorted(lines, key=lambda line: line["sample"]), folder, out


def texts(lines):
    return [line["text"] for line in lines]
