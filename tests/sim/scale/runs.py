"""Runs of scale-run: what is wanted, made once, several at a time."""
import concurrent.futures
import json
import subprocess
import sys

NETWORKS = {"10G": {"gbit": 10}, "1G": {"gbit": 1},
            "racks": {"gbit": 10, "rack": 32, "narrowing": 4}}
LATENCY, OVERLAP = 20e-6, 0.5  # scale-run's defaults
DENSITY = 0.01
NOT_OF_LISTS = ("--nodes", "--gbit", "--rack", "--narrowing")
LIMITS = ("no memory", "took longer")  # what makes a run impossible here, not wrong


class ScaleError(Exception):
    """A run failed; the text says why."""


def numel_of(entries):
    return max(1, round(entries / DENSITY))


def arguments(collective, nodes, entries, **options):
    """The arguments of a run. A network of one rack has no narrow links."""
    if nodes <= options.get("rack", 0):
        options = {key: value for key, value in options.items() if key not in ("rack", "narrowing")}
    options = {"nodes": nodes, "entries": entries, "numel": numel_of(entries), **options}
    return (f"--collective={collective}",
            *(f"--{key.replace('_', '-')}={value}" for key, value in options.items()))


class Runs:
    """Results by arguments; None for a run that memory or time did not allow."""

    def __init__(self, program, options):
        self.program, self.options = program, options
        self.results, self.refused = {}, {}
        self.stopped = False

    def refused_with_less(self, wanted):
        """The fewest nodes, no more than in this run, with which the same lists could not be
        run, whatever the network."""
        def split(run):
            given = dict(argument.split("=") for argument in run)
            return int(given["--nodes"]), {key: value for key, value in given.items()
                                           if key not in NOT_OF_LISTS}
        most, lists = split(wanted)
        return min((nodes for nodes, same in map(split, list(self.refused))
                    if nodes <= most and same == lists), default=None)

    def make(self, wanted):
        """Runs one; what memory or time did not allow is noted in `refused`."""
        if self.stopped:
            return
        less = self.refused_with_less(wanted)
        if less is not None:
            self.results[wanted], self.refused[wanted] = None, f"as with P = {less}"
            return
        try:
            done = subprocess.run([self.program, *wanted, f"--memory={self.options.memory}"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, timeout=self.options.limit,
                                  check=False)
            text = done.stderr.strip()
        except subprocess.TimeoutExpired:
            done, text = None, f"took longer than {self.options.limit} s"
        if done is not None and done.returncode == 0:
            self.results[wanted] = json.loads(done.stdout)
            return
        if not any(limit in text for limit in LIMITS):
            raise ScaleError(f"scale-run {' '.join(wanted)}: {text or 'was killed'}")
        self.results[wanted] = None
        self.refused[wanted] = text

    def need(self, run):
        """The result of a run without which nothing can be said."""
        if self.results[run] is None:
            raise ScaleError(f"scale-run {' '.join(run)}: {self.refused[run]}")
        return self.results[run]

    def get(self, *wanted, **options):
        return self.results[arguments(*wanted, **options)]

    def make_all(self, wanted):
        """Runs all that were not yet, and says on stderr how far it is."""
        left = list(dict.fromkeys(run for run in wanted if run not in self.results))
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            futures = {pool.submit(self.make, run): run for run in left}
            try:
                for count, future in enumerate(concurrent.futures.as_completed(futures), 1):
                    future.result()
                    said = " ".join(futures[future])
                    sys.stderr.write(f"scale: {count} of {len(left)}: {said}\n")
            except BaseException:
                self.stopped = True
                raise

    def save(self):
        return [{"arguments": list(run), "result": result, "refused": self.refused.get(run)}
                for run, result in self.results.items()]

    def load(self, saved):
        for entry in saved:
            run = tuple(entry["arguments"])
            self.results[run] = entry["result"]
            if entry["refused"]:
                self.refused[run] = entry["refused"]
