"""What the runs gave: reading their logs, means over seeds, tables."""
import json
import math
import os
import statistics
import sys
from dataclasses import dataclass

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../deploy"))
import plot  # pylint: disable=wrong-import-position

# Field of the trainer's log, factor, words, whether more is better, digits after the point.
MEASURES = {"accuracy": ("test_accuracy", 100, "accuracy %", True, 2),
            "bits": ("test_loss", 1 / math.log(2), "bits a character", False, 3)}


@dataclass
class Run:
    """One training run. curve: (steps done, measure on a part of the test set). measures: the lines
    of the probe. diverged: its gradients stopped being finite, and the rest is empty."""
    case: str
    density: float
    seed: int
    steps: int = 0
    result: float = None
    bytes_sent: float = 0
    curve: tuple = ()
    measures: tuple = ()
    diverged: bool = False


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_run(run, measure, log, probe, stats):
    """Fills in a run that ended well. stats: of its job, one a node."""
    field, factor = MEASURES[measure][:2]
    lines = read_lines(log)
    final = lines[-1]
    run.steps = final["steps"]
    run.result = factor * final[field]
    run.bytes_sent = statistics.fmean(job["wire_bytes_sent"] for job in stats)
    run.curve = tuple((line["step"] + 1, factor * line[field]) for line in lines[:-1]
                      if field in line)
    run.measures = tuple(read_lines(probe))


# ---------------------------------------------------------------- one run's selection

def ratio(above, below):
    return above / below if below else math.inf if above else 0.0


def total(line, name):
    return sum(tensor[name] for tensor in line["tensors"])


def selection(run):
    """What was selected, over all weights together, from the steps that were measured."""
    lines = run.measures
    xi = [ratio(math.sqrt(total(line, "deviation")), math.sqrt(total(line, "mean")))
          for line in lines]
    residual = [ratio(math.sqrt(total(line, "left")), math.sqrt(total(line, "mean")))
                for line in lines]
    return {"sent": statistics.fmean(total(line, "nonzeros") / total(line, "elements")
                                     for line in lines),
            "xi_first": xi[0], "xi": statistics.median(xi), "residual": statistics.median(residual),
            "missed": statistics.fmean(ratio(total(line, "missed"), total(line, "live"))
                                       for line in lines),
            "missed_norm": statistics.fmean(
                ratio(total(line, "missed_total"), total(line, "total")) for line in lines),
            "never": ratio(total(lines[-1], "never"), total(lines[-1], "live")),
            "longest": max(tensor["longest"] for line in lines for tensor in line["tensors"])}


def reached(run, goal, more_is_better):
    """Returns the first step tested at which the goal, if there is one, was reached, or None."""
    if goal is None:
        return None
    return next((step for step, value in run.curve
                 if (value >= goal if more_is_better else value <= goal)), None)


# ---------------------------------------------------------------- all runs of a case

def mean_or_none(values):
    values = list(values)
    return None if not values or None in values else statistics.fmean(values)


def summarise(runs, goal, measure):
    """Returns the means over the seeds of one case; runs: at least one."""
    good = [run for run in runs if not run.diverged]
    row = {"case": runs[0].case, "density": runs[0].density, "seeds": len(runs),
           "diverged": len(runs) - len(good)}
    if not good:
        return row
    results = [run.result for run in good]
    row.update(result=statistics.fmean(results), bytes=statistics.fmean(r.bytes_sent for r in good),
               deviation=statistics.stdev(results) if len(results) > 1 else None)
    steps = mean_or_none(reached(run, goal, MEASURES[measure][3]) for run in good)
    row["steps_to_goal"] = steps
    row["bytes_to_goal"] = None if steps is None else row["bytes"] * steps / good[0].steps
    parts = [selection(run) for run in good]
    row.update({name: statistics.fmean(part[name] for part in parts) for name in parts[0]})
    return row


def goal_of(runs):
    """Returns the dense runs' mean result after half of the steps, to compare speeds with."""
    dense = [run for run in runs if run.density is None and not run.diverged]
    halves = [value for run in dense for step, value in run.curve
              if step == max(step for step, _ in run.curve if step <= run.steps / 2)]
    return statistics.fmean(halves) if halves else None


def summarise_task(task, runs):
    """Returns the goal and a row a case, in the order of the runs."""
    goal = goal_of(runs)
    groups = {}
    for run in runs:
        groups.setdefault((run.density, run.case), []).append(run)
    return goal, [summarise(group, goal, task.measure) for group in groups.values()]


# ---------------------------------------------------------------- tables

def format_share(value):
    """A share in per cent; 0 only where it is nothing at all."""
    percent = 100 * value
    return "0" if percent == 0 else f"{percent:.2g}" if percent < 9.95 else f"{percent:.0f}"


def format_table(head, rows):
    widths = [max(len(row[i]) for row in [head] + rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                       for i, (cell, width) in enumerate(zip(row, widths))).rstrip()
             for row in [head] + rows]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def format_density(row):
    return "-" if row["density"] is None else f"{100 * row['density']:g}%"


def learning_row(row, dense, measure):
    digits = MEASURES[measure][4]
    cells = [format_density(row), row["case"]]
    if "result" not in row:
        return cells + ["diverged"] + [""] * 5
    spread = "" if row["deviation"] is None else f" ±{row['deviation']:.{digits}f}"
    some = f" ({row['diverged']} diverged)" if row["diverged"] else ""
    cells.append(f"{row['result']:.{digits}f}{spread}{some}")
    if dense is None:
        cells += ["-"]
    else:
        cells.append("-" if row is dense else f"{row['result'] - dense['result']:+.{digits}f}")
    cells.append(plot.format_bytes(row["bytes"]))
    cells.append("-" if dense is None or not row["bytes"] else
                 f"{dense['bytes'] / row['bytes']:.3g}")
    if row["steps_to_goal"] is None:
        return cells + ["-", "-"] if dense is None else cells + ["not", "reached"]
    return cells + [f"{row['steps_to_goal']:.0f}", plot.format_bytes(row["bytes_to_goal"])]


def learning_table(goal, rows, measure):
    dense = next((row for row in rows if row["density"] is None and "result" in row), None)
    digits = MEASURES[measure][4]
    words = "-" if goal is None else f"{goal:.{digits}f}"
    head = ["density", "sparsifier", MEASURES[measure][2], "vs dense", "node sent", "less by",
            f"to {words}", "bytes then"]
    return format_table(head, [learning_row(row, dense, measure) for row in rows])


def selection_row(row):
    cells = [format_density(row), row["case"]]
    if "result" not in row:
        return cells + ["diverged"] + [""] * 7
    return cells + [format_share(row["sent"]), f"{row['xi_first']:.2g}", f"{row['xi']:.2g}",
                    f"{row['residual']:.3g}", format_share(row["missed"]),
                    format_share(row["missed_norm"]), format_share(row["never"]),
                    f"{row['longest']:.0f}"]


def selection_table(rows):
    head = ["density", "sparsifier", "sent %", "xi first", "xi", "residual", "missed %", "norm² %",
            "never %", "longest"]
    return format_table(head, [selection_row(row) for row in rows])


# ---------------------------------------------------------------- the claim

def claim(task, rows, name="adtopk-alldim", other="topk"):
    """Says what all-dimension top-k (name) and global top-k (other) missed and learnt."""
    lines = []
    by_case = {(row["density"], row["case"]): row for row in rows if "result" in row}
    _, _, words, more_is_better, digits = MEASURES[task.measure]
    for density in sorted({row["density"] for row in rows if row["density"]}, reverse=True):
        ours, theirs = by_case.get((density, name)), by_case.get((density, other))
        if ours is None or theirs is None:
            continue
        better = (ours["result"] - theirs["result"]) * (1 if more_is_better else -1)
        error = None
        if ours["deviation"] is not None and theirs["deviation"] is not None:
            error = math.hypot(ours["deviation"] / math.sqrt(ours["seeds"]),
                               theirs["deviation"] / math.sqrt(theirs["seeds"]))
        verdict = ("one seed says nothing about chance" if error is None else
                   "within two standard errors" if abs(better) <= 2 * error else
                   "beyond two standard errors")
        spread = "" if error is None else f" ±{error:.{digits}f}"
        lines.append(
            f"{task.name} {100 * density:g}%: topk misses {format_share(theirs['missed'])}% of the "
            f"dimensions a step ({format_share(theirs['missed_norm'])}% of the squared norm), "
            f"all-dimension\n  top-k {format_share(ours['missed'])}%, with "
            f"{ratio(ours['bytes'], theirs['bytes']):.2f} times the bytes; its {words}: "
            f"{abs(better):.{digits}f}{spread} {'better' if better >= 0 else 'worse'},\n  {verdict}")
    return "\n".join(lines)
