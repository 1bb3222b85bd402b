"""podman in a test: its own storage, its own mounts, and a runtime that starts containers in a
container, where control groups and limits cannot be changed.
"""
import json
import os
import shutil
import subprocess

from cluster import die_with_parent
from machine import Impossible, join, own_mounts, quietly

BASE = "docker.io/library/debian:12-slim"
RUNTIME = """#!/usr/bin/env python3
# crun, without what only the first process of a machine may ask for.
import json, os, sys
words = sys.argv[1:]

def unlimited(path, process):
    with open(path, encoding="utf-8") as text:
        spec = json.load(text)
    process(spec).pop("rlimits", None)
    with open(path, "w", encoding="utf-8") as text:
        json.dump(spec, text)

if "--bundle" in words:
    unlimited(os.path.join(words[words.index("--bundle") + 1], "config.json"), lambda spec: spec["process"])
elif "--process" in words:
    unlimited(words[words.index("--process") + 1], lambda spec: spec)
os.execvp("%s", ["crun", "--cgroup-manager=disabled", *words])
"""
CONFIGURATION = """[containers]
cgroups = "disabled"
netns = "host"
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
image_default_transport = "containers-storage:"
runtime = "crun"
[engine.runtimes]
crun = ["%s"]
"""
STORAGE = """[storage]
driver = "vfs"
graphroot = "%s/images"
runroot = "%s/run"
"""


class Podman:
    """Images and containers below a folder; close() ends all of them."""

    def __init__(self, folder):
        for program in ("podman", "crun"):
            if shutil.which(program) is None:
                raise Impossible(f"no {program} here (package {program})")
        own_mounts()
        subprocess.run(["umount", "-R", "/sys/fs/cgroup"], capture_output=True, check=False)
        quietly("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
        self.folder = folder
        shim = os.path.join(folder, "crun")
        self.write("crun", RUNTIME % shutil.which("crun"))
        os.chmod(shim, 0o755)
        self.write("containers.conf", CONFIGURATION % shim)
        self.write("storage.conf", STORAGE % (folder, folder))
        self.environment = {**os.environ, "CONTAINERS_CONF": f"{folder}/containers.conf",
                            "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf", "BUILDAH_ISOLATION": "chroot"}

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as out:
            out.write(text)

    def shell(self, command, inside=(), timeout=900, directory=None):
        """Runs a line of a document, behind `inside`, which enters a network; returns what it printed."""
        done = subprocess.run([*inside, "sh", "-c", command], env=self.environment, cwd=directory,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout[-4000:]}")
        return done.stdout

    def base(self, files):
        """Makes the base image of these files of a Debian 12, and of what this machine's pip needs."""
        site = " ".join(path for path in ("etc/pip.conf", "usr/local/share/ca-certificates")
                        if os.path.exists(f"/{path}"))
        try:
            self.shell(f"tar -c -C {files} . -C / {site} | podman import - {BASE} && podman run --rm {BASE} true")
        except AssertionError as error:
            raise Impossible(f"podman runs no container here: {error}") from error

    def added_bytes(self, image):
        """The compressed size of what an image adds to its base."""
        target = os.path.join(self.folder, "pushed")
        self.shell(f"podman push --compress {image} dir:{target}")
        with open(os.path.join(target, "manifest.json"), encoding="utf-8") as text:
            layers = json.load(text)["layers"]
        shutil.rmtree(target)
        return sum(layer["size"] for layer in layers[1:])

    def close(self):
        subprocess.run(["podman", "rm", "--all", "--force", "--time", "5"], env=self.environment,
                       capture_output=True, check=False)


class Networks:
    """Nodes with networks of their own, joined by one cable."""

    def __init__(self, addresses):
        self.holders = [subprocess.Popen(["unshare", "--net", "sleep", "infinity"], preexec_fn=die_with_parent)
                        for _ in addresses]
        self.ready(addresses)

    def ready(self, addresses):
        first, second = (holder.pid for holder in self.holders)
        quietly("sh", "-c", f"until [ $(readlink /proc/{first}/ns/net) != $(readlink /proc/self/ns/net) ] && "
                f"[ $(readlink /proc/{second}/ns/net) != $(readlink /proc/self/ns/net) ]; do sleep 0.05; done")
        join((first, second), addresses)

    def inside(self, number):
        return ["nsenter", f"--net=/proc/{self.holders[number].pid}/ns/net", "--"]

    def close(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()
