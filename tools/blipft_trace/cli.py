"""The command line of trace.py."""
import argparse
import os
import pathlib
import sys


def steps_range(value):
    """'3:7' (both included), '3:', ':7' or '5'."""
    first, colon, last = value.partition(":")
    try:
        low = int(first) if first else 0
        high = int(last) if last else (1 << 62 if colon else low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{value}' is no range of steps; write 3:7, 3: or 5") from None
    return low, high


def run_csv(args):
    from .export import write_csv
    for path in write_csv(args.run, args.output or pathlib.Path(args.run) / "csv", args.table, args.steps, args.part):
        print(path)


def run_loss(args):
    from .plots import write_loss
    write_loss(args.runs, args.output, args.part)
    print(args.output)


def run_perfetto(args):
    from .export import write_perfetto
    count, (first, last), moved, parts = write_perfetto(args.run, args.output, args.steps, args.part)
    which = f"steps {first} to {last}" if last < 1 << 62 else f"steps from {first}"
    if parts:
        which += f", {parts}"
    if args.steps is None:
        which += " (--steps A:B chooses others)"
    clocks = "; the ranks' clocks are not equal, which is corrected" if moved else ""
    print(f"{args.output}: {count} events of {which}{clocks}; open it in ui.perfetto.dev or chrome://tracing")


def run_summary(args):
    from .files import TraceError
    from .summary import analyze
    from .summary_text import to_json, to_text
    summary = analyze(args.run, args.warmup, args.all_steps, args.part)
    if args.rank:
        there = {r["rank"] for r in summary}
        for rank in args.rank:
            if rank not in there:
                raise TraceError(f"{args.run}: has no rank {rank}")
    print(to_json(summary) if args.json else to_text(summary, args.rank))


def run_diff(args):
    import json
    from .diff import diff, to_text
    answer = diff(args.run, args.other, args.warmup, args.all_steps)
    print(json.dumps(answer, indent=1) if args.json else to_text(answer))


def run_compare(args):
    import json
    from .compare import compare, to_csv, to_text
    answer = compare(args.runs)
    print(json.dumps(answer, indent=1) if args.json else to_csv(answer) if args.csv else to_text(answer),
          end="" if args.csv else "\n")


def run_tensorboard(args):
    from .tensorboard import write
    directory = args.output or pathlib.Path(args.run) / "tensorboard"
    count = write(args.run, directory, args.follow, args.interval)
    print(f"{directory}: {count} values; show them with: tensorboard --logdir {directory}")


def run_kernels(args):
    import json
    from .kernels import analyze, to_text
    answer = analyze(args.run, args.rank, args.part)
    print(json.dumps(answer, indent=1) if args.json else to_text(answer, args.top, args.full))


def run_report(args):
    from .report import write_report
    write_report(args.run, args.output, args.step, args.part)
    print(args.output)


def run_watch(args):
    from .watch import watch
    watch(args.run, args.interval, args.once)


def make_parser():
    parser = argparse.ArgumentParser(prog="trace.py", description="Reads the trace files (trace.*rank*.h5) of a run.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name, action, description, of_part=None, several=False):
        command = commands.add_parser(name, help=description, description=description)
        if several:
            command.add_argument("runs", metavar="RUN", nargs="+", help="directories of runs")
        else:
            command.add_argument("run", metavar="RUN", help="directory of the run")
        if of_part:
            command.add_argument("--part", type=int, metavar="N",
                                 help=f"only this part of a run that was resumed, counted from 0 ({of_part})")
        command.set_defaults(action=action)
        return command

    command = add("summary", run_summary, "where time and memory went, by rank", "the newest")
    command.add_argument("--warmup", type=int, default=0, metavar="N", help="leave out the first N steps")
    command.add_argument("--all-steps", action="store_true", help="read the spans of every step, however long it takes")
    command.add_argument("--rank", type=int, action="append", metavar="R",
                         help="show only this rank, compared with all (may be repeated)")
    command.add_argument("--json", action="store_true", help="as JSON")
    command = add("diff", run_diff, "what changed between two runs, and whether by more than noise")
    command.add_argument("other", metavar="RUN2", help="directory of the other run")
    command.add_argument("--warmup", type=int, default=3, metavar="N", help="leave out the first N steps (3)")
    command.add_argument("--all-steps", action="store_true", help="read the spans of every step, however long it takes")
    command.add_argument("--json", action="store_true", help="as JSON")
    command = add("compare", run_compare, "a table of runs: the settings in which they differ, and their results",
                  several=True)
    command.add_argument("--json", action="store_true", help="as JSON")
    command.add_argument("--csv", action="store_true", help="as CSV, a row a run")
    command = add("kernels", run_kernels, "kernels by time, of the steps in trace.kernels", "the newest")
    command.add_argument("--rank", type=int, action="append", metavar="R", help="only this rank (may be repeated)")
    command.add_argument("--top", type=int, default=30, metavar="N", help="how many (30)")
    command.add_argument("--full", action="store_true", help="whole names")
    command.add_argument("--json", action="store_true", help="as JSON, all of them")
    command = add("report", run_report, "one self-contained HTML page: pictures, figures, and a timeline with zoom",
                  "the newest")
    command.add_argument("-o", "--output", default="report.html", metavar="FILE", help="HTML file (report.html)")
    command.add_argument("--step", type=int, metavar="N", help="step of the timeline (one of median length)")
    command = add("watch", run_watch, "follows a run in the terminal")
    command.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (1)")
    command.add_argument("--once", action="store_true", help="look once and end")
    command = add("loss", run_loss, "picture of loss and learning rate, or of the losses of several runs", "all",
                  several=True)
    command.add_argument("-o", "--output", default="loss.png", metavar="FILE", help="PNG, SVG or PDF (loss.png)")
    command = add("perfetto", run_perfetto, "timeline for ui.perfetto.dev and chrome://tracing",
                  "the newest; with --steps all")
    command.add_argument("-o", "--output", default="trace.json", metavar="FILE", help="JSON file (trace.json)")
    command.add_argument("--steps", type=steps_range, metavar="A:B",
                         help="these steps (the last ones, about 200,000 spans)")
    command = add("tensorboard", run_tensorboard, "event files for TensorBoard, with the tensorboardX package")
    command.add_argument("-o", "--output", metavar="DIR", help="directory (RUN/tensorboard)")
    command.add_argument("--follow", action="store_true", help="go on with the rows of a running job, until it is done")
    command.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (1)")
    command = add("csv", run_csv, "every table as a CSV file", "all")
    command.add_argument("-o", "--output", metavar="DIR", help="directory (RUN/csv)")
    command.add_argument("--table", action="append", metavar="T", help="only this table, e.g. steps (may be repeated)")
    command.add_argument("--steps", type=steps_range, metavar="A:B", help="only these steps (all)")
    return parser


def main(arguments=None):
    args = make_parser().parse_args(arguments)
    try:
        from .files import TraceError
    except ImportError as error:
        print(f"trace.py: {error}; install python3-numpy and python3-h5py", file=sys.stderr)
        return 1
    try:
        args.action(args)
    except ImportError as error:
        print(f"trace.py: {error}; install python3-matplotlib", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (TraceError, OSError) as error:
        print(f"trace.py: {error}", file=sys.stderr)
        return 1
    return 0
