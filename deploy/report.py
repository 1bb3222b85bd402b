#!/usr/bin/env python3
"""Compares a dense and a sparse training run: prints a table, draws a plot.

Reads the logs of the trainers (JSON lines: one object a step, then a final one) and what
`adtopkctl stats --json` said at the end on each node. Give all logs and documents of a run: losses
are averaged over ranks, bytes over nodes. Exit status: 0, or 1 for bad input or for ranks of one
run that ended with different parameters, or 2 for bad usage.
"""
import argparse
import json
import statistics
import sys
from dataclasses import dataclass

import plot

# Names of the fields that are read: what this program calls them, and what the documents do.
STEP_FIELDS = {"step": "step", "loss": "loss",
               "compute": "compute_s", "wait": "wait_s", "apply": "apply_s"}
FINAL_FIELDS = {"accuracy": "accuracy", "test_loss": "test_loss",
                "hash": "parameters_hash", "seconds": "seconds"}
FINAL_MARK = "final"
STATS_SCHEMA = 1
STATS_FIELDS = {"schema": "schema", "jobs": "jobs"}
JOB_FIELDS = {"name": "name", "steps": "steps", "sent": "wire_bytes_sent",
              "sparse_sent": "sparse_bytes_sent", "nonzeros": "nonzeros_sent",
              "phases": "phase_seconds"}
TRAINER_PHASES = ("compute", "wait", "apply")  # in STEP_FIELDS
DAEMON_PHASES = ("select", "exchange", "reduce", "settle")  # in JOB_FIELDS["phases"]


class ReportError(Exception):
    """Input that cannot be reported on; the message names file, line and field."""


@dataclass
class TrainerLog:
    """What one rank wrote: its steps and its final record, under this program's names."""
    path: str
    steps: list
    final: dict


@dataclass
class Run:
    """One training run. Times in seconds, accuracy a fraction, bytes those of one node (mean)."""
    name: str
    ranks: int
    nodes: int
    losses: list  # one a step, mean over ranks
    accuracy: float
    test_loss: float
    seconds: float
    same_parameters: bool
    step_time: float  # median over ranks and steps
    trainer_phases: dict  # median over ranks and steps
    daemon_phases: dict  # mean a step
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


def refuse_unknown(record, known, where):
    for name in record:
        if name not in known:
            raise ReportError(f"{where}: unknown field \"{name}\"")


def parse_step(record, where):
    refuse_unknown(record, STEP_FIELDS.values(), where)
    return {ours: number(record, theirs, where) for ours, theirs in STEP_FIELDS.items()}


def parse_final(record, where):
    refuse_unknown(record, [*FINAL_FIELDS.values(), FINAL_MARK], where)
    final = {ours: number(record, FINAL_FIELDS[ours], where)
             for ours in ("accuracy", "test_loss", "seconds")}
    if final["accuracy"] > 1:
        raise ReportError(f"{where}: field \"{FINAL_FIELDS['accuracy']}\" is not between 0 and 1")
    final["hash"] = field(record, FINAL_FIELDS["hash"], where)
    if not isinstance(final["hash"], str):
        raise ReportError(f"{where}: field \"{FINAL_FIELDS['hash']}\" is not a string")
    return final


def read_log(path):
    """Reads the log of one rank: steps in rising order, then one final record."""
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
    stats = {ours: number(job, JOB_FIELDS[ours], path) for ours in ("sent", "sparse_sent", "nonzeros")}
    stats["steps"] = number(job, JOB_FIELDS["steps"], path, least=1)
    phases = field(job, JOB_FIELDS["phases"], path)
    if not isinstance(phases, dict):
        raise ReportError(f"{path}: field \"{JOB_FIELDS['phases']}\" is not an object")
    stats["phases"] = {name: number(phases, name, f"{path}: {JOB_FIELDS['phases']}")
                       for name in DAEMON_PHASES}
    return stats


# ---------------------------------------------------------------- measuring

def mean_losses(logs):
    """Returns the loss of each step, averaged over the ranks, which must have the same steps."""
    numbers = [[step["step"] for step in log.steps] for log in logs]
    for log, steps in zip(logs, numbers):
        if steps != numbers[0]:
            raise ReportError(f"{log.path}: its steps are not those of {logs[0].path}")
    return [statistics.fmean(step["loss"] for step in steps)
            for steps in zip(*(log.steps for log in logs))]


def make_run(name, logs, stats):
    every_step = [step for log in logs for step in log.steps]
    nonzeros = sum(node["nonzeros"] for node in stats)
    return Run(
        name=name, ranks=len(logs), nodes=len(stats), losses=mean_losses(logs),
        accuracy=logs[0].final["accuracy"], test_loss=logs[0].final["test_loss"],
        seconds=max(log.final["seconds"] for log in logs),
        same_parameters=len({log.final["hash"] for log in logs}) == 1,
        step_time=statistics.median(sum(step[phase] for phase in TRAINER_PHASES)
                                    for step in every_step),
        trainer_phases={phase: statistics.median(step[phase] for step in every_step)
                        for phase in TRAINER_PHASES},
        daemon_phases={phase: statistics.fmean(node["phases"][phase] / node["steps"]
                                               for node in stats)
                       for phase in DAEMON_PHASES},
        bytes_sent=statistics.fmean(node["sent"] for node in stats),
        bits_per_nonzero=(8 * sum(node["sparse_sent"] for node in stats) / nonzeros
                          if nonzeros else None))


# ---------------------------------------------------------------- the table

def format_ratio(dense, sparse):
    if not dense or not sparse:
        return "-"
    ratio = dense / sparse
    return f"{ratio:.3g}" if ratio < 1000 else f"{ratio:,.0f}"


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
    rows = [("", dense.name, sparse.name, f"{dense.name} / {sparse.name}"),
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


def format_table(dense, sparse):
    rows = table_rows(dense, sparse)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join([row[0].ljust(widths[0])] +
                       [row[column].rjust(widths[column]) for column in (1, 2, 3)])
             for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    lines.append(f"{len(sparse.losses)} steps, {sparse.ranks} ranks, {sparse.nodes} nodes; trainer "
                 "times are medians of a step, daemon times means a step of a node")
    return "\n".join(lines)


# ---------------------------------------------------------------- the command

def curves(runs):
    """Returns the curves of the plot; the bytes of a run are spread evenly over its steps."""
    return [plot.Curve(run.name, run.losses, run.bytes_sent / len(run.losses)) for run in runs]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for run in ("dense", "sparse"):
        parser.add_argument(f"--{run}-log", nargs="+", required=True, metavar="FILE",
                            help=f"logs of the trainers of the {run} run, one a rank")
        parser.add_argument(f"--{run}-stats", nargs="+", required=True, metavar="FILE",
                            help=f"adtopkctl stats --json of the {run} run, one a node")
        parser.add_argument(f"--{run}-job", metavar="NAME",
                            help="the job in these documents (default: the only one)")
        parser.add_argument(f"--{run}-name", metavar="WORDS", default=run,
                            help=f"what to call this run (default: {run})")
    parser.add_argument("--svg", metavar="FILE", help="where to write the plot")
    return parser.parse_args(arguments)


def write_svg(path, runs):
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(plot.draw(curves(runs)))
    except OSError as error:
        raise ReportError(f"{path}: {error}") from error


def report(options):
    """Prints the table, writes the plot and returns the exit status."""
    dense = make_run(options.dense_name, [read_log(path) for path in options.dense_log],
                     [read_stats(path, options.dense_job) for path in options.dense_stats])
    sparse = make_run(options.sparse_name, [read_log(path) for path in options.sparse_log],
                      [read_stats(path, options.sparse_job) for path in options.sparse_stats])
    print(format_table(dense, sparse))
    if options.svg:
        write_svg(options.svg, [dense, sparse])
    status = 0
    for run in (dense, sparse):
        if not run.same_parameters:
            print(f"report.py: the ranks of the run {run.name} ended with different parameters",
                  file=sys.stderr)
            status = 1
    return status


def main():
    try:
        sys.exit(report(parse_arguments(sys.argv[1:])))
    except ReportError as error:
        sys.exit(f"report.py: {error}")


if __name__ == "__main__":
    main()
