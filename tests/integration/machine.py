"""A machine of its own with systemd as process 1: systemd-nspawn on a copy of this machine's files,
or of those of a bare Debian 12.

The copy is an overlay in memory, so nothing that happens in it is left on this machine. The machine
has its own network with nothing but loopback. Making one needs root, systemd-nspawn and mounts.
"""
import contextlib
import ctypes
import fcntl
import functools
import os
import re
import shutil
import subprocess
import tempfile
import time

from cluster import die_with_parent

CLONE_NEWNS = 0x20000
BOOT_SECONDS = 180  # on a busy machine; where systemd cannot start it ends at once
MIRROR = "http://deb.debian.org/debian"


class Impossible(Exception):
    """Such a machine cannot be made here; the text says why."""


def quietly(*command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise Impossible(f"{command[0]}: {said[-300:] or done.returncode}")


def printed_by(*command):
    """What a command prints; nothing where it does not exist or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def bare_debian(folder):
    """The files of a bare Debian 12 with systemd and sudo, made once in this folder."""
    with open(folder + ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run beside each other
        if not os.path.isdir(folder):
            make_bare_debian(folder)
    return folder


def make_bare_debian(folder):
    if shutil.which("debootstrap") is None:
        raise Impossible("no debootstrap here (package debootstrap)")
    mirrors = printed_by("apt-get", "indextargets", "--format", "$(REPO_URI)",
                         "Codename: bookworm", "Component: main").split()
    part = folder + ".part"
    shutil.rmtree(part, ignore_errors=True)
    quietly("debootstrap", "--variant=minbase", "--include=systemd-sysv,sudo", "bookworm", part,
            mirrors[0] if mirrors else MIRROR,
            DPKG_FORCE="unsafe-io")  # no waiting for the disk: a root that is cut short is made anew
    with open(os.path.join(part, "etc/dpkg/dpkg.cfg.d/unsafe-io"), "w", encoding="utf-8") as out:
        out.write("force-unsafe-io\n")  # as Debian's own images have it
    with open(os.path.join(part, "etc/apt/apt.conf.d/proxy"), "w", encoding="utf-8") as proxy:
        proxy.write(printed_by("apt-config", "dump", "Acquire::http", "Acquire::https"))
    os.rename(part, folder)


def youngest_child(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return int(children.read().split()[-1])


@functools.cache
def own_mounts():
    """From here on nobody else sees what this process mounts."""
    if os.getuid() != 0:
        raise Impossible("only root can make a machine")
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) != 0:
        raise Impossible("no namespaces of mounts here")
    quietly("mount", "--make-rprivate", "/")


def join(processes, addresses):
    """Joins the networks of two processes by a cable, and gives each its address."""
    first, second = processes
    quietly("ip", "link", "add", "cable", "netns", str(first), "type", "veth", "peer", "name", "cable",
            "netns", str(second))
    for process, address in zip(processes, addresses):
        for words in (("link", "set", "lo", "up"), ("address", "add", f"{address}/24", "dev", "cable"),
                      ("link", "set", "cable", "up")):
            quietly("nsenter", f"--net=/proc/{process}/ns/net", "--", "ip", *words)


class Machine:
    """with Machine() as machine: machine.run("systemctl", "start", "something")

    `files` is the folder with the files that it begins with, `shared` one of this machine that the
    other one sees at the same path, read-only.
    """

    def __init__(self, shared=None, files="/", name="adtopk-test"):
        self.shared = shared
        self.files = files
        self.name = name
        self.directory = None
        self.root = None
        self.process = None
        self.leader = None  # process 1 of the machine, as this one counts

    def prepare(self):
        """Makes the root; files can then be put into it."""
        if shutil.which("systemd-nspawn") is None:
            raise Impossible("no systemd-nspawn here (package systemd-container)")
        own_mounts()
        self.directory = tempfile.mkdtemp(prefix="adtopk-", dir="/tmp")
        quietly("mount", "-t", "tmpfs", "tmpfs", self.directory)
        upper, work, self.root = (os.path.join(self.directory, name)
                                  for name in ("upper", "work", "root"))
        for folder in (upper, work, self.root):
            os.mkdir(folder)
        quietly("mount", "-t", "overlay", "overlay",
                "-o", f"lowerdir={self.files},upperdir={upper},workdir={work}", self.root)
        with open(self.path("etc/machine-id"), "w", encoding="ascii"):
            pass  # a new one is made

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text, mode=0o644):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(self.path(name), mode)

    def boot(self):
        """Starts systemd, and waits until it has reached its basic target."""
        environment = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        with open(os.path.join(self.directory, "console"), "wb") as console:
            self.process = subprocess.Popen(
                # Whatever is left of the machine dies with its namespace of processes.
                ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "systemd-nspawn",
                 "--quiet", "--register=no", "--keep-unit", "--private-network", "--console=pipe",
                 f"--machine={self.name}", *([f"--bind-ro={self.shared}"] if self.shared else []),
                 f"--directory={self.root}", "--boot", "systemd.unit=basic.target"],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=environment,
                preexec_fn=die_with_parent)
        deadline = time.monotonic() + BOOT_SECONDS
        while not self.is_up():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Impossible(f"systemd does not start here: {self.console()}")
            time.sleep(0.1)

    def console(self):
        with open(os.path.join(self.directory, "console"), encoding="utf-8",
                  errors="replace") as text:
            return text.read().strip()[-500:]

    def is_up(self):
        """True once systemd answers that it has started everything."""
        try:  # before process 1 there is another child, for a moment
            self.leader = youngest_child(youngest_child(self.process.pid))
        except (OSError, IndexError):
            return False
        done = self.run("systemctl", "is-system-running", check=False)
        return done.stdout.strip() in ("running", "degraded")

    def enter(self, uid=0, online=False):
        """What to put before a command, so that it runs in the machine as that user; online: on the
        network of this machine."""
        return ["nsenter", f"--target={self.leader}", "--mount", "--uts", "--ipc",
                *([] if online else ["--net"]), "--pid", "--cgroup", f"--setuid={uid}",
                f"--setgid={uid}", "--"]

    def run(self, *command, uid=0, check=True, timeout=300):
        """Runs a command in the machine; an error tells what it printed."""
        done = subprocess.run([*self.enter(uid), *command], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=timeout, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: status {done.returncode}\n"
                                 f"{done.stdout}{done.stderr}")
        return done

    def number_here(self, pid):
        """How this machine counts the process that the other one counts as `pid`."""
        namespace = os.readlink(f"/proc/{self.leader}/ns/pid")
        for number in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{number}/status", encoding="utf-8") as status:
                if re.search(rf"^NSpid:.*\t{pid}$", status.read(), re.MULTILINE) and \
                        os.readlink(f"/proc/{number}/ns/pid") == namespace:
                    return int(number)
        raise AssertionError(f"the machine has no process {pid}")

    def add_addresses(self, *addresses):
        """Gives the machine these addresses, on loopback."""
        for address in addresses:
            quietly("nsenter", f"--target={self.leader}", "--net", "ip", "address", "add",
                    f"{address}/24", "dev", "lo")

    def drop_in(self, unit, name, *lines):
        self.write(f"etc/systemd/system/{unit}.service.d/{name}.conf",
                   "\n".join(("[Service]", *lines, "")))

    def second_unit(self):
        """Makes adtopkd1 of the installed unit: the daemon of node 1, with folders of its own.

        Returns the prefix of the installation."""
        for folder in ("usr/local/lib", "usr/lib", "lib"):
            if os.path.exists(self.path(f"{folder}/systemd/system/adtopkd.service")):
                break
        with open(self.path(f"{folder}/systemd/system/adtopkd.service"), encoding="utf-8") as unit:
            text = unit.read()
        self.write("etc/systemd/system/adtopkd1.service", text)
        self.drop_in("adtopkd1", "node", "RuntimeDirectory=",
                     "RuntimeDirectory=adtopk1 adtopk1/trainers adtopk1/control",
                     "Environment=ADTOPK_CONFIG=/etc/adtopk/node1.json")
        return re.search(r"^ExecStart=(\S+)/sbin/adtopkd$", text, re.MULTILINE).group(1)

    def filters_addresses(self):
        """True where the kernel keeps a unit from addresses that it may not reach."""
        self.write("etc/systemd/system/filtered.service", "[Service]\nType=oneshot\n"
                   "IPAddressDeny=any\nExecStart=bash -c 'echo >/dev/udp/127.0.0.1/9'\n")
        return self.run("systemctl", "start", "filtered", check=False).returncode != 0

    def answer(self, path, address="127.0.0.1"):
        """What adtopk-exporter in the machine says; "" if it does not. The shell opens the connection,
        because a small Debian has no program that does."""
        script = (f"exec 3<>/dev/tcp/{address}/9477 && "
                  f"printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3")
        return self.run("bash", "-c", script, check=False).stdout.partition("\n\n")[2]

    def journal(self, *options):
        return self.run("journalctl", "--no-pager", "--output=cat", *options, check=False).stdout

    def close(self):
        """Ends the machine at once: systemd-nspawn is killed, and with it its namespace."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.directory is not None:
            for mounted in (self.root, self.directory):
                subprocess.run(["umount", "--lazy", mounted], capture_output=True, check=False)
            os.rmdir(self.directory)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
