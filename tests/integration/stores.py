"""Daemons whose stores outlive them, and jobs that train on them with equal bits in every run."""
import json
import os
import shutil
import tempfile

from build import BUILD
from cluster import Cluster
from service import wait_for

HOMES = [0, 0, 1, 1]
TENSORS = [("weights", "f32", "both", (64, 256)), ("bias", "f32", "both", (64,)),
           ("last", "f32", "dense", (128, 128)), ("rows", "f32", "list", (40, 30))]
# What is sent depends on gradients alone: no plan of a planner, whose measurements differ.
PINNED = {"sparsifier": "adtopk", "density": 0.05, "bucket_bytes": 20000,
          "sparse_collective": "allgather", "dense_collective": "ring", "values": "bf16"}


def text(**changes):
    return json.dumps({**PINNED, **changes}, separators=(",", ":"))


def registrations(tensors):
    return [f"tensor {name} {dtype} {forms} {'x'.join(map(str, shape))}"
            for name, dtype, forms, shape in tensors]


class StoreCluster(Cluster):
    """Daemons whose stores outlive them. keeps: the nodes of which that is true. relays: as a Cluster has."""

    def __init__(self, nodes=2, keeps=None, relays=False, **settings):
        self.stores = tempfile.mkdtemp(prefix="adtopk-", dir="/dev/shm")
        super().__init__(BUILD, nodes, settings=settings, relays=relays)
        for daemon in self.daemons:
            if keeps is None or daemon.node in keeps:
                daemon.variables["ADTOPK_STORE_FOLDER"] = self.folder(daemon.node)

    def folder(self, node):
        return os.path.join(self.stores, f"node{node}")

    def files(self, node):
        return sorted(name for name in os.listdir(self.folder(node)) if name != "lock")

    def is_empty(self):
        return not any(self.files(daemon.node) for daemon in self.daemons)

    def wait_empty(self):
        """Until the stores of jobs that have ended are gone."""
        wait_for(self.is_empty, "stores are left")

    def close(self):
        super().close()
        shutil.rmtree(self.stores, ignore_errors=True)


def far_cluster(**settings):
    """A cluster for trainers on other machines, too."""
    return StoreCluster(trainers_owner=os.geteuid(), **settings)
