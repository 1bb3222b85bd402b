"""Ranks that do what a test says: processes of trainer.c, alone or as a job over a cluster."""
import os
import select
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from cluster import die_with_parent

ANSWER_SECONDS = 60
FORMS = ("list", "dense", "both")


def turned(tensors, by):
    """The same tensors, whose updates ranks see in other forms. Their bits must be the same."""
    return [(name, dtype, FORMS[(FORMS.index(forms) + by) % len(FORMS)] if forms in FORMS else forms, shape)
            for name, dtype, forms, shape in tensors]


class RankError(Exception):
    """A rank answered with an error, or not at all. name: the status, as in "peer"."""

    def __init__(self, text, name=""):
        super().__init__(text)
        self.name = name


class Rank:
    """One process of trainer.c. through: a command that runs it, such as nsenter. program: with
    fail points it is test-trainer-points."""

    def __init__(self, build, address, job, rank, world, policy="-", run="0", prepare=None,
                 through=(), variables=None, program="test-trainer"):
        self.rank = rank
        self.opening = f"open {address} {job} {run} {rank} {world} {policy}"
        self.buffer = b""
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("ADTOPK_")}
        environment.update(variables or {})
        self.process = subprocess.Popen(
            [*through, os.path.join(build, "tests", "integration", program)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            preexec_fn=prepare or die_with_parent)

    def send(self, *commands):
        """Sends commands without waiting for their answers."""
        self.process.stdin.write("".join(one + "\n" for one in commands).encode())
        self.process.stdin.flush()

    def line(self, timeout=ANSWER_SECONDS):
        """The next line of an answer."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise RankError(f"rank {self.rank} does not answer")
            read = os.read(self.process.stdout.fileno(), 65536)
            if not read:
                raise RankError(f"rank {self.rank} ended with {self.process.wait()}")
            self.buffer += read
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.decode()

    def answer(self, timeout=ANSWER_SECONDS):
        """The next answer, without its "ok". Raises RankError for an error."""
        word, _, rest = self.line(timeout).partition(" ")
        if word == "ok":
            return rest
        name, _, sentence = rest.partition(" ")
        raise RankError(sentence, name)

    def error(self, timeout=ANSWER_SECONDS):
        """The next answer, which must be an error: (name, sentence)."""
        try:
            answer = self.answer(timeout)
        except RankError as error:
            if error.name == "":
                raise
            return error.name, str(error)
        raise AssertionError(f"rank {self.rank} answered '{answer}', not an error")

    def do(self, *commands):
        """Sends commands and returns the last one's answer; all must succeed."""
        self.send(*commands)
        return [self.answer() for _ in commands][-1]

    def pending(self):
        """True if the rank has not answered yet."""
        return b"\n" not in self.buffer and \
            not select.select([self.process.stdout], [], [], 0)[0]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def end(self):
        """Ends the process in order."""
        try:
            self.process.stdin.close()
            self.process.wait(20)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        self.kill()


class Job:
    """All ranks of a job, rank r on node homes[r]. tensors: (name, dtype, forms, shape) each."""

    def __init__(self, cluster, build, name, homes, tensors, policy="-", run="0", before=(),
                 through=(), prepare=None, devices=None, variables=None, pointed=None):
        """devices: per rank what follows the command `device`, or None for host memory. pointed: by
        rank, the page of one that has fail points (points.py)."""
        self.name = name
        self.tensors = tensors
        self.before = list(before)
        self.devices = devices or [None] * len(homes)
        self.ranks = []
        try:
            for rank, node in enumerate(homes):
                page = (pointed or {}).get(rank)
                more = {} if page is None else {
                    "variables": {**(variables or {}), "ADTOPK_TEST_POINTS": page.path},
                    "program": "test-trainer-points"}
                self.ranks.append(Rank(build, cluster.address(node), name, rank, len(homes), policy,
                                       run, prepare, through, **{"variables": variables, **more}))
        except BaseException:
            self.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.end()
        else:
            self.kill()

    def each(self, *commands):
        """Sends the same commands to every rank; returns each one's last answer."""
        for rank in self.ranks:
            rank.send(*commands)
        return [[rank.answer() for _ in commands][-1] for rank in self.ranks]

    def registrations(self):
        return [f"tensor {name} {dtype} {forms} {'x'.join(map(str, shape))}"
                for name, dtype, forms, shape in self.tensors]

    def join(self):
        """Opens, registers and commits on all ranks."""
        commands = [[rank.opening, *self.before, *([f"device {device}"] if device else []),
                     *self.registrations(), "commit"]
                    for rank, device in zip(self.ranks, self.devices)]
        for rank, said in zip(self.ranks, commands):
            rank.send(*said)
        for rank, said in zip(self.ranks, commands):
            for _ in said:
                rank.answer()
        return self

    def steps(self, count):
        """Trains; all ranks must agree: (status, accepted, withdrawn, hash of all updates)."""
        answers = self.each(f"steps {count}")
        if len(set(answers)) != 1:
            raise AssertionError(f"the ranks differ: {answers}")
        status, accepted, withdrawn, updates = answers[0].split()
        return status, int(accepted), int(withdrawn), updates

    def steps_while(self, call):
        """Trains until `call`, which waits for steps, is over, and at least two steps; returns what it
        returned."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            outcome = pool.submit(call)
            while True:
                if self.steps(2)[0] != "ok":
                    raise AssertionError("a step failed")
                if outcome.done():
                    return outcome.result()

    def kill(self):
        for rank in self.ranks:
            rank.kill()

    def end(self):
        # All at once: a rank that closes does not wait for the others.
        for rank in self.ranks:
            rank.process.stdin.close()
        for rank in self.ranks:
            rank.end()
