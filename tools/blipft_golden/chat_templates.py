"""text/jinja.json: templates, and their text by jinja2 with the settings of transformers. A case is added to the file as
{"template": "..."}. Needs jinja2 3.1."""
import datetime
import json
import os

import jinja2
from jinja2 import ext, nodes, sandbox


class Generation(ext.Extension):
    """{% generation %}: records begin and end in code points, counted from what has been rendered so far."""
    tags = {"generation"}
    rendered, spans = [], []

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_record"), [], [], body).set_lineno(line)

    def _record(self, caller):
        text = caller()
        begin = len("".join(Generation.rendered))
        Generation.spans.append([begin, begin + len(text)])
        return text


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def render(template, variables):
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=[Generation, ext.loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = datetime.datetime(2026, 11, 28, 9, 5, 7).strftime
    Generation.rendered, Generation.spans = [], []
    try:
        for block in environment.from_string(template).generate(**variables):
            Generation.rendered.append(block)
    except Exception as error:  # whatever Python raises is this template's error
        return {"error": f"{type(error).__name__}: {error}"[:100]}
    result = {"text": "".join(Generation.rendered)}
    return result | ({"spans": Generation.spans} if Generation.spans else {})


def make(folder, options):
    path = os.path.join(folder, "jinja.json")
    with open(path, encoding="utf-8") as file:
        golden = json.load(file)
    golden["cases"] = [{"template": case["template"]} | render(case["template"], golden["variables"])
                       for case in golden["cases"]]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(golden, file, ensure_ascii=False, indent=0)
        file.write("\n")
