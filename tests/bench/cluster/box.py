"""A network in a box: N nodes behind one switch, each a network namespace of its own, with links of a
limited rate in both directions.

enclose() first moves the program into namespaces in which it is alone: processes, network, mounts and
host name. What happens there ends with it, however it ends: the kernel kills the processes and takes
the interfaces and files away. It needs root, or a kernel that lets users make namespaces.

Failures: Impossible where the kernel or a missing program does not allow it; the sentence says what.
"""
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

NEWNS, NEWUTS, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x10000000, 0x20000000, 0x40000000
MS_REC, MS_PRIVATE, MNT_DETACH = 16384, 1 << 18, 2
PR_SET_PDEATHSIG = 1
CONGESTION_CONTROL = "cubic"  # Linux's default, whatever this machine uses
QUEUE_MS = 20  # what a link may hold back before it drops packets
MTU = 1500
LIBC = ctypes.CDLL(None, use_errno=True)


class Impossible(Exception):
    """There can be no such network on this machine; the text says why."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM."""


# ---------------------------------------------------------------- alone with our processes

def check(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def unshare(flags, what):
    check(LIBC.unshare(flags), what)


def mount(kind, place, flags=0):
    check(LIBC.mount(kind and kind.encode(), place.encode(), kind and kind.encode(), flags, None),
          f"mount {kind or 'private'} at {place}")


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def new_namespaces():
    """As root, or else as the root of a user namespace."""
    flags = NEWNET | NEWPID | NEWNS | NEWUTS
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(flags, "unshare")
        return
    except PermissionError:
        pass
    unshare(flags | NEWUSER, "making namespaces without being root")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def wait_for(child):
    """Waits for the enclosed process and passes signals on; returns its exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def interrupt(_number, _frame):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # once is enough; now things are taken down
    raise Interrupted


def settle_in(scratch):
    """In the new process: files and processes of its own. Not of the terminal's group: what it
    starts shall not get Ctrl-C, which the outer process passes on."""
    die_with_parent()
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    mount(None, "/", MS_REC | MS_PRIVATE)
    mount("proc", "/proc")
    mount("tmpfs", scratch)
    mount("tmpfs", "/dev/shm")


def enclose(main):
    """Runs main(scratch) in a process alone in new namespaces and exits with what it returns; scratch
    is a folder in memory. main() is where Interrupted comes."""
    for program in ("ip", "tc", "nsenter"):
        if shutil.which(program) is None:
            raise Impossible(f"there is no program {program}: deploy/setup bench")
    scratch = tempfile.mkdtemp(prefix="adtopk-box-", dir="/tmp")  # short: sockets' paths are limited
    try:
        new_namespaces()
        child = os.fork()
    except OSError as error:
        os.rmdir(scratch)
        raise Impossible(error.strerror) from None
    if child == 0:
        try:
            settle_in(scratch)
        except OSError as error:
            print(f"cannot make namespaces here: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(77)
        sys.exit(main(scratch))
    code = wait_for(child)
    LIBC.umount2(scratch.encode(), MNT_DETACH)
    os.rmdir(scratch)
    sys.exit(code)


# ---------------------------------------------------------------- nodes and links

class Node:
    """A host: a network namespace with a name, kept by a process that sleeps."""

    def __init__(self, number):
        self.number = number
        self.address = f"10.0.0.{number + 1}"
        ready, told = os.pipe()
        self.holder = os.fork()
        if self.holder == 0:
            self.hold(told)
        os.close(told)
        with os.fdopen(ready) as pipe:
            failure = pipe.read()
        if failure != "ready":
            raise Impossible(failure)
        self.namespaces = [(os.open(f"/proc/{self.holder}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind)
                           for name, kind in (("net", NEWNET), ("uts", NEWUTS))]

    def hold(self, told):
        """The process that sleeps; does not return."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent()
        try:
            unshare(NEWNET | NEWUTS, "a node's namespace")
            socket.sethostname(f"node{self.number}")
            os.write(told, b"ready")
        except OSError as error:
            os.write(told, error.strerror.encode())
            os._exit(1)
        os.close(told)
        while True:
            signal.pause()

    def enter(self):
        """For preexec_fn: moves the calling process onto this node."""
        die_with_parent()
        for descriptor, kind in self.namespaces:
            check(LIBC.setns(descriptor, kind), "setns")

    def counters(self):
        """Bytes that the node's interface has received and sent."""
        with open(f"/proc/{self.holder}/net/dev", encoding="ascii") as file:
            fields = next(line for line in file if line.lstrip().startswith("e0:")).split()
        return int(fields[1]), int(fields[9])

    def close(self):
        for descriptor, _ in self.namespaces:
            os.close(descriptor)
        os.kill(self.holder, signal.SIGKILL)
        os.waitpid(self.holder, 0)


def configure(command, node=None):
    """Runs an ip or tc command here or on a node."""
    done = subprocess.run(command.split(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, check=False,
                          preexec_fn=node.enter if node else None)
    if done.returncode != 0:
        raise Impossible(f"{command}: {done.stderr.strip()}")


def leave_to_switch():
    """Packets on the bridge pass no firewall. The kernel would take each through one where a program, a
    container engine for example, has loaded that module. A switch does not."""
    for rules in ("arptables", "iptables", "ip6tables"):
        with contextlib.suppress(FileNotFoundError):
            with open(f"/proc/sys/net/bridge/bridge-nf-call-{rules}", "w", encoding="ascii") as file:
                file.write("0")


class Box:
    """nodes hosts at 10.0.0.1 and up, on one switch; rate in bits a second, 0: unlimited; burst in
    bytes: what a link may send at once after a pause."""

    def __init__(self, nodes, rate, burst):
        self.nodes = []
        self.rate = 0
        try:
            leave_to_switch()
            configure("ip link add name switch type bridge")
            configure("ip link set switch up")
            for number in range(nodes):
                self.nodes.append(Node(number))
                self.plug(self.nodes[-1])
            if rate:
                self.limit(rate, burst)
        except BaseException:
            self.close()
            raise

    def plug(self, node):
        port = f"port{node.number}"
        configure(f"ip link add {port} mtu {MTU} type veth peer name e0 mtu {MTU} netns {node.holder}")
        configure(f"ip link set {port} master switch up")
        configure(f"ip addr add {node.address}/24 dev e0", node)
        configure("ip link set lo up", node)
        configure("ip link set e0 up", node)
        # A namespace may only choose among what the machine allows; a route may name any that the kernel has.
        configure(f"ip route replace 10.0.0.0/24 dev e0 proto kernel scope link src {node.address} "
                  f"congctl {CONGESTION_CONTROL}", node)

    def limit(self, rate, burst):
        """Gives all links this rate from now on. What is larger than the burst would be cut into
        packets one by one, so the kernel is to make no segments larger than half of it."""
        segment = max(2 * MTU, min(65536, burst // 2))
        self.rate = rate
        for node in self.nodes:
            for device, where in ((f"port{node.number}", None), ("e0", node)):
                configure(f"ip link set {device} gso_max_size {segment}", where)
                configure(f"tc qdisc replace dev {device} root tbf rate {rate}bit burst {burst}b "
                          f"latency {QUEUE_MS}ms", where)

    def counters(self):
        return [node.counters() for node in self.nodes]

    def close(self):
        # The kernel would take a dead node's link away some time later: the next box needs the name.
        for link in [f"port{node.number}" for node in self.nodes] + ["switch"]:
            subprocess.run(["ip", "link", "delete", link], check=False, stderr=subprocess.DEVNULL)
        for node in self.nodes:
            node.close()
        self.nodes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
