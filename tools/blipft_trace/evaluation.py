"""Scores and texts of what a run generated at its validations: /evaluation, /evaluation_samples and /evaluation_texts."""
import base64
import html
import io
import pathlib

import numpy as np

from .files import text

MOST_SAMPLES, MOST_EVALUATIONS = 24, 8  # on the page
THUMBNAIL = 160  # pixels


def scores_of(run):
    """{metric: (steps, values)}, of all parts but those after steps that were taken again."""
    found = {}
    for part in run.parts:
        if not part.first.rows("evaluation"):
            continue
        for row in part.counting(part.first.read("evaluation")):
            found.setdefault(text([row["metric"]])[0], []).append((int(row["step"]), float(row["value"])))
    return {metric: tuple(np.array(column) for column in zip(*rows)) for metric, rows in found.items()}


def summarize(run):
    """{metric: count, first, last, highest and least score}; None without evaluations."""
    def at(steps, values, i):
        return {"step": int(steps[i]), "value": float(values[i])}

    found = {metric: {"count": len(steps), "first": at(steps, values, 0), "last": at(steps, values, -1),
                      "highest": at(steps, values, int(np.argmax(values))), "least": at(steps, values, int(np.argmin(values)))}
             for metric, (steps, values) in scores_of(run).items()}
    return found or None


def samples_of(run):
    """{sample: its row}, and {step: {sample: text}}."""
    samples, texts = {}, {}
    for part in run.parts:
        if not part.first.rows("evaluation_texts"):
            continue
        samples.update((int(row["sample"]), row) for row in part.first.read("evaluation_samples"))
        rows = part.counting(part.first.read("evaluation_texts"))
        for step, sample, said in zip(rows["step"], rows["sample"], text(rows["text"])):
            texts.setdefault(int(step), {})[int(sample)] = said
    return samples, texts


def draw_scores(scores):
    """Each metric over the steps; those that are larger than 1 by an axis of their own."""
    def draw(figure):
        axis = figure.subplots()
        large = [metric for metric, (_, values) in scores.items() if np.nanmax(values) > 1]
        other = axis.twinx() if large and len(large) < len(scores) else axis
        for number, (metric, (steps, values)) in enumerate(scores.items()):
            own = other if metric in large else axis
            own.plot(steps + 1, values, color=f"C{number}", marker="o", markersize=4, linewidth=1.2, label=metric,
                     linestyle="--" if own is not axis else "-")
        axis.set_xlabel("step")
        axis.set_ylabel("score")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if other is not axis:
            other.set_ylabel(", ".join(large))
            other.set_ylim(bottom=0)
        drawn = [item for a in {axis: 0, other: 0} for item in zip(*a.get_legend_handles_labels())]
        other.legend(*zip(*drawn), fontsize=8, loc="best")
    return draw


def thumbnail(path):
    """A picture as an img element; "" if there is none, its file is missing or this Python cannot read it."""
    if not path:
        return ""
    try:
        from PIL import Image
        with Image.open(path) as image:
            image = image.convert("RGB")
            image.thumbnail((THUMBNAIL, THUMBNAIL))
            out = io.BytesIO()
            image.save(out, format="JPEG", quality=80)
    except (ImportError, OSError, ValueError):
        return ""
    code = base64.b64encode(out.getvalue()).decode()
    return f'<img alt="{html.escape(pathlib.Path(path).name)}" src="data:image/jpeg;base64,{code}">'


def shown_steps(steps):
    """The first, the last, and evenly some between."""
    steps = sorted(steps)
    if len(steps) <= MOST_EVALUATIONS:
        return steps
    return [steps[i] for i in np.unique(np.linspace(0, len(steps) - 1, MOST_EVALUATIONS).round().astype(int))]


def section(run):
    """The samples with what was generated for them at each evaluation; "" if there was none."""
    samples, texts = samples_of(run)
    if not texts:
        return ""
    steps = shown_steps(texts)
    pictures = any(row["picture"] for row in samples.values())
    head = ["sample", *["picture"] * pictures, "prompt", "references", *(f"after step {step + 1}" for step in steps)]
    lines = ["<tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"]
    for number in sorted(samples)[:MOST_SAMPLES]:
        picture, prompt, references = (text([samples[number][name]])[0] for name in ("picture", "prompt", "references"))
        cells = [str(number), *[thumbnail(picture) or html.escape(picture)] * pictures, html.escape(prompt),
                 "<br>".join(map(html.escape, references.split("\n"))),
                 *(html.escape(texts[step].get(number, "")) for step in steps)]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    left_out = [f"The first {MOST_SAMPLES} of {len(samples)} samples." * (len(samples) > MOST_SAMPLES),
                f"{len(steps)} of {len(texts)} evaluations." * (len(texts) > len(steps))]
    note = " ".join(filter(None, left_out))
    return ('<h2>What the model said</h2>' + (f'<p class="hint">{note}</p>' if note else "") +
            '<div class="table"><table id="generated">' + "\n".join(lines) + "</table></div>")
