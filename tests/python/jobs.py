"""What the tests of the package share: two daemons, and jobs whose ranks are threads of this process.

Import it after interpreter.use().
"""
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy

import adtopk
from cluster import share_cluster
from interpreter import BUILD

F32 = numpy.float32
DENSE = {"sparsifier": "dense", "dense_values": "f32", "values": "f32", "reduce": "sum"}
TOPK = {"sparsifier": "topk", "density": 0.1, "values": "f32", "reduce": "sum"}


class Scene(unittest.TestCase):
    """Two daemons, and jobs whose ranks are threads of this process."""

    serial = 0

    @classmethod
    def setUpClass(cls):
        share_cluster(cls, BUILD)

    def setUp(self):
        Scene.serial += 1
        self.name = f"job{Scene.serial}"
        self.pool = ThreadPoolExecutor(8)
        self.addCleanup(self.pool.shutdown)

    def open(self, rank=0, world=1, node=0, policy=None, **options):
        context = adtopk.open(address=self.cluster.address(node), job=self.name, rank=rank,
                              world_size=world, policy=policy or DENSE, **options)
        self.addCleanup(context.close)
        return context

    def each(self, function, contexts):
        """What a function returns for each context, all at once."""
        return [one.result(60) for one in [self.pool.submit(function, part) for part in contexts]]

    def pair(self, policy=None, shape=(6, 8), nodes=(0, 1), **tensor):
        """Two ranks that have committed a tensor "w"."""
        contexts = self.each(lambda rank: self.open(rank, 2, nodes[rank], policy), (0, 1))
        for context in contexts:
            context.register("w", shape, **tensor)
        self.each(lambda context: context.commit(), contexts)
        return contexts

    def alone(self, shape=(6, 8), policy=None, **tensor):
        """One rank that has committed a tensor "w"."""
        context = self.open(policy=policy)
        context.register("w", shape, **tensor)
        context.commit()
        return context, context.tensors[0]

    def step(self, context, gradient, scale=1.0):
        context.tensors[0].push(gradient, scale)
        return context.step_wait()


def ramp(shape, factor=1.0, dtype=F32):
    return (numpy.arange(numpy.prod(shape), dtype=F32).reshape(shape) * F32(factor)).astype(dtype)
