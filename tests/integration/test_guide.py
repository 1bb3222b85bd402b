#!/usr/bin/env python3
"""The commands of README.md, of deploy's operators.md, recover.md and policy.md, and of one section of
tests/bench/README.md, as they stand there, on a bare Debian 12: a user builds and installs adtopk,
an operator runs two nodes with keys.

usage: test_guide.py BUILD [unittest's arguments]; skips (77) where no such machine can be made.

Every command of a block is run, in the order of the document. It must end with status 0 and print
what the document shows, but for numbers and names. The tables below name what is different, and the
blocks that are no commands. The bare Debian is made once, as BUILD/bare. With ADTOPK_TEST_LONG=1
benchmarks run as long as the documents say.
"""
import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import threading
import time
import unittest
from typing import Callable, NamedTuple

from build import BUILD
from cluster import die_with_parent
from document import blocks, missing
from machine import Impossible, Machine, bare_debian
from service import wait_for

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
HOME = "home/user/adtopk"  # the sources, in the machine
OUTPUT = "var/guide"       # what commands print, and files of the tests
USER = 1000
SOCKETS = ("/run/adtopk/trainers/adtopkd.sock", "/run/adtopk1/trainers/adtopkd.sock")
CONTROLS = ("/run/adtopk/control/adtopkd.sock", "/run/adtopk1/control/adtopkd.sock")
COMMAND_SECONDS = 900
LONG = "ADTOPK_TEST_LONG" in os.environ
MACHINE = None


class Step(NamedTuple):
    """What a command needs beyond being run."""
    before: Callable = None  # makes the scene
    after: Callable = None   # checks more; gets what was printed
    status: int = 0
    alike: Callable = str    # makes alike what may be another name in each run
    online: bool = False     # on the network of the machine below, to get packages
    terminal: bool = False   # the command wants one
    brief: str = ""          # goes behind the command, except in long tests


class Excluded(NamedTuple):
    reason: str


class Shell:
    """A login shell in the machine that is given one command after the other."""
    count = 0

    def __init__(self, user, online=False):
        self.process = subprocess.Popen(
            [*MACHINE.enter(online=online), "runuser", "-l", user], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        self.run(f"cd /{HOME}")

    def run(self, command, timeout=COMMAND_SECONDS):
        """Returns the command's exit status and what it printed."""
        Shell.count += 1
        output = f"{OUTPUT}/{Shell.count}"
        self.process.stdin.write(f"{{ {command}\n}} >/{output} 2>&1 </dev/null; echo $?\n")
        self.process.stdin.flush()
        ready = select.select([self.process.stdout], [], [], timeout)[0]
        status = self.process.stdout.readline() if ready else "too late"
        with open(MACHINE.path(output), encoding="utf-8", errors="replace") as text:
            return int(status) if status.strip().isdigit() else status, text.read()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Ranks:
    """Ranks of the example trainer, as the user: rank r with the daemon at addresses[r]."""

    def __init__(self, job, addresses):
        self.job = job
        self.processes = [subprocess.Popen(
            [*MACHINE.enter(USER), "sh", "-c", f"echo $$ >/{OUTPUT}/rank{rank}; exec \"$@\"", "sh",
             f"/{HOME}/build/release/client/adtopk-digits", "--data", f"/{OUTPUT}/digits.csv",
             "--steps", "10000000", "--address", f"unix:{address}", "--job", job,
             "--rank", str(rank), "--world", str(len(addresses))],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent)
            for rank, address in enumerate(addresses)]

    @staticmethod
    def signal(rank, name):
        MACHINE.run("sh", "-c", f"kill -{name} $(cat /{OUTPUT}/rank{rank})")

    def end(self):
        MACHINE.run("sh", "-c", f"kill -KILL $(cat /{OUTPUT}/rank*)", check=False)
        for process in self.processes:
            process.kill()  # nsenter, which stops together with its child
            process.wait()


def any_plan(text):
    """Which plan the planner prefers, and why, is another matter in each run. What the link carries
    shows only where an exchange takes several round trips, which it need not on loopback."""
    for name, pattern in (("", r"^ *the link carries .*"),
                          ("CHOICE", "dense bf16|dense|allgather|balanced|oktopk|hierarchical"),
                          ("CHOICE", "(?:partial: )?CHOICE(?:,\\s+CHOICE)*"), ("PLAN", r"\d+:\w+"),
                          ("-", r"\ball\b"), ("", r"^\*"), ("bytes", "[KM]iB"),
                          ("keeping", r"keeping .*"), ("", r"^ *promises enough$")):
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


def status(socket):
    done = MACHINE.run("/usr/local/bin/adtopkctl", "--socket", socket, "--json", "status",
                       check=False)
    return json.loads(done.stdout) if done.stdout else {"jobs": [], "peers": []}


class Guide(unittest.TestCase):
    """One machine for all: the documents are followed in the order of the tests' names."""
    ranks = None

    @classmethod
    def tearDownClass(cls):
        if cls.ranks is not None:
            cls.ranks.end()

    def follow(self, name, user, steps, others, section=""):
        """Runs the commands of a document, or of one of its sections. others: what blocks are, by
        their first line, that are no commands; a function gets the block."""
        steps = {key: list(given) if isinstance(given, list) else [given]
                 for key, given in steps.items()}
        others = dict(others)
        with open(os.path.join(ROOT, name), encoding="utf-8") as document, \
                contextlib.ExitStack() as stack:
            shells = [stack.enter_context(contextlib.closing(Shell(user, online)))
                      for online in (False, True)]
            shells[0].run("export EDITOR='cp /root/edited'")
            text = document.read()
            begin = text.index(f"## {section}\n") if section else 0
            end = text.find("\n## ", begin + 1) if section else len(text)
            for block in blocks("\n" * text.count("\n", 0, begin) + text[begin:end]):
                if block.lines[0] in others:
                    meant = others.pop(block.lines[0])
                    if callable(meant):
                        meant(block)
                    continue
                for command in block.commands():
                    given = steps.get(command.key)
                    step = given.pop(0) if given else Step()
                    if isinstance(step, Step):
                        self.take(f"{name}:{command.line}", command, step, shells)
        self.assertEqual(({key: left for key, left in steps.items() if left}, others), ({}, {}),
                         f"{name} does not have these any more")

    def take(self, place, command, step, shells):
        began = time.monotonic()
        if step.before is not None:
            step.before()
        text = command.text if LONG else command.text + step.brief
        if step.terminal:
            text = f"script -qec '{text}' /dev/null"
        code, printed = shells[step.online].run(text)
        told = f"{place}: {command.text}\n{printed}"
        self.assertEqual(code, step.status, told + (
            MACHINE.journal("--lines=30") if "systemctl" in text else ""))
        self.assertIsNone(missing(map(step.alike, command.shown), step.alike(printed)), told)
        if step.after is not None:
            step.after(printed)
        print(f"{place}: {time.monotonic() - began:.1f} s  {command.text}", flush=True)

    # ------------------------------------------------------------------ the README

    def keep_table(self, printed):
        self.table = printed

    def check_table(self, block):
        """Its columns are as wide as times in it, which differ from run to run."""
        def alike(text):
            return re.sub(r"-+", "-", re.sub(" +", " ", text))
        self.assertIsNone(missing(map(alike, block.lines), alike(self.table)), self.table)

    @staticmethod
    def write(name):
        """What writes a block into a file of that name."""
        return lambda block: MACHINE.write(name, block.text)

    @staticmethod
    def fresh_setup(_):
        """A build folder of its own is configured as well: deploy/quickstart has made the other."""
        MACHINE.run("sh", "-c", f"cd /{HOME} && meson setup /{OUTPUT}/fresh -Dbuildtype=release")
        if LONG:
            MACHINE.run("ninja", "-C", f"/{OUTPUT}/fresh", timeout=COMMAND_SECONDS)

    @staticmethod
    def write_nodes(block):
        """Both machines' configurations: the second has numbers and addresses swapped."""
        MACHINE.write(f"{HOME}/node0.json", block.text)
        text = re.sub(r"\b(10\.0\.0\.)([12])\b", lambda found: found[1] + "21"[int(found[2]) - 1], block.text)
        text = re.sub(r'("node": |/node)([01])', lambda found: found[1] + "10"[int(found[2])], text)
        MACHINE.write(f"{HOME}/node1.json", text)

    def run_machine_1(self):
        """What a second machine runs; then the job of both has begun."""
        self.other = Shell("user")
        for command in ("/usr/local/sbin/adtopkd --config node1.json &",
                        "RANK=1 WORLD_SIZE=2 ADTOPK_ADDRESS=unix:/tmp/node1.sock ./trainer 1000000 &"):
            self.assertEqual(self.other.run(command)[0], 0)
        wait_for(lambda: any(job["state"] == "active" for job in status("/tmp/node0.control")["jobs"]))

    def leave_machine_1(self, _):
        """The daemons' ports are free then."""
        self.other.run("kill %2 %1")
        self.other.close()
        wait_for(lambda: MACHINE.run("sh", "-c", "! grep -qsx adtopkd /proc/[0-9]*/comm",
                                     check=False).returncode == 0)

    def test_1_readme(self):
        self.table = ""
        self.follow("README.md", "user", {
            "deploy/quickstart": Step(online=True, after=self.keep_table),
            "tests/run": "this test is a part of it",
            "meson setup build/release -Dbuildtype=release": Step(after=self.fresh_setup),
            "adtopkctl --socket /tmp/node0.control status": Step(before=self.run_machine_1),
            "kill %2 %1": Step(after=self.leave_machine_1),
        }, {
            "             node 0                                     node 1": "a drawing",
            "#include <adtopk/adtopk.h>": self.write(f"{HOME}/trainer.c"),
            '{ "node": 0, "listen": "tcp://10.0.0.1:7400", "insecure": true,': self.write_nodes,
            "import adtopk.torch as adt": "tests/python/test_torch.py runs it",
            "                        dense    adtopk       adtopk has": self.check_table,
        })
        self.follow("tests/bench/README.md", "user", {
            "adtopk-perf select --size 100M --view global --threads 1,2":
                Step(brief=" --iterations 1 --size 4M"),
        }, {}, section="In short")

    # ------------------------------------------------------------------ operators

    def keep_key(self, printed):
        self.keys = [printed.strip()]

    def keep_configuration(self, block):
        """The block is node 0's configuration, but for the key of its peer; node 1 has the like."""
        self.keys.append(MACHINE.run("/usr/local/bin/adtopkctl", "keygen", "--out",
                                     "/etc/adtopk/node1.key").stdout.strip())
        MACHINE.run("chown", "adtopk", "/etc/adtopk/node1.key")
        document = json.loads(block.text)
        peer = document["peers"][0]
        self.documents = [
            {**document, "peers": [{**peer, "key": self.keys[1]}]},
            {"node": 1, "listen": peer["endpoint"], "key_file": "/etc/adtopk/node1.key",
             "peers": [{"node": 0, "endpoint": document["listen"], "key": self.keys[0]}],
             "socket": SOCKETS[1], "control_socket": CONTROLS[1]}]
        MACHINE.write("root/edited", json.dumps(self.documents[0]))
        MACHINE.write("etc/adtopk/node1.json", json.dumps(self.documents[1]))

    def check_configuration(self, block):
        MACHINE.write("etc/adtopk/seed.json", block.text)
        done = MACHINE.run("runuser", "-u", "adtopk", "--", "/usr/local/sbin/adtopkd", "--check-config", "--config",
                           "/etc/adtopk/seed.json", check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def configure(self, **more):
        """Both daemons take the configuration with these settings."""
        for name, document in zip(("adtopkd", "node1"), self.documents):
            MACHINE.write(f"etc/adtopk/{name}.json", json.dumps({**document, **more}))
        self.assertEqual(MACHINE.run("systemctl", "reload", "adtopkd", "adtopkd1",
                                     check=False).returncode, 0, MACHINE.journal("--lines=20"))

    def start_node_1(self, _):
        MACHINE.second_unit()
        MACHINE.drop_in("adtopkd1", "test", "IPAddressAllow=10.0.0.0/24", "WatchdogSec=0")
        MACHINE.run("systemctl", "daemon-reload")
        self.assertEqual(MACHINE.run("systemctl", "start", "adtopkd1", check=False).returncode, 0,
                         MACHINE.journal("--lines=40"))

    def peer_is(self, state):
        wait_for(lambda: [peer["state"] for peer in status(CONTROLS[0])["peers"]] == [state])

    def check_closed(self):
        """Without the drop-in the nodes do not reach each other, where the kernel can see to that."""
        if MACHINE.filters_addresses():
            time.sleep(2)
            self.peer_is("down")

    def train(self):
        """The job of the documents; rank 1 is stopped at once, so that others wait for it."""
        Guide.ranks = Ranks("digits", [SOCKETS[0], SOCKETS[0], SOCKETS[1], SOCKETS[1]])
        self.goes_on()
        self.halt(1)

    @staticmethod
    def said(pattern):
        printed = MACHINE.run("/usr/local/bin/adtopkctl", "status", check=False).stdout
        return re.search(pattern, " ".join(printed.split())) is not None

    @staticmethod
    def steps():
        return max((job["steps_done"] for job in status(CONTROLS[0])["jobs"]
                    if job["state"] == "active"), default=0)

    def goes_on(self, *ranks):
        """Stopped ranks are woken, and the job makes steps."""
        for rank in ranks:
            self.ranks.signal(rank, "CONT")
        steps = self.steps()
        wait_for(lambda: self.steps() > steps)

    def halt(self, rank):
        """Stops a rank before a push. Where a signal stops it cannot be chosen: elsewhere, as in an
        operation, the job waits for something else than the documents show. Other nodes say what
        its node told them, five to ten seconds later."""
        pushes = rf"waits for rank {rank} on node \d+ \(pid \d+\) to push tensor"
        for _ in range(20):
            self.ranks.signal(rank, "STOP")
            with contextlib.suppress(AssertionError):
                wait_for(lambda: self.said(pushes), seconds=15)
                return
            self.goes_on(rank)
        self.fail(f"rank {rank} does not stop before a push")

    def stick(self):
        """Only then may a job count as stuck so soon: a busy machine stops other ranks, too. The
        daemon writes a little later than it tells."""
        self.halt(3)
        self.configure(stuck_after_ms=1000)
        wait_for(lambda: self.said("it is stuck"))
        wait_for(lambda: "is stuck: for" in MACHINE.journal("--unit=adtopkd"))

    def unstick(self):
        self.goes_on(3)
        wait_for(lambda: "goes on after" in MACHINE.run("journalctl", "-u", "adtopkd").stdout)
        self.configure()

    def lose_node_1(self):
        MACHINE.run("systemctl", "kill", "--signal=STOP", "adtopkd1")
        wait_for(lambda: self.said("which does not answer"))

    def find_node_1(self, _):
        MACHINE.run("systemctl", "kill", "--signal=CONT", "adtopkd1")
        self.goes_on()

    def plan(self):
        """Nobody trains while the command runs: on a busy machine the planner soon tries again."""
        def keeps():
            printed = MACHINE.run("/usr/local/bin/adtopkctl", "plan", "digits").stdout
            return "no other plan" in " ".join(printed.split())

        MACHINE.run("/usr/local/bin/adtopkctl", "policy", "set", "digits", "sparsifier=auto",
                    "sparse_collective=auto", "dense_values=auto", "bucket_bytes=auto")
        for _ in range(20):
            wait_for(keeps)
            self.halt(1)
            if keeps():
                return
            self.goes_on(1)
        self.fail("the planner tries other plans for ever")

    def test_2_operators(self):
        self.follow("deploy/operators.md", "root", {
            "deploy/package": Excluded("test_packages.py runs it, for minutes"),
            "apt install ./build/packages/{adtopkd,adtopk-tools,adtopk-exporter,libadtopk-client1,adtopk-doc}_*.deb":
                Excluded("test_packages.py installs them"),
            "adtopkctl keygen --out /etc/adtopk/node0.key":
                [Step(after=self.keep_key), Step(status=1)],
            "systemctl enable --now adtopkd": Step(after=self.start_node_1),
            "systemctl edit adtopkd": Step(terminal=True, before=self.check_closed,
                                           after=lambda _: self.peer_is("up")),
            "adtopkctl status": Step(before=self.train, after=lambda _: self.goes_on(1)),
            "adtopkctl status; echo $?": [Step(before=self.stick),
                                          Step(before=self.lose_node_1, after=self.find_node_1)],
            "journalctl -u adtopkd": Step(before=self.unstick),
            "adtopkctl trace digits --out digits.json":
                Step(alike=lambda text: text.replace("behind that", "ahead of that")),
            "adtopkctl trace --from trace-*.json --out digits.json": Step(before=self.gather_traces),
            "adtopkctl plan digits": Step(before=self.plan, alike=any_plan,
                                           after=lambda _: self.goes_on(1)),
            "adtopkd --check-config": Step(before=self.spoil, status=1,
                                           after=lambda _: self.configure()),
        }, {
            "{": self.keep_configuration,
            '{"node": 0, "listen": "tcp://10.0.0.1:7400", "key_file": "/etc/adtopk/node0.key",':
                self.check_configuration,
            '{"node": 1, "listen": "tcp://10.0.0.2:7400", "key_file": "/etc/adtopk/node1.key",':
                self.check_configuration,
            "node 0 at tcp://10.0.0.1:7400 is a seed of this node": "lines of peers; test_seed.py makes them",
            "info life: the configuration has been taken; changed: peers":
                "lines of a log; test_keys.py changes keys",
            "[Service]": self.write("root/edited"),
            "# /etc/systemd/system/adtopk-exporter.socket.d/override.conf": self.open_the_exporter,
            "info life: reading the configuration again: SIGHUP": self.check_refusal,
            "info life: stopping: Terminated": self.check_journal,
            "info change: the trace of job 1000:digits/0 is /var/lib/adtopk/traces/"
            "trace-1795464243512-1000-node0-job1.json": "a line of a log",
            '{"time":"2026-11-21T03:49:05.740256Z","level":"info","kind":"peer","message":'
            '"node 0 is up"}': "a line of a log",
        })
        self.recover()

    def recover(self):
        """With the nodes and the job of operators.md."""
        self.follow("deploy/recover.md", "root", {
            "systemctl daemon-reload && systemctl restart adtopkd": Step(
                before=lambda: self.keep_stores(True), after=lambda _: self.train_again()),
            "systemctl kill --signal=KILL adtopkd": Step(after=lambda _: self.goes_on()),
            "systemctl restart adtopkd": Step(after=lambda _: self.goes_on()),
            "adtopkctl checkpoint check /shared/run7/step-100": Step(
                before=self.save_checkpoint, alike=lambda text: text.replace("user alice", "user user")),
            "adtopkctl stores": Step(after=lambda _: self.keep_stores(False)),
        }, {
            "# /etc/systemd/system/adtopkd.service.d/store.conf":
                lambda block: MACHINE.write(block.lines[0].removeprefix("# /"), block.text),
            "job     run  owner  state   ranks here  nodes  view  steps   memory":
                "a table of status; test_deaths.py makes it",
        })

    def keep_stores(self, keep):
        """Node 0's daemon is configured to keep stores, or not. Then it is left stopped, as before."""
        more = {"store_folder": "/var/lib/adtopk/stores"} if keep else {}
        MACHINE.write("etc/adtopk/adtopkd.json", json.dumps({**self.documents[0], **more}))
        if not keep:
            self.ranks.end()
            MACHINE.run("systemctl", "stop", "adtopkd")

    @staticmethod
    def gather_traces():
        """The parts that the daemons wrote while the job was stuck."""
        MACHINE.run("sh", "-c", f"cp /var/lib/adtopk/traces/trace-*.json /{HOME}/")

    @staticmethod
    def save_checkpoint():
        """Three ranks train on two nodes, and save. Node 0 is left stopped, as before."""
        MACHINE.run("systemctl", "start", "adtopkd")
        MACHINE.run("install", "-d", "-o", str(USER), "/shared/run7")
        trainer = f"/{HOME}/build/release/client/adtopk-digits --data /{OUTPUT}/digits.csv --steps 100"
        MACHINE.run("env", "ADTOPK_RUN_ID=7", "sh", "-c", " ".join(
            f"{trainer} --checkpoint /shared/run7 --job digits --rank {rank} --world 3 --address unix:{socket} &"
            for rank, socket in enumerate((SOCKETS[0], SOCKETS[0], SOCKETS[1]))) + " wait", uid=USER)
        MACHINE.run("systemctl", "stop", "adtopkd")

    def train_again(self):
        self.peer_is("up")
        self.ranks.end()
        Guide.ranks = Ranks("digits", [SOCKETS[0], SOCKETS[0], SOCKETS[1], SOCKETS[1]])
        self.goes_on()

    def open_the_exporter(self, block):
        """The exporter answers on the address of the drop-in, and before that on loopback."""
        wait_for(lambda: MACHINE.answer("/healthz") == "ok\n")
        MACHINE.write(block.lines[0].removeprefix("# /"), block.text)
        MACHINE.run("systemctl", "daemon-reload")
        MACHINE.run("systemctl", "restart", "adtopk-exporter.socket")
        wait_for(lambda: MACHINE.answer("/healthz", "10.0.0.1") == "ok\n")
        self.assertEqual(MACHINE.answer("/healthz"), "")

    @staticmethod
    def spoil():
        """A configuration with the errors that the document shows."""
        MACHINE.write("etc/adtopk/adtopkd.json", """{
  "node": 0,
  "log_level": "inof",
  "listen": "tcp://127.0.0.1:7400",
  "peers": [{"node": 1, "endpoint": "tcp://10.0.0.2:7400"},
    {"node": 2, "endpoint": "tcp://10.0.0.2:7400"}
  ]
}
""")

    def check_refusal(self, block):
        """What the daemon says of a reload that would need a restart."""
        MACHINE.write("etc/adtopk/adtopkd.json",
                      json.dumps({**self.documents[0], "listen": "tcp://10.0.0.1:7401"}))
        MACHINE.run("systemctl", "reload", "adtopkd")
        self.check_journal(block)
        self.configure()

    def check_journal(self, block):
        """The journal has these lines; the level, which comes first, it keeps elsewhere."""
        lines = [re.sub(r"^(info|warning|error) ", "", line) for line in block.lines]
        wait_for(lambda: missing(lines, MACHINE.journal("--unit=adtopkd")) is None, block.text)

    # ------------------------------------------------------------------ policies

    def set_policy(self):
        MACHINE.run("systemctl", "start", "adtopkd")
        self.train_again()
        MACHINE.run("/usr/local/bin/adtopkctl", "policy", "set", "digits", f"/{HOME}/policy.json")

    def pause(self):
        """Nobody trains until the command that follows has said what it waits for."""
        self.halt(3)
        printed = MACHINE.path(f"{OUTPUT}/{Shell.count + 1}")
        threading.Thread(target=self.wake, args=(printed,), daemon=True).start()

    def wake(self, printed):
        def waits():
            with contextlib.suppress(FileNotFoundError), open(printed, encoding="utf-8") as text:
                return "the job waits for" in text.read()
            return False

        with contextlib.suppress(AssertionError):
            wait_for(waits)
        self.ranks.signal(3, "CONT")

    def test_3_policy(self):
        good = os.path.join(HOME, "policy.json")
        documents = []

        def keep(block):
            documents.append(block.text)
            MACHINE.write(good, block.text)

        self.follow("deploy/policy.md", "root", {
            "adtopkctl tensors digits": Step(before=self.set_policy),
            "adtopkctl policy check density=2": Step(status=1),
            "adtopkctl policy check policy.json": Step(
                status=1, after=lambda _: MACHINE.write(good, documents[0]),
                before=lambda: MACHINE.write(good, '{\n  "density": 0.1,\n  "scope": "rank",\n}\n')),
            "adtopkctl policy check scope=rank sparsifer=dense": Step(status=1),
            "adtopkctl policy set digits --if-version 1 density=0.5": Step(status=1),
            "adtopkctl policy set digits density=0.02": [Step(), Step(before=self.pause)],
        }, {"{": keep})


def no_sources(folder, names):
    """What a clone of the sources does not have."""
    made = ("build", "quickstart-out", "study-out") if folder == ROOT else ()
    return [name for name in names if name in (".git", ".torch", ".tools", "__pycache__") or name.startswith(made) or
            os.path.join(folder, name) == BUILD]


def prepare():
    """The sources of a user who may become root, on a Debian that has nothing else."""
    MACHINE.prepare()
    shutil.copytree(ROOT, MACHINE.path(HOME), symlinks=True, ignore=no_sources)
    shutil.copy("/etc/resolv.conf", MACHINE.path("etc/resolv.conf"))
    MACHINE.write("etc/sudoers.d/user", "user ALL=(ALL) NOPASSWD: ALL\n", 0o440)
    MACHINE.boot()
    MACHINE.add_addresses("10.0.0.1", "10.0.0.2")  # of the nodes in operators.md
    MACHINE.run("useradd", "--uid", str(USER), "--shell", "/bin/bash", "user")
    MACHINE.run("chown", "-R", "user:", "/home/user")
    MACHINE.run("install", "-d", "-m", "1777", f"/{OUTPUT}")
    MACHINE.run("sh", "-c", f"gunzip -c /{HOME}/tests/data/digits.csv.gz >/{OUTPUT}/digits.csv")
    if subprocess.run([*MACHINE.enter(online=True), "apt-get", "update", "--error-on=any"],
                      capture_output=True, check=False).returncode != 0:
        raise Impossible("no mirror of Debian can be reached")


if __name__ == "__main__":
    try:
        MACHINE = Machine(files=bare_debian(os.path.join(BUILD, "bare")))
        with MACHINE:
            prepare()
            unittest.main(failfast=True)
    except Impossible as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
