#!/usr/bin/env python3
"""Compares a dense and a sparse training run: prints a table, draws a plot, checks limits.

Reads the log of each run (JSON lines of rank 0: one object a step, then a final one) and what
`adtopkctl stats --json` said at the end on each node, over which bytes are averaged. Exit status:
0, or 1 for bad input or a check that failed, or 2 for bad usage.
"""
import argparse
import json
import statistics
import sys
from dataclasses import dataclass

import plot

# Names of the fields that are read: what this program calls them, and what the documents do.
SECONDS = "seconds"  # an object of the trainer's phases, in steps and in the final record
TRAINER_PHASES = ("compute", "wait", "apply")
STEP_FIELDS = {"step": "step", "loss": "loss"}
FINAL_FIELDS = {"world": "world", "accuracy": "test_accuracy", "test_loss": "test_loss",
                "seconds": "training_seconds"}
FINAL_MARK = "final"
STATS_SCHEMA = 1
STATS_FIELDS = {"schema": "schema", "jobs": "jobs"}
JOB_FIELDS = {"name": "name", "steps": "steps", "dense": "dense_bytes", "sent": "wire_bytes_sent",
              "sparse_sent": "sparse_bytes_sent", "nonzeros": "nonzeros_sent",
              "phases": "phase_seconds"}
DAEMON_PHASES = ("select", "exchange", "reduce", "settle")  # in JOB_FIELDS["phases"]


class ReportError(Exception):
    """Input that cannot be reported on; the message names file, line and field."""


@dataclass
class TrainerLog:
    """What rank 0 wrote: its steps and its final record, under this program's names."""
    path: str
    steps: list
    final: dict


@dataclass
class Run:
    """One training run. Times in seconds, accuracy a fraction, bytes those of one node (mean)."""
    name: str
    ranks: int
    nodes: int
    losses: list  # one per step
    accuracy: float
    test_loss: float
    seconds: float
    step_time: float  # median over steps
    trainer_phases: dict  # median over steps
    daemon_phases: dict  # mean a step
    dense_bytes: float  # of one rank's gradients in f32
    bytes_sent: float
    bits_per_nonzero: float  # None where nothing sparse was sent


# ---------------------------------------------------------------- reading

def read_text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: {error}") from error


def parse_object(text, where):
    """Parses one JSON object; duplicate keys are errors."""
    def unique(pairs):
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise ReportError(f"{where}: field \"{name}\" comes twice")
        return dict(pairs)
    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ReportError(f"{where}: not a JSON object")
    return value


def field(record, name, where):
    if name not in record:
        raise ReportError(f"{where}: field \"{name}\" is missing")
    return record[name]


def number(record, name, where, least=0.0):
    """Returns a finite number of at least `least`."""
    value = field(record, name, where)
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise ReportError(f"{where}: field \"{name}\" is not a finite number: {value!r}")
    if value < least:
        raise ReportError(f"{where}: field \"{name}\" is {value}, less than {least:g}")
    return value


def parse_step(record, where):
    step = {ours: number(record, theirs, where) for ours, theirs in STEP_FIELDS.items()}
    seconds = field(record, SECONDS, where)
    if not isinstance(seconds, dict):
        raise ReportError(f"{where}: field \"{SECONDS}\" is not an object")
    for phase in TRAINER_PHASES:
        step[phase] = number(seconds, phase, f"{where}: {SECONDS}")
    return step


def parse_final(record, where):
    final = {ours: number(record, theirs, where) for ours, theirs in FINAL_FIELDS.items()}
    if final["accuracy"] > 1:
        raise ReportError(f"{where}: field \"{FINAL_FIELDS['accuracy']}\" is not between 0 and 1")
    return final


def read_log(path):
    """Reads a log: steps in rising order, then one final record. Further fields may be there."""
    steps, final = [], None
    for line, text in enumerate(read_text(path).splitlines(), start=1):
        where = f"{path}:{line}"
        if not text.strip():
            continue
        if final is not None:
            raise ReportError(f"{where}: a record after the final one")
        record = parse_object(text, where)
        if FINAL_MARK in record:
            final = parse_final(record, where)
            continue
        steps.append(parse_step(record, where))
        if len(steps) > 1 and steps[-1]["step"] <= steps[-2]["step"]:
            raise ReportError(f"{where}: step {steps[-1]['step']} does not follow "
                              f"step {steps[-2]['step']}")
    if not steps:
        raise ReportError(f"{path}: no steps")
    if final is None:
        raise ReportError(f"{path}: no final record: the training did not end")
    return TrainerLog(path, steps, final)


def pick_job(jobs, name, path):
    """Returns the job called name, or the only one where name is None."""
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise ReportError(f"{path}: field \"{STATS_FIELDS['jobs']}\" is not a list of objects")
    names = [field(job, JOB_FIELDS["name"], path) for job in jobs]
    if name is None and len(jobs) != 1:
        raise ReportError(f"{path}: has {len(jobs)} jobs, name one of them: {names}")
    if name is not None and names.count(name) != 1:
        raise ReportError(f"{path}: job \"{name}\" is not among {names}")
    return jobs[0] if name is None else jobs[names.index(name)]


def read_stats(path, job_name):
    """Reads what one node counted for one job. Fields that are not used here may be there."""
    document = parse_object(read_text(path), path)
    schema = field(document, STATS_FIELDS["schema"], path)
    if schema != STATS_SCHEMA:
        raise ReportError(f"{path}: schema {schema!r}, this program reads schema {STATS_SCHEMA}")
    job = pick_job(field(document, STATS_FIELDS["jobs"], path), job_name, path)
    stats = {ours: number(job, JOB_FIELDS[ours], path)
             for ours in ("dense", "sent", "sparse_sent", "nonzeros")}
    stats["steps"] = number(job, JOB_FIELDS["steps"], path, least=1)
    phases = field(job, JOB_FIELDS["phases"], path)
    if not isinstance(phases, dict):
        raise ReportError(f"{path}: field \"{JOB_FIELDS['phases']}\" is not an object")
    stats["phases"] = {name: number(phases, name, f"{path}: {JOB_FIELDS['phases']}")
                       for name in DAEMON_PHASES}
    return stats


# ---------------------------------------------------------------- measuring

def make_run(name, log, stats):
    nonzeros = sum(node["nonzeros"] for node in stats)
    return Run(
        name=name, ranks=log.final["world"], nodes=len(stats),
        losses=[step["loss"] for step in log.steps],
        accuracy=log.final["accuracy"], test_loss=log.final["test_loss"],
        seconds=log.final["seconds"],
        step_time=statistics.median(sum(step[phase] for phase in TRAINER_PHASES)
                                    for step in log.steps),
        trainer_phases={phase: statistics.median(step[phase] for step in log.steps)
                        for phase in TRAINER_PHASES},
        daemon_phases={phase: statistics.fmean(node["phases"][phase] / node["steps"]
                                               for node in stats)
                       for phase in DAEMON_PHASES},
        dense_bytes=statistics.fmean(node["dense"] for node in stats),
        bytes_sent=statistics.fmean(node["sent"] for node in stats),
        bits_per_nonzero=(8 * sum(node["sparse_sent"] for node in stats) / nonzeros
                          if nonzeros else None))


# ---------------------------------------------------------------- the table

def format_ratio(dense, sparse):
    """How the sparse run's number compares with the dense run's."""
    if not dense or not sparse:
        return "-"
    ratio = max(dense, sparse) / min(dense, sparse)
    number = f"{ratio:.3g}" if ratio < 999.5 else f"{ratio:,.0f}"
    return "as much" if number == "1" else f"{number} times {'less' if sparse < dense else 'more'}"


def format_ms(seconds):
    return f"{seconds * 1e3:.3f} ms"


def format_bits(bits):
    return "-" if bits is None else f"{bits:.1f}"


def table_rows(dense, sparse):
    """Returns the rows of the table: what, dense, sparse, their ratio."""
    def row(what, get, show):
        a, b = get(dense), get(sparse)
        return what, show(a), show(b), format_ratio(a, b)

    points = 100 * (sparse.accuracy - dense.accuracy)
    rows = [("", dense.name, sparse.name, f"{sparse.name} has"),
            ("test accuracy", f"{dense.accuracy:.2%}", f"{sparse.accuracy:.2%}",
             f"{points:+.2f} points"),
            row("test loss", lambda run: run.test_loss, "{:.4f}".format),
            row("bytes a node sent", lambda run: run.bytes_sent, plot.format_bytes),
            row("bits per non-zero", lambda run: run.bits_per_nonzero, format_bits),
            row("training time", lambda run: run.seconds, "{:.2f} s".format),
            row("step time, median", lambda run: run.step_time, format_ms)]
    for phase in TRAINER_PHASES:
        rows.append(row(f"  trainer: {phase}", lambda run: run.trainer_phases[phase], format_ms))
    for phase in DAEMON_PHASES:
        rows.append(row(f"  daemon: {phase}", lambda run: run.daemon_phases[phase], format_ms))
    return rows


def format_table(dense, sparse, trained):
    rows = table_rows(dense, sparse)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join([row[0].ljust(widths[0])] +
                       [row[column].rjust(widths[column]) for column in (1, 2, 3)])
             for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    lines.insert(0, f"{trained}: {len(sparse.losses)} steps, {sparse.ranks} ranks, {sparse.nodes} nodes\n")
    lines.append("trainer: median of rank 0's steps; daemon: mean of a step, all buckets added up")
    lines.append("bytes: a dense gradient is sent in f32, and each sent entry of a sparse one with its "
                 "position and\na rounded value, so the width of a value is a part of the ratio")
    return "\n".join(lines)


# ---------------------------------------------------------------- the checks

def check_runs(dense, sparse, options):
    """Returns the checks that were asked for: whether each holds, and a sentence with numbers."""
    checks = []
    if options.least_accuracy is not None:
        checks.append((100 * sparse.accuracy >= options.least_accuracy,
                       f"{sparse.name}: test accuracy {sparse.accuracy:.2%}, "
                       f"to be at least {options.least_accuracy:g}%"))
    if options.most_points_lost is not None:
        lost = 100 * (dense.accuracy - sparse.accuracy)
        checks.append((lost <= options.most_points_lost,
                       f"{sparse.name}: {abs(lost):.2f} points {'below' if lost > 0 else 'above'} "
                       f"{dense.name}, to be at most {options.most_points_lost:g} below"))
    if options.least_ratio is not None:
        limit = dense.dense_bytes / options.least_ratio
        checks.append((sparse.bytes_sent <= limit,
                       f"{sparse.name}: {plot.format_bytes(sparse.bytes_sent)} sent, to be at most "
                       f"{plot.format_bytes(limit)}, 1/{options.least_ratio:g} of the "
                       f"{plot.format_bytes(dense.dense_bytes)} of {dense.name} gradients in f32"))
    return checks


# ---------------------------------------------------------------- the command

def curves(runs, mbits):
    """Returns the curves of the plot. A step takes the time that was measured here, where nodes are
    as near as can be, and the time of its bytes on the link; they are spread evenly over steps."""
    return [plot.Curve(run.name, run.losses, run.bytes_sent,
                       run.step_time + run.bytes_sent / len(run.losses) * 8 / (mbits * 1e6)) for run in runs]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for run in ("dense", "sparse"):
        parser.add_argument(f"--{run}-log", required=True, metavar="FILE",
                            help=f"log of rank 0 of the {run} run")
        parser.add_argument(f"--{run}-stats", nargs="+", required=True, metavar="FILE",
                            help=f"adtopkctl stats --json of the {run} run, one a node")
        parser.add_argument(f"--{run}-job", metavar="NAME",
                            help="the job in these documents (default: the only one)")
        parser.add_argument(f"--{run}-name", metavar="WORDS", default=run,
                            help=f"what to call this run (default: {run})")
    parser.add_argument("--trained", metavar="WORDS", default="a model", help="what was trained")
    parser.add_argument("--svg", metavar="FILE", help="where to write the plot")
    parser.add_argument("--mbits", type=float, metavar="RATE", default=100,
                        help="speed of the link of its second panel, in Mbit/s (default: 100)")
    parser.add_argument("--least-accuracy", type=float, metavar="PERCENT",
                        help="check the sparse run's test accuracy")
    parser.add_argument("--most-points-lost", type=float, metavar="POINTS",
                        help="check that its accuracy is at most so far below the dense run's")
    parser.add_argument("--least-ratio", type=float, metavar="RATIO",
                        help="check that a node sent at most 1/RATIO of the f32 gradients' bytes")
    return parser.parse_args(arguments)


def write_svg(options, runs):
    path = options.svg
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(plot.draw(curves(runs, options.mbits), options.trained, f"{options.mbits:g} Mbit/s"))
    except OSError as error:
        raise ReportError(f"{path}: {error}") from error


def report(options):
    """Prints the table, writes the plot and returns the exit status."""
    dense = make_run(options.dense_name, read_log(options.dense_log),
                     [read_stats(path, options.dense_job) for path in options.dense_stats])
    sparse = make_run(options.sparse_name, read_log(options.sparse_log),
                      [read_stats(path, options.sparse_job) for path in options.sparse_stats])
    print(format_table(dense, sparse, options.trained), end="\n\n")
    if options.svg:
        write_svg(options, [dense, sparse])
    checks = check_runs(dense, sparse, options)
    for holds, sentence in checks:
        print(f"{'ok' if holds else 'FAILED':6}  {sentence}")
    return 0 if all(holds for holds, _ in checks) else 1


def main():
    try:
        sys.exit(report(parse_arguments(sys.argv[1:])))
    except ReportError as error:
        sys.exit(f"report.py: {error}")


if __name__ == "__main__":
    main()
