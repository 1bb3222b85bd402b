"""The packages of deploy/package, and bare Debians that install them."""
import glob
import os
import shutil
import subprocess
import tempfile

from build import BUILD
from machine import Impossible, Machine, bare_debian

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
FOLDER = "var/packages"  # in a machine
LATER = "9.0.0"          # the version after this one


def build(sources, out, *options):
    """Runs these sources' deploy/package."""
    made = subprocess.run([os.path.join(sources, "deploy/package"), *options, "--out", out],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if made.returncode != 0:
        raise AssertionError(made.stdout)


def raise_version(sources):
    """What a maintainer does before a release."""
    with open(f"{sources}/deploy/debian/changelog", "r+", encoding="utf-8") as changelog:
        entries = changelog.read()
        version = entries[entries.index("(") + 1:entries.index(")")]
        changelog.seek(0)
        changelog.write(entries.replace(version, LATER, 1) + "\n" + entries)
    with open(f"{sources}/meson.build", "r+", encoding="utf-8") as project:
        text = project.read()
        project.seek(0)
        project.write(text.replace(f"version: '{version}'", f"version: '{LATER}'", 1))
        project.truncate()


def build_releases(out):
    """Builds the packages of these sources, and below `later` those of the next release, from the source package."""
    shutil.rmtree(out, ignore_errors=True)
    build(ROOT, out, "--source")
    with tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp") as folder:
        subprocess.run(["tar", "-xf", *glob.glob(f"{out}/*.tar.xz"), "-C", folder, "--strip-components=1"], check=True)
        raise_version(folder)
        build(folder, f"{out}/later")


class Debian(Machine):
    """A bare Debian 12 that has our packages in /var/packages."""

    def __init__(self, name):
        super().__init__(files=bare_debian(os.path.join(BUILD, "bare")), name=name)

    def receive(self, packages):
        """Before it boots."""
        shutil.copytree(packages, self.path(FOLDER))
        shutil.copy("/etc/resolv.conf", self.path("etc/resolv.conf"))

    def boot(self):
        super().boot()
        try:
            self.online("apt-get", "update", "--error-on=any")
        except AssertionError as error:
            raise Impossible("no mirror of Debian can be reached") from error

    def online(self, *command, timeout=300):
        """Runs a command on the network of the machine below; returns what it printed."""
        done = subprocess.run([*self.enter(online=True), "env", "DEBIAN_FRONTEND=noninteractive", *command],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}")
        return done.stdout

    def install(self, *names):
        """Installs packages of Debian, or of ours by their files; returns what apt-get printed."""
        return self.online("apt-get", "install", "--yes", "--no-install-recommends", *names)

    def ours(self, folder, names):
        """The files of our packages of these names, as the machine sees them."""
        return [f"/{os.path.relpath(path, self.root)}" for name in names
                for path in glob.glob(f"{self.path(folder)}/{name}_*.deb")]

    def leftovers(self):
        """What the machine still has of us: files and folders by their names, units, processes, sockets, users."""
        pruned = " -o ".join(f"-path {folder}" for folder in ("/proc", "/sys", f"/{FOLDER}"))
        return self.run("sh", "-c", f"find / \\( {pruned} \\) -prune -o -name '*adtopk*' -print;"
                        "systemctl list-unit-files --no-legend 'adtopk*'; systemctl list-units --no-legend 'adtopk*';"
                        "ls -l /proc/[0-9]*/exe 2>/dev/null | grep adtopk;"
                        "grep adtopk /proc/net/unix /etc/passwd /etc/group", check=False).stdout
