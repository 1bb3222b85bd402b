"""Teams that train a model of characters, one rank a node: each by itself, through adtopk, or through
gloo. Their steps are those of the example's own loop: see training_rank.c."""
import gzip
import json
import os
import shutil

import command
import teams

DATA = os.path.join(command.ROOT, "tests/data/kjv-pentateuch.txt.gz")


def unpack(scratch):
    """Where the text lies, unpacked."""
    path = os.path.join(scratch, "text")
    with gzip.open(DATA) as packed, open(path, "wb") as out:
        shutil.copyfileobj(packed, out)
    return path


def model_of(options):
    """Options of the example that say what is trained on what."""
    return ["--data", options.data, "--hidden", options.hidden, "--context", options.context,
            "--embedding", options.embedding]


def tensors_of(options):
    return command.tensors_of(options, Trainees.program, *model_of(options))


class Trainees(teams.Team):
    """Each by itself: what computing costs when all nodes compute at the same time."""
    program = "cluster-training-peer"

    def __init__(self, name, options, place, network):
        super().__init__(name, len(network.nodes), place.scratch)
        self.options = options
        self.scratch = place.scratch
        self.network = network
        for node in network.nodes:
            self.prepare(node)
            self.start(self.command(node, place.conductor), node)

    def prepare(self, node):
        """What must be there before the rank starts."""

    def joining(self, _node):
        return ["--address", "none"]

    def command(self, node, conductor):
        options = self.options
        return [os.path.join(options.build, "tests/bench", self.program), conductor, self.name,
                node.number, *model_of(options), "--batch", options.batch, "--steps", 10**9,
                "--lr", options.lr, "--rank", node.number, "--world", len(self.network.nodes),
                *self.joining(node)]


class GlooTrainees(Trainees):
    """A bridge to torch.distributed beside every rank."""

    def path(self, node):
        return os.path.join(self.scratch, f"bridge{node.number}")

    def prepare(self, node):
        for end in ("ready", "done"):
            os.mkfifo(f"{self.path(node)}.{end}")
        self.start([teams.TORCH_PYTHON, os.path.join(teams.HERE, "gloo_bridge.py"),
                    os.path.join(self.scratch, "bridge.store"), node.number, self.size,
                    self.path(node)], node, {"GLOO_SOCKET_IFNAME": "e0"})
        self.pids.append(self.processes[-1].pid)

    def joining(self, node):
        return ["--address", self.path(node)]


class JobTrainees(Trainees):
    """A job of adtopk."""
    program = "cluster-training"

    def __init__(self, name, policy, daemons, options, place):
        self.daemons = daemons
        self.policy = os.path.join(place.scratch, f"{name}.policy")
        with open(self.policy, "w", encoding="utf-8") as out:
            json.dump(policy, out)
        super().__init__(name, options, place, daemons.box)
        self.pids = daemons.pids()

    def joining(self, node):
        return ["--address", f"unix:{self.daemons.daemons[node.number].socket}", "--job", self.name,
                "--policy", self.policy]

    def said(self, lines=20):
        return super().said(lines) + "\n" + self.daemons.log_tails()

    def counted(self):
        """What the daemons have counted of this job until now, by node."""
        return self.daemons.stats(self.name)
