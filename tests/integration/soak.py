"""What test_soak.py runs: jobs that come and go side by side, each with a fault of its own, while
something happens to the cluster.

    life = Life(cluster, random.Random(7), "soak7", quiet, event)
    life.join()
    life.run()      # returns when the job is over; quiet is set once the cluster is itself again

Of three nodes, node 2 is mortal: its daemon is killed or stopped, and started again. The two others live
as long as the cluster, so that what they have can be compared over time.
"""
import os
import shutil
import signal
import tempfile
import time

from build import BUILD
from cluster import PATIENCE
from ranks import Job, Rank, RankError
from scene import text
from service import wait_for
from stores import StoreCluster
from test_member_points import Pump

NODES, MORTAL = 3, 2
SHAPES = [("weights", "f32", "both", (64, 256)), ("bias", "f32", "dense", (64,)),
          ("rows", "f32", "list", (40, 30))]
POLICIES = [{}, {"scope": "rank"}, {"sparsifier": "dense"}, {"momentum": 0.9, "values": "f32"},
            {"residual": "bf16", "sparsifier": "topk"}, {"sparse_collective": "balanced"}]
# What an operator changes while a job trains.
CHANGES = [{"density": 0.1}, {"sparsifier": "topk"}, {"values": "f32"}, {"scope": "node"}, {"weight": 3},
           {"sparsifier": "dense"}, {"clip": 1}]
# More of those that take little time.
FAULTS = ["kill", "kill", "kill", "hang_up", "pause", "pause", "nothing", "poison", "save", "change",
          "replace", "grow"]
EVENTS = ["nothing", "nothing", "pause_daemon", "cut", "kill_daemon", "stop_daemon", "lose_store"]
ENDS = {"kill_daemon", "stop_daemon", "lose_store"}  # the mortal daemon does
# Where its store is lost, too, jobs with ranks there end.
LOSES = ["lose", "lose", "grow", "kill", "hang_up"]
# They keep away from a daemon that ends: if nobody returns to it, a store stays. Nor can another process take the
# place of a rank that died there.
AWAY = {"kill", "hang_up", "replace"}
SETTINGS = {"peer_timeout_ms": 1500, "heartbeat_ms": 200}


def soak_cluster():
    cluster = StoreCluster(NODES, relays=True, **SETTINGS)
    heap = os.path.join(BUILD, "tests", "integration", "libtest-heap.so")
    for daemon in cluster.daemons:
        daemon.variables.update(LD_PRELOAD=heap, ADTOPK_TEST_HEAP=daemon.config)
    return cluster


def happen(cluster, draw, event):
    """What happens to the cluster. It is itself again at the end."""
    time.sleep(draw.uniform(0, 0.1))
    mortal = cluster.daemons[MORTAL]
    if event == "pause_daemon":
        pause(draw.choice(cluster.daemons).process, draw)
    elif event == "cut":
        for relay in draw.sample(list(cluster.relays.values()), draw.choice((1, 2, len(cluster.relays)))):
            relay.forget()
    elif event in ENDS:
        mortal.stop() if event == "stop_daemon" else mortal.kill()
        if event == "lose_store":
            shutil.rmtree(cluster.folder(MORTAL))
        time.sleep(draw.choice((0, 0.05, 0.3)))
        cluster.restart(MORTAL)


def pause(process, draw):
    process.send_signal(signal.SIGSTOP)
    time.sleep(draw.uniform(0, 0.5))
    process.send_signal(signal.SIGCONT)


class Life:
    """A job from its first rank to its last. event: what happens to the cluster meanwhile."""

    def __init__(self, cluster, draw, name, quiet, event):
        self.cluster, self.draw, self.name, self.quiet = cluster, draw, name, quiet
        self.fault = fault = draw.choice(LOSES if event == "lose_store" else FAULTS)
        self.heard = None  # after so many seconds the others knew of a death
        self.changed = 0   # changes of the policy that were made
        self.tensors = SHAPES[:draw.randint(1, 3)]
        self.policy = {**draw.choice(POLICIES), "density": 0.05}
        nodes = range(NODES)
        if fault in AWAY and event in ENDS:
            nodes = [node for node in nodes if node != MORTAL]
        self.homes = sorted(draw.choices(nodes, k=draw.randint(1, 4)))
        if fault == "replace":
            self.policy["on_rank_loss"] = "wait"
            self.homes = sorted([*self.homes[:3], draw.choice(nodes)])
        elif fault == "grow":
            self.policy.update(on_peer_loss="shrink", grow=True, shrink_after=2)
            self.homes = [0, *[1] * draw.randint(1, 2), MORTAL]
        self.job = None

    def join(self):
        self.job = Job(self.cluster, BUILD, self.name, self.homes, self.tensors, text(**self.policy),
                       before=["gradients random 7"])
        self.job.join()
        if self.fault in ("lose", "grow"):  # before the first step is over, nothing can be lost
            self.job.steps(3)

    def run(self):
        try:
            getattr(self, self.fault)()
        except (AssertionError, RankError) as error:
            raise AssertionError(f"{self.name} on {self.homes}, {self.fault}: {error}") from error
        finally:
            self.job.kill()

    def wait_quiet(self):
        if not self.quiet.wait(PATIENCE):
            raise AssertionError("the cluster is not itself again")

    def send(self, *commands, ranks=None):
        for rank in self.job.ranks if ranks is None else ranks:
            rank.send(*commands)

    def train(self):
        self.send(f"steps {self.draw.randint(1, 200)}")
        time.sleep(self.draw.uniform(0, 0.1))

    def finish(self, answers=1, withdrawn=0):
        """Ranks on a node whose daemon ended return to it for one step more, so that the job's end removes its
        store. All have had the same updates."""
        self.wait_quiet()
        self.send("steps 1")
        said = [[rank.answer() for _ in range(answers + 1)][-1] for rank in self.job.ranks]
        if len(set(said)) != 1 or said[0].split()[::2][:2] != ["ok", str(withdrawn)]:
            raise AssertionError(f"the ranks end with {said}")
        self.job.end()

    def other(self, victim):
        return [rank for rank in self.job.ranks if rank is not victim]

    # ------------------------------------------------------------ faults

    def nothing(self):
        self.train()
        self.finish()

    def kill(self):
        """Also tells how soon the others hear of it: on its node, and elsewhere."""
        self.send("steps 1000000")
        time.sleep(self.draw.uniform(0, 0.1))
        victim = self.draw.choice(self.job.ranks)
        died = time.monotonic()
        victim.kill()
        for rank in self.other(victim):
            name, sentence = rank.error()
            if name != "peer" or f"rank {victim.rank}" not in sentence:
                raise AssertionError(f"{name}: {sentence}")
            self.heard = time.monotonic() - died

    def hang_up(self):
        """All are killed at once."""
        self.send("steps 1000000")
        time.sleep(self.draw.uniform(0, 0.1))

    def lose(self):
        """Its ranks on the mortal node return to a daemon that has no store, and all hear of it."""
        self.send("steps 1000000")
        self.wait_quiet()
        for rank in self.job.ranks if MORTAL in self.homes else ():
            name, sentence = rank.error()
            if name != "lost":
                raise AssertionError(f"{name}: {sentence}")

    def pause(self):
        self.train()
        pause(self.draw.choice(self.job.ranks).process, self.draw)
        self.finish()

    def poison(self):
        """One rank's gradient is not finite: the step is withdrawn on all."""
        self.draw.choice(self.job.ranks).do(f"poison {self.draw.randint(0, 20)} 0 nan")
        self.send("steps 40")
        self.finish(withdrawn=1)

    def save(self):
        """A checkpoint in mid-training, from which a job of the next run begins."""
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            self.train()
            self.send(f"save {folder}")
            self.send(f"steps {self.draw.randint(1, 50)}")
            self.finish(3)
            with Job(self.cluster, BUILD, self.name, self.homes, self.tensors, text(**self.policy), "1",
                     before=["gradients random 7"]) as job:
                job.join()
                if len(set(job.each(f"load {folder}"))) != 1 or job.steps(5)[0] != "ok":
                    raise AssertionError("it does not go on from the checkpoint")

    def change(self):
        """An operator changes the policy once or twice. While a node comes back that is refused."""
        asked = self.cluster.daemons[self.draw.choice(sorted({0, *self.homes} - {MORTAL}))]
        for _ in range(self.draw.randint(1, 2)):
            change = text(**self.draw.choice(CHANGES))
            code = self.job.steps_while(lambda: asked.ask("policy", "set", self.name, change)[0])  # pylint: disable=cell-var-from-loop
            self.changed += code == 0
        self.finish(0)

    def take_one(self):
        for rank in self.job.ranks:
            rank.answer()

    def replace(self):
        """A rank dies between two steps, and another process takes its place."""
        step = self.draw.randint(1, 50)
        self.send(f"steps {step}")
        self.take_one()
        victim = self.draw.choice(self.job.ranks)
        victim.kill()
        self.send("steps 20", ranks=self.other(victim))
        self.wait_quiet()
        self.join_late(victim.rank, f"back {step}")
        self.send("steps 20", ranks=[self.job.ranks[victim.rank]])
        self.take_one()
        self.send("steps 5")
        if {rank.answer().split()[0] for rank in self.job.ranks} != {"ok"}:
            raise AssertionError("a step failed")
        self.job.end()

    def join_late(self, number, *before):
        """Another process for this rank; its answer to commit is to come."""
        rank = Rank(BUILD, self.cluster.address(self.homes[number]), self.name, number, len(self.homes),
                    text(**self.policy))
        self.job.ranks[number] = rank
        rank.do(*before, rank.opening, "gradients random 7", *self.job.registrations())
        rank.send("commit")
        return rank

    def grow(self):
        """The mortal node loses its rank. The others go on, and another process joins them."""
        stay, lost = self.job.ranks[:-1], self.job.ranks[-1]
        pump = Pump(stay, 3)
        pump.go_on()
        time.sleep(self.draw.uniform(0, 0.1))
        lost.kill()
        pump.until(lambda: self.quiet.is_set() and self.ranks_left() == len(stay), "the node is not left out")
        again = self.join_late(lost.rank)
        pump.until(lambda: not again.pending(), "the node does not join")
        again.answer()
        again.send(f"until {pump.steps}")
        answers = pump.finish() | {again.answer()}
        if len(answers) != 1 or not answers.pop().startswith(f"ok {pump.steps} 0 "):
            raise AssertionError(f"the ranks end with {answers}")
        self.job.end()

    def ranks_left(self):
        return next((job["view_ranks"] for job in self.cluster.status(0)["jobs"]
                     if job["name"] == self.name), 0)
