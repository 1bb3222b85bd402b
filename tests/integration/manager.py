"""A service manager in the place of systemd: it keeps descriptors for a daemon that it starts again.

Daemons hand it files (FDSTORE=1 with FDNAME=), which it passes to the next process of the same node
($LISTEN_FDS, $LISTEN_FDNAMES).
"""
import os
import queue
import socket
import subprocess
import sys
import threading

from cluster import Cluster, Daemon

# Moves the descriptors to the places that the protocol names, and becomes the daemon.
PASS = """import fcntl, os, sys
count, *rest = sys.argv[1:]
sources = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 1000) for fd in rest[:int(count)]]
for place, fd in enumerate(sources, 3):
    os.dup2(fd, place)
    os.close(fd)
os.environ.update(LISTEN_PID=str(os.getpid()))
command = rest[int(count):]
os.execv(command[0], command)
"""


class Manager:
    """Keeps at most `limit` descriptors, in `kept` by name. Other states wait for recv()."""

    DRAIN = b"DRAIN=1"

    def __init__(self, path, limit=4096):
        self.limit = limit
        self.kept = {}
        self.states = queue.Queue()
        self.timeout = None
        self.path = path
        self.drained = threading.Event()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                state, descriptors, _, _ = socket.recv_fds(self.socket, 4096, 1)
            except OSError:
                return
            if not state:  # close() says so
                return
            if state == self.DRAIN:
                self.drained.set()
                continue
            self.take(state, descriptors)

    def drain(self):
        """Waits until everything that was sent before has been taken."""
        self.drained.clear()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(self.DRAIN, self.path)
        self.drained.wait()

    def take(self, state, descriptors):
        fields = dict(line.split("=", 1) for line in state.decode().splitlines())
        name = fields.get("FDNAME")
        if "FDSTORE" in fields and len(self.kept) < self.limit and name not in self.kept:
            self.kept[name] = descriptors.pop()
        elif "FDSTOREREMOVE" in fields and name in self.kept:
            os.close(self.kept.pop(name))
        elif name is None:
            self.states.put(state)
        for fd in descriptors:
            os.close(fd)

    def settimeout(self, seconds):
        self.timeout = seconds

    def recv(self, _size):
        try:
            return self.states.get(timeout=self.timeout)
        except queue.Empty:
            raise socket.timeout from None

    def start(self, command, env, **options):
        self.drain()
        kept = dict(self.kept)
        env = {**env, "FDSTORE": str(self.limit), "LISTEN_FDS": str(len(kept)),
               "LISTEN_FDNAMES": ":".join(kept)}
        sources = [str(fd) for fd in kept.values()]
        return subprocess.Popen([sys.executable, "-c", PASS, str(len(kept)), *sources, *command],
                                env=env, pass_fds=kept.values(), **options)

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for fd in self.kept.values():
            os.close(fd)


class KeptDaemon(Daemon):
    """A daemon whose manager stays when it ends."""

    manager = None

    def listen(self):
        if self.manager is None:
            self.manager = Manager(self.ready_path)
        return self.manager

    def launch(self, command, **options):
        return self.manager.start(command, **options)

    def kill(self):
        super().kill()
        if self.manager is not None:
            self.manager.drain()

    def close_ready(self):
        """Not before the end: see KeptCluster.close()."""


class KeptCluster(Cluster):
    """Daemons whose stores a service manager keeps."""

    DAEMON = KeptDaemon

    def close(self):
        super().close()
        for daemon in self.daemons:
            if daemon.manager is not None:
                daemon.manager.close()
                daemon.manager = None
