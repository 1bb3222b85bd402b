#!/usr/bin/env python3
"""What the package delivers, element by element, against error feedback computed by numpy.

usage: test_exact.py BUILD [unittest's arguments]
"""
import os
import unittest

import interpreter

interpreter.use("numpy")

import numpy  # noqa: E402

import adtopk  # noqa: E402
from jobs import F32, Scene  # noqa: E402
from reference import Reference  # noqa: E402

SHAPES = [(13, 17), (1, 50), (97, 1), (7, 5, 3), (3, 2, 5, 4), (1, 1), (101,), (2, 3, 1, 2, 1, 2, 1, 2),
          (64, 64), (31, 127)]
STEPS = 200 if os.environ.get("ADTOPK_TEST_LONG") else 40
DENSITY = 0.05


class Exact(Scene):
    def train(self, shapes, policy, draw, steps=STEPS, forms=adtopk.LIST | adtopk.DENSE):
        """Two ranks on two nodes; every element of every step must be the reference's."""
        contexts = self.each(lambda rank: self.open(rank, 2, rank, policy), (0, 1))
        for context in contexts:
            for number, shape in enumerate(shapes):
                context.register(f"t{number}", shape, forms=forms)
        self.each(lambda context: context.commit(), contexts)
        references = [[Reference(shape, policy) for shape in shapes] for _ in contexts]
        generators = [numpy.random.default_rng(rank) for rank in (0, 1)]
        for step in range(steps):
            gradients = [[draw(generator, shape) for shape in shapes] for generator in generators]

            def push(context):
                for tensor, gradient in zip(context.tensors, gradients[context.rank]):
                    tensor.push(gradient)
                return context.step_wait()
            self.assertEqual(self.each(push, contexts), [True, True])
            for number, shape in enumerate(shapes):
                sent = [node[number].send(gradients[rank][number])
                        for rank, node in enumerate(references)]
                wanted = (sent[0] + sent[1]) * F32(0.5)
                for context in contexts:
                    self.compare(context.tensors[number].update(), wanted, (step, shape))
        for context, node in zip(contexts, references):
            for tensor, reference in zip(context.tensors, node):
                numpy.testing.assert_array_equal(tensor.residual(), reference.residual, tensor.name)

    def compare(self, update, wanted, where):
        self.assertTrue(numpy.array_equal(update.dense, wanted), where)
        if update.index is not None:
            listed = numpy.zeros(wanted.size, F32)
            listed[update.index.copy()] = update.value
            self.assertEqual(len(numpy.unique(update.index)), update.count, where)
            self.assertTrue(numpy.array_equal(listed.reshape(wanted.shape), wanted), where)

    def policies(self):
        for sparsifier in ("topk", "adtopk"):
            for values in ("f32", "bf16"):
                self.name += "x"
                policy = {"sparsifier": sparsifier, "density": DENSITY, "values": values,
                          "dense_values": "f32"}
                if sparsifier == "adtopk":
                    policy["interleave"] = False
                yield policy

    def test_odd_shapes(self):
        for policy in self.policies():
            with self.subTest(policy):
                self.train(SHAPES, policy, lambda generator, shape:
                           generator.standard_normal(shape).astype(F32))

    def test_ties(self):
        """Integers, of which nearly all are equal."""
        for policy in self.policies():
            with self.subTest(policy):
                self.train(SHAPES, policy, lambda generator, shape:
                           generator.integers(-3, 4, shape).astype(F32), steps=20)

    def test_a_thousand_tensors(self):
        shapes = [(1 + number % 7, 1 + number % 11) for number in range(1000)]
        self.train(shapes, {"sparsifier": "topk", "density": DENSITY, "values": "f32",
                            "dense_values": "f32"},
                   lambda generator, shape: generator.standard_normal(shape).astype(F32), steps=3)


if __name__ == "__main__":
    unittest.main()
