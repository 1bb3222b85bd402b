"""Two machines on which launchers start ranks: each has its name, a network and a daemon at the default
address. Slurm runs on them from .tools, where deploy/setup unpacks it, or from where it is installed.

Making them needs root.
"""
import os
import shutil
import subprocess
import tempfile

from build import BUILD
from cluster import Cluster, die_with_parent
from machine import Impossible, join, quietly
from service import wait_for

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
SLURM = "/" if shutil.which("slurmd-wlm", path="/usr/sbin") else os.path.join(ROOT, ".tools/slurm")
LIBRARIES = os.path.join(SLURM, "usr/lib/x86_64-linux-gnu/slurm-wlm")
NAMES = ("node0", "node1")
ADDRESSES = ("10.0.0.1", "10.0.0.2")
MACHINE = """mount --make-rprivate / && hostname "$1" && mount --bind "$2/hosts" /etc/hosts &&
    mount -t tmpfs tmpfs /run && mkdir -p /run/adtopk/trainers /run/adtopk/control &&
    ln -s "$2/$1.sock" /run/adtopk/trainers/adtopkd.sock &&
    ln -s "$2/$1.control" /run/adtopk/control/adtopkd.sock && echo up && exec sleep infinity"""
AGENT = """#!/bin/sh
case $1 in {cases} esac
shift
exec nsenter --target="$pid" --net --uts --mount -- sh -c "$*"
"""
# Debian's torchrun cannot start anything: its PyTorch 1.13 expects that Python lists flags of value 0.
TORCHRUN = """#!/usr/bin/python3
from torch.distributed.elastic.multiprocessing.api import Std
from torch.distributed import run
Std.from_str = lambda text: Std(int(text))
run.main()
"""
# No authentication, because all of it is this machine; two daemons of one version trust each other's word.
CONFIGURATION = """ClusterName=test
SlurmctldHost=node0
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
PluginDir={libraries}
StateSaveLocation={folder}/slurm
SlurmdSpoolDir={folder}/slurm-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName=node[0-1] CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Machines:
    """with Machines() as machines: machines.start(0, "mpirun -host node0:1,node1:1 hostname")"""

    def __enter__(self):
        if os.getuid() != 0:
            raise Impossible("only root can make machines")
        self.folder = tempfile.mkdtemp(prefix="adtopk-", dir="/tmp")
        self.processes, self.slurm = [], None
        self.cluster = Cluster(BUILD, nodes=2, directory=self.folder)
        try:
            self.write("hosts", "".join(f"{address} {name}\n" for address, name in
                                        zip(("127.0.0.1", *ADDRESSES), ("localhost", *NAMES))))
            for name in NAMES:
                self.hold(name)
            join([process.pid for process in self.processes], ADDRESSES)
            self.write("agent", AGENT.format(cases=" ".join(
                f"{name}) pid={process.pid} ;;" for name, process in zip(NAMES, self.processes))), 0o755)
            self.write("torchrun", TORCHRUN, 0o755)
            self.cluster.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.cluster.close()
        for process in reversed(self.processes):
            process.kill()
            process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(path, mode)

    def hold(self, name):
        """A process whose namespaces are this machine."""
        process = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sh", "-c", MACHINE, "sh", name,
                                    self.folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   preexec_fn=die_with_parent)
        self.processes.append(process)
        said = process.stdout.readline()
        if said != "up\n":
            raise Impossible(f"no namespaces for {name}: {said}")

    def start(self, node, command, **more):
        """A command of a shell on that machine, in the folder that is the user's home."""
        client = os.path.join(BUILD, "client")
        path = (self.folder, os.path.join(BUILD, "tests/bench"), client, os.path.join(SLURM, "usr/bin"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ADTOPK_")}
        environment.update(
            HOME=self.folder, PATH=":".join((*path, environment["PATH"])), OMP_NUM_THREADS="1",
            LD_LIBRARY_PATH=f"{client}:{LIBRARIES}", SLURM_CONF=f"{self.folder}/slurm.conf",
            PYTHONPATH=f"{ROOT}/client/python", ADTOPK_LIBRARY=f"{client}/libadtopk-client.so",
            OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
            OMPI_MCA_plm_rsh_agent=f"{self.folder}/agent", OMPI_MCA_rmaps_base_oversubscribe="1",
            OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_hwloc_base_binding_policy="none")
        return subprocess.Popen(
            ["nsenter", f"--target={self.processes[node].pid}", "--net", "--uts", "--mount", "--", "sh", "-c",
             f"cd {self.folder} && {command}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_parent, env={**environment, **more})

    def ask(self, node, command):
        return self.start(node, command).communicate(timeout=60)[0]

    def start_slurm(self):
        """Slurm's daemons, until both machines are idle."""
        os.mkdir(os.path.join(self.folder, "slurm"))
        self.write("slurm.conf", CONFIGURATION.format(folder=self.folder, libraries=LIBRARIES))
        programs = os.path.join(SLURM, "usr/sbin")
        for node, command in ((0, f"exec {programs}/slurmctld-wlm -D"),
                              (0, f"exec {programs}/slurmd-wlm -D -d {programs}/slurmstepd-wlm"),
                              (1, f"exec {programs}/slurmd-wlm -D -d {programs}/slurmstepd-wlm")):
            self.processes.append(self.start(node, command + f" >>{self.folder}/slurm.log 2>&1"))
        wait_for(lambda: self.ask(0, "sinfo --noheader --states=idle --format=%D").strip() == "2",
                 "Slurm does not start")
