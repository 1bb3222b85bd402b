#!/usr/bin/env python3
"""Starts adtopkd daemons on loopback, waits until they serve, and stops them whatever happens.

As a module, for the integration tests:

    with Cluster(build, nodes=2) as cluster:
        subprocess.run([trainer], env={**os.environ, "ADTOPK_ADDRESS": cluster.address(0)})
        print(cluster.stats(0)["jobs"])

As a program it starts a cluster, runs a command (or waits for Ctrl-C) and stops the cluster:

    cluster.py --build BUILD [--nodes N] [--directory DIR] [-- COMMAND...]

The command finds node n's daemon in $ADTOPK_TEST_ADDRESS_n and $ADTOPK_TEST_CONTROL_n.
"""
import argparse
import atexit
import collections
import contextlib
import ctypes
import functools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from relay import Relay

PR_SET_PDEATHSIG = 1
START_ATTEMPTS = 3  # a port that was free may be taken before the daemon binds it
PORTS, BLOCK = range(5000, 10000), 50  # none that the kernel or deploy/quickstart draws from
PATIENCE = 60  # seconds: what has not happened then does not happen any more, on whatever machine


class ClusterError(Exception):
    """A daemon did not start, stop or answer; the text has the end of its log."""


def die_with_parent():
    """Runs in the child: even a killed test leaves no daemon behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@functools.cache
def own_ports():
    """Ports that no other test takes, and the socket whose name tells so while this process lives. So a
    daemon that starts again finds its port free (outage_node.c does the same)."""
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    atexit.register(mark.close)
    for block in random.SystemRandom().sample(range(0, len(PORTS), BLOCK), len(PORTS) // BLOCK):
        with contextlib.suppress(OSError):  # another process has them
            mark.bind(f"\0adtopk-test-ports-{PORTS[block]}")
            return collections.deque(PORTS[block:block + BLOCK]), mark
    raise ClusterError("other processes have all ports")


def free_ports(count):
    """Returns ports of loopback on which nobody listens, not those of the last call."""
    ports, own = [], own_ports()[0]
    for _ in range(BLOCK):
        port = own.popleft()
        own.append(port)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended
            one.bind(("127.0.0.1", port))
            ports.append(port)
            if len(ports) == count:
                return ports
    raise ClusterError(f"there are no {count} free ports")


def make_key(build, path):
    """Makes a key file; returns its path and the public key."""
    done = subprocess.run([os.path.join(build, "tests", "integration", "test-stranger"), "keygen",
                           path], stdout=subprocess.PIPE, text=True, check=True)
    return path, done.stdout.strip()


class Daemon:
    """One adtopkd: its files lie in the cluster's directory under its node's number."""

    def __init__(self, programs, directory, node):
        self.programs = programs
        self.node = node
        self.config = os.path.join(directory, f"node{node}.json")
        self.socket = os.path.join(directory, f"node{node}.sock")
        self.control = os.path.join(directory, f"node{node}.control")
        self.log_path = os.path.join(directory, f"node{node}.log")
        self.ready_path = os.path.join(directory, f"node{node}.ready")
        self.variables = {}  # of its environment, beside those of every process
        self.prepare = die_with_parent  # what its process does before it begins
        self.process = None
        self.remote_port = None  # for trainers without a daemon, if the settings say whose they are
        self.ready = None  # the socket to which the daemon says READY=1 and STOPPING=1

    def configure(self, ports, settings, keys=(), relays=None):
        """relays: by (from, to), the relay between two nodes."""
        peers = [{"node": other, "endpoint": f"tcp://127.0.0.1:{port}"}
                 for other, port in enumerate(ports) if other != self.node]
        for peer in peers:
            if relays:
                peer["endpoint"] = f"tcp://127.0.0.1:{relays[self.node, peer['node']].port}"
        document = {"node": self.node, "socket": self.socket, "control_socket": self.control,
                    "log_level": "info", "stop_timeout_ms": 2000}
        if peers:
            document.update(peers=peers, listen=f"tcp://127.0.0.1:{ports[self.node]}")
        if keys:
            document["key_file"] = keys[self.node][0]
            for peer in peers:
                peer["key"] = keys[peer["node"]][1]
        if settings.get("data_protection") == "none":
            document["bulk_listen"] = f"tcp://127.0.0.1:{free_ports(1)[0]}"
        if "trainers_owner" in settings or "trainers" in settings:
            self.remote_port = free_ports(1)[0]
            document["trainers_listen"] = f"tcp://127.0.0.1:{self.remote_port}"
            document["insecure"] = "trainers_owner" in settings
        document.update(settings)
        with open(self.config, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1)

    def start(self, timeout=PATIENCE):
        """Starts the process and waits for its READY=1."""
        self.close_ready()
        self.ready = self.listen()
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("ADTOPK_")}
        environment.update(self.variables, NOTIFY_SOCKET=self.ready_path)
        with open(self.log_path, "ab") as log:
            self.process = self.launch(
                [self.programs["adtopkd"], "--config", self.config], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env=environment, preexec_fn=self.prepare)
        self.wait_told(b"READY=1", timeout)

    def listen(self):
        """Where the daemon tells its service manager how far it is."""
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(self.ready_path)
        return manager

    @staticmethod
    def launch(command, **options):
        return subprocess.Popen(command, **options)

    def close_ready(self):
        if self.ready is not None:
            self.ready.close()
            self.ready = None
        if os.path.exists(self.ready_path):
            os.unlink(self.ready_path)

    def wait_told(self, state, timeout):
        """Waits until the daemon has notified its service manager, us, of this state."""
        deadline = time.monotonic() + timeout
        self.ready.settimeout(0.05)
        while True:
            try:
                if self.ready.recv(100) == state:
                    return
            except socket.timeout:
                pass
            if self.process.poll() is not None:
                raise ClusterError(f"node {self.node} ended:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ClusterError(f"node {self.node} did not say {state}:\n{self.log_tail()}")

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self, timeout=PATIENCE):
        """Ends the process in order; returns its exit status."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ClusterError(f"node {self.node} did not stop:\n{self.log_tail()}") from None

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def ask(self, *command, timeout=PATIENCE):
        """Runs adtopkctl; returns (exit status, standard output, standard error)."""
        done = subprocess.run(
            [self.programs["adtopkctl"], "--socket", self.control, *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False)
        return done.returncode, done.stdout, done.stderr

    def log(self):
        try:
            with open(self.log_path, encoding="utf-8", errors="replace") as log:
                return log.read()
        except FileNotFoundError:
            return ""

    def log_tail(self, lines=30):
        return "\n".join(self.log().splitlines()[-lines:])


class Cluster:
    """`nodes` daemons that know each other.

    build: the build folder. directory: where sockets, configurations and logs go and stay; by
    default a temporary one that goes with the cluster. settings: for every configuration.
    keys: every node gets a key file; keys[n] is node n's path and public key. relays: nodes
    reach each other through relays[from, to].
    """

    DAEMON = Daemon

    def __init__(self, build, nodes=2, directory=None, settings=None, timeout=PATIENCE, keys=False,
                 relays=False):
        self.timeout = timeout
        self.temporary = directory is None
        # A socket's path has at most 107 bytes, so not below a deep $TMPDIR of somebody else's.
        self.directory = directory or tempfile.mkdtemp(prefix="adtopk-", dir="/tmp")
        os.makedirs(self.directory, exist_ok=True)
        self.settings = settings or {}
        self.keys = [make_key(build, os.path.join(self.directory, f"node{node}.key"))
                     for node in range(nodes)] if keys else []
        self.relays = {(one, other): Relay(seed=1 + nodes * one + other) for one in range(nodes)
                       for other in range(nodes) if relays and one != other}
        programs = {"adtopkd": os.path.join(build, "daemon", "adtopkd"),
                    "adtopkctl": os.path.join(build, "client", "adtopkctl", "adtopkctl")}
        self.daemons = [self.DAEMON(programs, self.directory, node) for node in range(nodes)]

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, value, trace):
        if kind is not None:
            for daemon in self.daemons:
                print(f"--- log of node {daemon.node}\n{daemon.log_tail()}", file=sys.stderr)
        self.close()

    def start(self, connected=True):
        """Starts all daemons, and waits until each sees all others."""
        atexit.register(self.close)
        for attempt in range(1, START_ATTEMPTS + 1):
            ports = free_ports(len(self.daemons))
            for (_, other), relay in self.relays.items():
                relay.target = ports[other]
            try:
                for daemon in self.daemons:
                    daemon.configure(ports, self.settings, self.keys, self.relays)
                    daemon.start(self.timeout)
                break
            except ClusterError as error:
                self.kill()
                if attempt == START_ATTEMPTS or "Address already in use" not in str(error):
                    self.close()
                    raise
        if connected:
            self.wait_connected()
        return self

    def wait_connected(self):
        deadline = time.monotonic() + self.timeout
        for daemon in self.daemons:
            while any(peer["state"] != "up" for peer in self.status(daemon.node)["peers"]):
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"node {daemon.node} does not see its peers:\n{daemon.log_tail()}")
                time.sleep(0.05)

    def restart(self, node):
        """Starts a node that was stopped or killed, under its old configuration."""
        self.daemons[node].start(self.timeout)

    def address(self, node):
        """What a trainer on that node gives as $ADTOPK_ADDRESS; node "r0": one on a machine without
        a daemon, which uses node 0's."""
        if isinstance(node, str):
            return f"tcp://127.0.0.1:{self.daemons[int(node[1:])].remote_port}"
        return "unix:" + self.daemons[node].socket

    def ask(self, node, *command):
        code, out, error = self.daemons[node].ask("--json", *command)
        if code not in (0, 5):
            raise ClusterError(f"node {node}, {' '.join(command)}: exit status {code}: {error}")
        return json.loads(out)

    def status(self, node):
        return self.ask(node, "status")

    def stats(self, node):
        return self.ask(node, "stats")

    def stop(self):
        """Stops all daemons in order; each must end with exit status 0."""
        codes = [daemon.stop() for daemon in self.daemons]
        if any(codes):
            raise ClusterError(f"exit statuses {codes}")

    def kill(self):
        for daemon in self.daemons:
            daemon.kill()

    def close(self):
        """Leaves nothing behind, in whatever state the cluster is."""
        atexit.unregister(self.close)
        for daemon in self.daemons:
            try:
                daemon.stop(timeout=5)
            except ClusterError as error:
                print(error, file=sys.stderr)
        self.kill()
        for daemon in self.daemons:
            daemon.close_ready()
        for relay in self.relays.values():
            relay.close()
        if self.temporary:
            shutil.rmtree(self.directory, ignore_errors=True)


def share_cluster(test_class, build, nodes=2):
    """Starts daemons for all tests of a class. When these are over they must end with exit status 0, which says
    that sanitizers have found nothing."""
    test_class.cluster = Cluster(build, nodes=nodes, settings={"trainers_owner": os.geteuid()}).start()
    test_class.addClassCleanup(test_class.cluster.close)
    test_class.addClassCleanup(test_class.cluster.stop)


def run_command(cluster, command):
    """Runs the command beside the cluster, or waits for Ctrl-C; returns the exit status."""
    environment = dict(os.environ)
    for daemon in cluster.daemons:
        environment[f"ADTOPK_TEST_ADDRESS_{daemon.node}"] = cluster.address(daemon.node)
        environment[f"ADTOPK_TEST_CONTROL_{daemon.node}"] = daemon.control
        if not command:
            print(f"node {daemon.node}: ADTOPK_ADDRESS={cluster.address(daemon.node)}  "
                  f"adtopkctl --socket {daemon.control} status")
    try:
        if command:
            return subprocess.run(command, env=environment, check=False).returncode
        print("Ctrl-C stops the cluster.", flush=True)
        while True:
            signal.pause()
    except KeyboardInterrupt:
        return 0


def main():
    parser = argparse.ArgumentParser(description="Runs a cluster of adtopkd on loopback.")
    parser.add_argument("--build", required=True, help="the build folder")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--directory", help="for sockets and logs, which then stay")
    parser.add_argument("command", nargs="*", help="runs beside the cluster")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with Cluster(arguments.build, arguments.nodes, arguments.directory) as cluster:
        code = run_command(cluster, arguments.command)
    sys.exit(code)


if __name__ == "__main__":
    main()
