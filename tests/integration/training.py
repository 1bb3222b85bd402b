"""What tests of training share: two daemons, jobs with names of their own, and their sums."""
import array
import json
import math
import os
import tempfile
import unittest

from build import BUILD
from cluster import Cluster
from ranks import Job, turned

HOMES = [0, 0, 1, 1]
TENSORS = [
    ("fc", "f32", "both", (16, 32)),
    ("bias", "f32", "both", (16,)),
    ("conv", "f32", "dense", (8, 24, 3, 2)),
    ("tall", "f32", "list", (40, 12, 2)),
]
POLICY = {"sparsifier": "adtopk", "density": 0.1, "fibres": "axis1", "interleave": True,
          "scope": "node", "reduce": "mean", "values": "f32"}


def policy(**changes):
    return {**POLICY, **changes}


def text(document):
    return json.dumps(document, separators=(",", ":"))


def read_floats(path, kind="f"):
    values = array.array(kind)
    with open(path, "rb") as source:
        values.frombytes(source.read())
    return values.tolist()


class WithCluster(unittest.TestCase):
    """Two daemons that all tests of a class share; every job has a name of its own, and other forms of
    updates than the one before."""

    serial = 0

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, nodes=2).start()
        cls.addClassCleanup(cls.cluster.close)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()  # with exit status 0: sanitizers have found nothing

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp")
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name

    def job(self, document=None, tensors=None, homes=None, before=()):
        WithCluster.serial += 1
        return Job(self.cluster, BUILD, f"job{WithCluster.serial}", homes or HOMES,
                   turned(tensors or TENSORS, WithCluster.serial), text(document) if document else "-",
                   before=before)

    def detail(self, job, node=0):
        """What the daemon says about the job's tensors, by name."""
        jobs = self.cluster.ask(node, "--job", job.name, "stats")["jobs"]
        return {tensor["name"]: tensor for tensor in jobs[0]["tensors_detail"]}

    def totals(self, job):
        """Per tensor the sums of all ranks' gradients and of rank 0's updates."""
        paths = [os.path.join(self.directory, f"totals{rank.rank}") for rank in job.ranks]
        for rank, path in zip(job.ranks, paths):
            rank.do(f"write-totals {path}")
        files = [read_floats(path, "d") for path in paths]
        out, at = [], 0
        for _, _, _, shape in job.tensors:
            count = math.prod(shape)
            given = [sum(part) for part in zip(*(file[at:at + count] for file in files))]
            out.append((given, files[0][at + count:at + 2 * count]))
            at += 2 * count
        return out

    def hashes(self, document, steps=6, commands=("gradients random 1",), **options):
        """The hash of the updates after each step of a new job."""
        with self.job(document, **options) as job:
            job.join()
            job.each(*commands)
            return [job.steps(1) for _ in range(steps)]
