"""The table of runs, a line each, and what follows from it: learning rates, means, differences."""
import csv
import math
import os
import statistics
from dataclasses import asdict, dataclass, fields

FACTOR = math.sqrt(2)  # between two learning rates of the grid
TUNING_SEED = 101      # not among the seeds that are reported


@dataclass(frozen=True)
class Run:
    """result: NaN where the training diverged. bits: sent per element and step, by a node."""
    setting: str
    row: str
    rate: float
    seed: int
    result: float
    bits: float
    commit: str

    @property
    def key(self):
        return self.setting, self.row, f"{self.rate:.6g}", self.seed


class Ledger:
    """The runs so far, in a file that grows by a line with each."""

    def __init__(self, path):
        self.path = path
        self.runs = {}
        if os.path.exists(path):
            with open(path, newline="", encoding="utf-8") as file:
                for line in csv.DictReader(file):
                    self.remember(Run(line["setting"], line["row"], float(line["rate"]),
                                      int(line["seed"]), float(line["result"]),
                                      float(line["bits"]), line["commit"]))

    def remember(self, run):
        self.runs[run.key] = run

    def add(self, run):
        new = not os.path.exists(self.path)
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow([one.name for one in fields(Run)])
            values = asdict(run)
            values.update(rate=f"{run.rate:.6g}", result=f"{run.result:.6g}", bits=f"{run.bits:.4g}")
            writer.writerow(values.values())
        self.remember(run)

    def find(self, setting, row, rate, seed):
        return self.runs.get((setting, row, f"{rate:.6g}", seed))


def better(sign, a, b):
    """Whether a is better than b; a training that diverged is worse than any other."""
    return not math.isnan(a) and (math.isnan(b) or sign * a > sign * b)


def start_rate(setting, row):
    """The learning rate at which the search for that of a row begins."""
    return setting.rate * FACTOR ** row.start


def place(start, rate):
    """Of a rate in the grid around `start`."""
    return round(math.log(rate / start) / math.log(FACTOR))


def next_rate(start, sign, tried, also=()):
    """The learning rate to try next, of the grid around `start`; None when the best one lies inside.
    tried: results by the rate's place in the grid. also: places that are tried in any case."""
    best = best_place(sign, tried) if 0 in tried else 0
    for at in (best, best - 1, best + 1, *also):
        if at not in tried:
            return start * FACTOR ** at
    return None


def best_place(sign, tried):
    best = 0
    for at, result in sorted(tried.items()):
        if better(sign, result, tried[best]):
            best = at
    return best


def differences(row, base):
    """Paired by seed: (mean, its standard error, number of pairs). row, base: results by seed."""
    pairs = [row[seed] - base[seed] for seed in row if seed in base]
    if not pairs:
        return math.nan, math.nan, 0
    error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.nan
    return statistics.fmean(pairs), error, len(pairs)
