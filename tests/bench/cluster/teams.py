"""The teams of processes that are measured: adtopk's daemons and ranks, Open MPI, gloo, the floor.

A team is started on the nodes of a box and then waits for the conductor; its contenders are what it can
be told to do. Failures: TeamError with the end of what its processes said.
"""
import json
import os
import shutil
import subprocess
import sys
import time

from conductor import TeamError

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.realpath(os.path.join(HERE, "../../integration")))
from cluster import Daemon, ClusterError  # pylint: disable=wrong-import-position

TORCH_PYTHON = "/usr/bin/python3"  # where Debian's python3-torch is
PORTS = {False: 7400, True: 7500}  # by whether there are keys
PORTS_OF_OTHER = 100  # the ports of the other build's daemons are so much higher
START_TIMEOUT = 30


class Team:
    """Processes that make steps together. size: how many ranks the conductor is to expect; pids:
    whose use of the cores counts."""

    def __init__(self, name, size, scratch):
        self.name = name
        self.size = size
        self.processes = []
        self.pids = []
        self.links = []
        self.log = os.path.join(scratch, f"{name}.log")

    def start(self, command, node, environment=None):
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **(environment or {})}, preexec_fn=node.enter)
        self.processes.append(process)

    def check(self):
        if any(process.poll() is not None for process in self.processes):
            raise TeamError(f"{self.name}: a process ended\n{self.said()}")

    def wait_for_end(self):
        """A moment for a process that fails to say why."""
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and all(process.poll() is None
                                                  for process in self.processes):
            time.sleep(0.05)

    def said(self, lines=20):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return "\n".join(log.read().splitlines()[-lines:])

    def stop(self):
        """Hangs up, upon which ranks end; kills who does not."""
        for link in self.links:
            if link is not None:
                link.connection.close()
        deadline = time.monotonic() + 5
        for process in self.processes:
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# ---------------------------------------------------------------- adtopk

class Daemons:
    """One adtopkd a node. keys: links under CURVE; otherwise in the clear. other: the programs are
    those of options.beside."""

    def __init__(self, options, box, scratch, keys, other=False):
        self.box = box
        self.port = PORTS[keys] + (PORTS_OF_OTHER if other else 0)
        self.build = options.beside if other else options.build
        self.directory = os.path.join(
            scratch, ("curve" if keys else "clear") + ("-other" if other else ""))
        os.mkdir(self.directory)
        programs = {"adtopkd": os.path.join(self.build, "daemon/adtopkd"),
                    "adtopkctl": os.path.join(self.build, "client/adtopkctl/adtopkctl")}
        self.daemons = [Daemon(programs, self.directory, node.number) for node in box.nodes]
        self.keys = [self.make_key(daemon) for daemon in self.daemons] if keys else []
        for daemon, node in zip(self.daemons, box.nodes):
            self.configure(daemon, node)
            daemon.prepare = node.enter
            daemon.start(START_TIMEOUT)
        self.wait_connected()

    def make_key(self, daemon):
        path = os.path.join(self.directory, f"node{daemon.node}.key")
        done = subprocess.run([daemon.programs["adtopkctl"], "keygen", "--out", path],
                              stdout=subprocess.PIPE, text=True, check=True)
        return path, done.stdout.strip()

    def configure(self, daemon, node):
        document = {"node": node.number, "socket": daemon.socket, "control_socket": daemon.control,
                    "stop_timeout_ms": 500}  # then there is nothing left that would matter
        peers = [{"node": other.number, "endpoint": f"tcp://{other.address}:{self.port}"}
                 for other in self.box.nodes if other is not node]
        if peers:
            document.update(listen=f"tcp://{node.address}:{self.port}", peers=peers)
        if self.keys:
            document["key_file"] = self.keys[node.number][0]
            for peer in peers:
                peer["key"] = self.keys[peer["node"]][1]
        elif peers:
            document["insecure"] = True
        with open(daemon.config, "w", encoding="utf-8") as out:
            json.dump(document, out)

    def ask(self, daemon, *command):
        code, out, error = daemon.ask("--json", *command)
        if code not in (0, 5):
            raise TeamError(f"node {daemon.node}, {' '.join(command)}: {error}")
        return json.loads(out)

    def wait_connected(self):
        deadline = time.monotonic() + START_TIMEOUT
        for daemon in self.daemons:
            while any(peer["state"] != "up" for peer in self.ask(daemon, "status")["peers"]):
                if time.monotonic() > deadline:
                    raise TeamError(f"node {daemon.node} does not see its peers\n{daemon.log_tail()}")
                time.sleep(0.05)

    def stats(self, job):
        return [next(one for one in self.ask(daemon, "stats")["jobs"] if one["name"] == job)
                for daemon in self.daemons]

    def pids(self):
        return [daemon.process.pid for daemon in self.daemons]

    def log_tails(self):
        return "\n".join(daemon.log_tail(5) for daemon in self.daemons)

    def stop(self):
        for daemon in self.daemons:
            daemon.process.terminate()
        for daemon in self.daemons:
            try:
                daemon.stop(timeout=5)
            except ClusterError as error:
                print(error, file=sys.stderr)
            daemon.close_ready()


class Job(Team):
    """Ranks of adtopk with a policy of their own, on daemons that other jobs use as well."""

    def __init__(self, name, policy, daemons, options, place):
        box = daemons.box
        super().__init__(name, len(box.nodes) * options.ranks, place.scratch)
        self.daemons = daemons
        for rank in range(self.size):
            node = box.nodes[rank // options.ranks]
            self.start([os.path.join(daemons.build, "tests/bench/cluster-adtopk"), place.conductor,
                        f"unix:{daemons.daemons[node.number].socket}", name, rank, self.size,
                        options.model, options.size // 4, json.dumps(policy), *options.arrivals],
                       node)
        self.pids = daemons.pids()

    def said(self, lines=20):
        return super().said(lines) + "\n" + self.daemons.log_tails()

    def counted(self):
        """What the daemons have counted of this job until now, by node."""
        return self.daemons.stats(self.name)


# ---------------------------------------------------------------- peers and the floor

def mpi_missing(options):
    if shutil.which("mpirun") is None:
        return "no mpirun: deploy/setup bench"
    if not os.path.exists(os.path.join(options.build, "tests/bench/cluster-mpi")):
        return "the build has no cluster-mpi: deploy/setup bench, then configure it anew"
    return None


def gloo_missing(_options):
    return torch_missing(TORCH_PYTHON)


def torch_missing(python):
    """Why this Python has no PyTorch with gloo; None if it has."""
    try:
        done = subprocess.run([python, os.path.join(HERE, "gloo_rank.py"), "--check"],
                              stderr=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        return f"{python}: {error.strerror}"
    if done.returncode == 0:
        return None
    last = done.stderr.strip().splitlines()[-1:] or ["it failed"]
    return f"{last[0]}: deploy/setup bench"


class Mpi(Team):
    """mpirun on node 0 starts its daemons on the others through an agent that takes the place of ssh.
    More ranks than cores must yield to each other, so they are told to."""

    def __init__(self, options, place, box):
        super().__init__("mpi", len(box.nodes) * options.ranks, place.scratch)
        agent = os.path.join(place.scratch, "agent")
        with open(agent, "w", encoding="utf-8") as out:
            out.write("#!/bin/sh\ncase $1 in\n")
            for node in box.nodes:
                out.write(f"{node.address}) pid={node.holder} ;;\n")
            out.write('esac\nshift\nexec nsenter --net=/proc/$pid/ns/net --uts=/proc/$pid/ns/uts '
                      'sh -c "$*"\n')
        os.chmod(agent, 0o755)
        hosts = ",".join(f"{node.address}:{options.ranks}" for node in box.nodes)
        parameters = {"plm_rsh_agent": agent, "btl": "self,vader,tcp", "btl_tcp_if_include": "e0",
                      "oob_tcp_if_include": "e0", "mpi_yield_when_idle": 1,
                      "orte_tmpdir_base": place.scratch, "plm_rsh_no_tree_spawn": 1}
        self.start(["mpirun", "--allow-run-as-root", "--bind-to", "none", "--host", hosts,
                    *(word for name, value in parameters.items() for word in ("--mca", name, value)),
                    "-np", self.size, os.path.join(options.build, "tests/bench/cluster-mpi"),
                    place.conductor, options.elements, options.list_bytes], box.nodes[0],
                   {"TMPDIR": place.scratch, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})


class Gloo(Team):
    def __init__(self, options, place, box):
        super().__init__("gloo", len(box.nodes) * options.ranks, place.scratch)
        store = os.path.join(place.scratch, "gloo.store")
        for rank in range(self.size):
            self.start([TORCH_PYTHON, os.path.join(HERE, "gloo_rank.py"), place.conductor, store, rank,
                        self.size, options.elements, options.list_bytes],
                       box.nodes[rank // options.ranks], {"GLOO_SOCKET_IFNAME": "e0"})


class Floor(Team):
    """r += g on every node at the same time."""

    def __init__(self, options, place, box):
        super().__init__("floor", len(box.nodes), place.scratch)
        for node in box.nodes:
            self.start([os.path.join(options.build, "tests/bench/cluster-floor"), place.conductor,
                        node.number, options.ranks, options.elements], node)
