"""What training reaches, dense and compressed, from the same beginnings: held-out bits a character of
the examples' own trainer at the end of its steps, on links without a limit."""
import json
import math
import os
import statistics

import box
import report
import teams
import trainees
from command import progress
from conductor import TeamError
from field import POLICIES

SCHEMA = 1
BASE = "dense"
CONTENDERS = (BASE, "adtopk", "corrected")
WARMUP_EPOCHS = 4  # over the tenth of the steps in which the learning rate rises
RUN_LIMIT = 6 * 3600  # seconds


class Course(teams.Team):
    """A whole training, one rank a node."""

    def __init__(self, name, policy, seed, options, daemons, scratch):
        nodes = daemons.box.nodes
        super().__init__(f"{name}-{seed}", len(nodes), scratch)
        self.result = os.path.join(scratch, f"{self.name}.jsonl")
        with open(os.path.join(scratch, "policy"), "w", encoding="utf-8") as out:
            json.dump(policy, out)
        for node in nodes:
            self.start([os.path.join(options.build, "client/adtopk-text"),
                        *trainees.model_of(options), "--batch", options.batch,
                        "--steps", options.steps, "--warmup", options.steps // 10, "--lr", options.lr,
                        "--seed", seed, "--rank", node.number, "--world", len(nodes),
                        "--address", f"unix:{daemons.daemons[node.number].socket}",
                        *(["--corrected"] if policy.get("momentum") else []),
                        "--job", self.name, "--policy", out.name, "--log", self.result], node)

    def bits(self):
        """Waits for the end; held-out bits a character."""
        for process in self.processes:
            if process.wait(RUN_LIMIT) != 0:
                raise TeamError(f"{self.name}: a rank failed\n{self.said()}")
        with open(self.result, encoding="utf-8") as lines:
            return json.loads(list(lines)[-1])["test_loss"] / math.log(2)


class Quality:
    """Bits by contender, a seed after the other; filled while it runs."""

    def __init__(self, options):
        self.options = options
        self.bits = {name: [] for name in options.contenders}
        self.interrupted = False

    def run(self, scratch):
        options = self.options
        with box.Box(options.nodes, 0, 0) as network:
            daemons = teams.Daemons(options, network, scratch, False)
            try:
                for seed in range(1, options.seeds + 1):
                    for name, bits in self.bits.items():
                        progress(f"seed {seed}/{options.seeds}: {name}")
                        course = Course(name, options.policies[name], seed, options, daemons,
                                        scratch)
                        try:
                            bits.append(course.bits())
                        finally:
                            course.stop()
            finally:
                daemons.stop()

    def document(self):
        options = self.options
        rows = [{"contender": name, "bits": bits, "mean_bits": statistics.fmean(bits)}
                for name, bits in self.bits.items() if bits]
        base = next((row["mean_bits"] for row in rows if row["contender"] == BASE), None)
        for row in rows:
            row["more"] = row["mean_bits"] / base - 1 if base else None
        return {"schema": SCHEMA, "program": "adtopk cluster training --quality",
                "nodes": options.nodes, "steps": options.steps, "lr": options.lr,
                "model": {"tensors": options.tensors, "parameters": options.elements,
                          "batch": options.batch},
                "policies": {name: options.policies[name] for name in self.bits}, "rows": rows,
                "interrupted": self.interrupted}


def corrected(options):
    """Deep gradient compression's two remedies: the daemon keeps the momentum, so that what waits in a
    residual waits with it, and the density falls to its value while the learning rate rises."""
    return {"sparsifier": "adtopk", "density": options.density, "bucket_bytes": options.bucket_bytes,
            "momentum": 0.9, "momentum_masking": False, "lookahead": 0, "warmup_epochs": WARMUP_EPOCHS,
            "epoch_turns": max(1, options.steps // 10 // WARMUP_EPOCHS)}


def check(parser, options):
    options.policies.setdefault("corrected", corrected(options))
    for name in options.contenders:
        if name not in options.policies:
            parser.error(f"--quality: '{name}' is no policy: {', '.join([*POLICIES, 'corrected'])}")


def text(document):
    model = document["model"]
    parts = [f"nodes: {document['nodes']}, one rank each; {document['steps']} steps of "
             f"{model['batch']} characters",
             f"model: {model['parameters']} parameters in {model['tensors']} tensors", ""]
    seeds = max((len(row["bits"]) for row in document["rows"]), default=0)
    lines = [("bits a character", *(f"seed {seed + 1}" for seed in range(seeds)), "mean", "more")]
    for row in document["rows"]:
        bits = [f"{value:.4f}" for value in row["bits"]] + ["-"] * (seeds - len(row["bits"]))
        more = "-" if row["more"] is None else f"{row['more']:+.2%}"
        lines.append((row["contender"], *bits, f"{row['mean_bits']:.4f}", more))
    return "\n".join([*parts, report.table(lines)])
