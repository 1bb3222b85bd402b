#!/usr/bin/env python3
"""The package adtopk with real daemons: what it does, and what it refuses.

usage: test_package.py BUILD [unittest's arguments]
"""
import gc
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
from concurrent.futures import ThreadPoolExecutor

import interpreter

interpreter.need("numpy")
BUILD = os.path.abspath(sys.argv.pop(1))
interpreter.use(BUILD)

import numpy  # noqa: E402

import adtopk  # noqa: E402
from adtopk import errors  # noqa: E402
from cluster import Cluster  # noqa: E402

F32 = numpy.float32
DENSE = {"sparsifier": "dense", "dense_values": "f32", "values": "f32", "reduce": "sum"}
TOPK = {"sparsifier": "topk", "density": 0.1, "values": "f32", "reduce": "sum"}
SOON = 0.5  # seconds in which a signal ends any wait


class Scene(unittest.TestCase):
    """Two daemons, and jobs whose ranks are threads of this process."""

    serial = 0

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, nodes=2, settings={"trainers_owner": os.geteuid()}).start()
        cls.addClassCleanup(cls.cluster.close)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

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


class Training(Scene):
    def test_sum_of_two_ranks(self):
        contexts = self.pair()
        grads = [ramp((6, 8)), ramp((6, 8), 10)]
        for _ in range(3):
            self.assertEqual(self.each(lambda c: self.step(c, grads[c.rank]), contexts), [True, True])
            for context in contexts:
                update = context.tensors[0].update()
                numpy.testing.assert_array_equal(update.dense, grads[0] + grads[1])
                self.assertEqual(update.step, context.step - 1)
                self.assertFalse(update.unpushed)

    def test_attributes(self):
        context = self.open(run_id="r7")
        self.assertEqual((context.rank, context.world_size, context.job, context.run_id, context.step),
                         (0, 1, self.name, "r7", 0))
        self.assertIn(f"job '{self.name}', rank 0 of 1", repr(context))
        self.assertEqual(adtopk.version().split(".")[0], "1")
        self.assertEqual(adtopk.status_name(adtopk.Status.MISMATCH), "mismatch")
        tensor = context.register("w", [3, 4], "f16", adtopk.LIST | adtopk.DENSE)
        self.assertEqual((tensor.number, tensor.shape, tensor.numel), (0, (3, 4), 12))
        self.assertEqual(context.tensors, (tensor,))
        context.close()
        context.close()
        self.assertTrue(context.closed)
        self.assertIn("closed", repr(context))

    def test_lists_and_residual(self):
        """List, dense form and residual add up to what was pushed."""
        context, w = self.alone((10, 20), TOPK, forms=adtopk.LIST | adtopk.DENSE)
        pushed = numpy.zeros((10, 20), F32)
        applied = numpy.zeros((10, 20), F32)
        generator = numpy.random.default_rng(1)
        for _ in range(5):
            gradient = generator.standard_normal((10, 20)).astype(F32)
            pushed += gradient
            self.assertTrue(self.step(context, gradient))
            update = w.update()
            dense = numpy.zeros(200, F32)
            dense[update.index.copy()] = update.value
            self.assertEqual(update.count, 20)
            numpy.testing.assert_array_equal(update.dense, dense.reshape(10, 20))
            applied += update.dense
            numpy.testing.assert_allclose(applied + w.residual(), pushed, atol=1e-5)

    def test_gradient_memory(self):
        context, w = self.alone()
        w.gradient[...] = 3
        w.gradient[2] = numpy.arange(8)
        numpy.add(w.gradient, 1, out=w.gradient)
        w.push()
        self.assertTrue(context.step_wait())
        expected = numpy.full((6, 8), 4, F32)
        expected[2] = numpy.arange(8) + 1
        numpy.testing.assert_array_equal(w.update().dense, expected)

    def test_gradient_is_locked_while_pushed(self):
        context, w = self.alone()
        gradient = w.gradient
        gradient[...] = 1
        w.push()
        for write in (lambda: gradient.__setitem__(0, 5), lambda: numpy.copyto(gradient, 5),
                      lambda: numpy.multiply(gradient, 2, out=gradient),
                      lambda: numpy.fill_diagonal(gradient, 5)):
            with self.assertRaises(errors.StateError):
                write()
        self.assertEqual(gradient[0, 0], 1)
        context.step_wait()
        gradient[...] = 2
        w.push()
        context.step_wait()
        self.assertEqual(w.update().dense[0, 0], 2)

    def test_types(self):
        for dtype, numpy_dtype in (("f16", numpy.float16), ("bf16", numpy.uint16)):
            self.name += dtype
            context = self.open()
            w = context.register("w", 4, dtype, adtopk.DENSE16)
            v = context.register("v", 4, dtype)
            context.commit()
            values = numpy.array([1, -2, 0.5, 3], F32)
            bits = values.astype(numpy.float16) if dtype == "f16" else \
                (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
            w.push(bits)
            v.push(bits)
            self.assertTrue(context.step_wait())
            self.assertEqual(w.update().dense16.dtype, numpy_dtype)
            numpy.testing.assert_array_equal(w.update().dense16, bits)
            self.assertIsNone(w.update().dense)
            numpy.testing.assert_array_equal(v.update().dense, values)
            context.close()

    def test_numpy_types_as_dtype(self):
        context = self.open()
        for number, dtype in enumerate((numpy.float16, numpy.dtype("float32"), "F16", adtopk.BF16)):
            context.register(str(number), 1, dtype)
        self.assertEqual([tensor.dtype.name for tensor in context.tensors],
                         ["F16", "F32", "F16", "BF16"])

    def test_non_contiguous_gradient(self):
        context, w = self.alone((4, 6))
        big = ramp((6, 8))
        for gradient in (big.T[:4, :6], big[:4, ::-1][:, :6], ramp((6, 4)).T, ramp((4, 1))
                         * numpy.ones((1, 6), F32)):
            self.assertTrue(self.step(context, gradient))
            numpy.testing.assert_array_equal(w.update().dense, gradient)

    def test_loss_scale(self):
        contexts = self.pair(TOPK, (10, 20))
        self.each(lambda c: self.step(c, ramp((10, 20), 1024), 1024), contexts)
        numpy.testing.assert_array_equal(contexts[0].tensors[0].update().dense[9, 19], 1024 * 2 * 199)
        residuals = [context.tensors[0].residual() for context in contexts]
        self.assertLess(residuals[0].max(), 200)

    def test_nonfinite(self):
        contexts = self.pair()
        bad = ramp((6, 8))
        bad[3, 3] = numpy.nan
        self.each(lambda c: self.step(c, ramp((6, 8))), contexts)
        old = contexts[0].tensors[0].update()
        results = self.each(lambda c: self.step(c, bad if c.rank else ramp((6, 8))), contexts)
        self.assertEqual(results, [False, False])
        with self.assertRaises(errors.ReleasedError):
            old.dense
        with self.assertRaisesRegex(errors.StateError, "withdrawn"):
            contexts[0].tensors[0].update()
        self.assertEqual(self.each(lambda c: self.step(c, ramp((6, 8))), contexts), [True, True])

    def test_wait_for_a_tensor(self):
        context = self.open()
        a, b = context.register("a", (3, 3)), context.register("b", (4, 4))
        context.commit()
        for _ in range(2):
            a.push(ramp((3, 3)))
            self.assertTrue(a.wait())
            update = a.update()
            b.push(ramp((4, 4)))
            numpy.testing.assert_array_equal(update.dense, ramp((3, 3)))
            self.assertTrue(context.step_wait())
            numpy.testing.assert_array_equal(update.dense, ramp((3, 3)))
        context.step_end()
        with self.assertRaises(errors.ReleasedError):
            update.dense
        context.step_wait()

    def test_propagate(self):
        """An update can be read in the next step until its tensor is pushed again."""
        context = self.open(policy={**DENSE, "non_finite": "propagate"})
        a, b = context.register("a", (3, 3)), context.register("b", (4, 4))
        context.commit()
        for tensor in (a, b):
            tensor.push(ramp(tensor.shape))
        self.assertTrue(context.step_wait())
        a.push(ramp((3, 3), 2))
        late = b.update()
        numpy.testing.assert_array_equal(late.dense, ramp((4, 4)))
        b.push(ramp((4, 4), 2))
        with self.assertRaises(errors.ReleasedError):
            late.dense
        context.step_wait()
        b.push(ramp((4, 4), 3))
        late = a.update()
        context.step_end()
        with self.assertRaises(errors.ReleasedError):
            late.dense
        context.step_wait()

    def test_unpushed(self):
        context, w = self.alone()
        self.assertTrue(context.step_wait())
        self.assertTrue(w.update().unpushed)
        self.assertEqual(numpy.abs(w.update().dense).sum(), 0)

    def test_apply_sgd(self):
        context, w = self.alone((10, 20), TOPK, forms=adtopk.LIST)
        self.step(context, ramp((10, 20)))
        update = w.update()
        self.assertIsNone(update.dense)
        parameters = numpy.ones((10, 20), F32)
        expected = numpy.ones(200, F32)
        expected[update.index.copy()] -= F32(0.5) * update.value
        update.apply_sgd(parameters, 0.5)
        numpy.testing.assert_array_equal(parameters.ravel(), expected)

    def test_lookahead(self):
        forms = adtopk.DENSE | adtopk.PENDING
        context, w = self.alone((10, 20), {**TOPK, "lookahead": 0.25}, forms=forms)
        parameters = numpy.full((10, 20), 1000, F32)
        shifted = numpy.empty_like(parameters)
        for _ in range(2):
            self.step(context, ramp((10, 20), 0.01))
            w.lookahead(parameters, shifted, rate=0.5)
        update = w.update()
        residual = update.pending * F32(update.pending_scale)
        numpy.testing.assert_allclose(shifted, parameters - 0.5 * update.lookahead * residual,
                                      rtol=1e-6)
        self.assertGreater(numpy.abs(residual).max(), 0)
        w.lookahead(parameters, shifted, 0.5, numpy.ones_like(parameters), 0.5, 1e-8)
        with self.assertRaisesRegex(errors.ArgumentError, "memory of its own"):
            w.lookahead(parameters, parameters, 0.5)
        with self.assertRaisesRegex(errors.ArgumentError, "rate"):
            w.lookahead(parameters, shifted, -1)

    def test_collective_calls(self):
        contexts = self.pair()

        def collective(context):
            values = numpy.array([context.rank + 1, 5], F32)
            self.assertIs(context.allreduce(values), values)
            message = numpy.zeros(3, numpy.int64)
            if not context.rank:
                message[:] = 7, 8, 9
                message.flags.writeable = False
            context.broadcast(message, 0)
            context.barrier()
            return values.tolist(), message.tolist()
        self.assertEqual(self.each(collective, contexts), [([3, 10], [7, 8, 9])] * 2)

    def test_second_batch(self):
        context, w = self.alone()
        self.step(context, ramp((6, 8)))
        more = context.register("more", (2, 2))
        context.commit()
        w.push(ramp((6, 8)))
        more.push(ramp((2, 2)))
        self.assertTrue(context.step_wait())
        numpy.testing.assert_array_equal(more.update().dense, ramp((2, 2)))

    def test_descriptor(self):
        contexts = self.pair()
        late = self.pool.submit(lambda: (time.sleep(0.3), self.step(contexts[1], ramp((6, 8)))))
        contexts[0].tensors[0].push(ramp((6, 8)))
        while True:
            try:
                self.assertTrue(contexts[0].step_wait(timeout=0))
                break
            except errors.Pending:
                if contexts[0].arm():
                    self.assertTrue(select.select([contexts[0]], [], [], 30)[0])
        late.result(30)

    def test_group_and_second_context(self):
        context = self.open(group="stage1")
        self.assertEqual(context.job, f"{self.name}@stage1")
        self.assertEqual(self.open(group="stage1").job, f"{self.name}@stage1#2")

    def test_trainer_elsewhere(self):
        contexts = self.pair(nodes=(0, "r0"), forms=adtopk.LIST | adtopk.DENSE)
        for _ in range(3):
            self.each(lambda c: self.step(c, ramp((6, 8))), contexts)
            update = contexts[1].tensors[0].update()
            numpy.testing.assert_array_equal(update.dense, 2 * ramp((6, 8)))
        contexts[1].close()
        with self.assertRaises(errors.ReleasedError):
            update.dense

    def test_forms_of_timeouts(self):
        contexts = self.pair()
        contexts[0].tensors[0].push(ramp((6, 8)))
        began = time.monotonic()
        for call in (contexts[0].tensors[0].wait, contexts[0].step_wait):
            with self.assertRaises(errors.Pending):
                call(timeout=0.15)
        with self.assertRaises(TimeoutError):
            contexts[0].step_wait(timeout=0)
        self.assertTrue(0.25 < time.monotonic() - began < 5)
        self.assertTrue(self.each(lambda c: c.step_wait() if c.rank == 0 else
                                  self.step(c, ramp((6, 8))), contexts)[0])
        values = numpy.ones(2, F32)
        with self.assertRaises(errors.Pending):
            contexts[0].allreduce(values, timeout=0.05)
        with self.assertRaisesRegex(errors.StateError, "."):
            contexts[0].barrier()
        self.each(lambda c: c.allreduce(values if c.rank == 0 else numpy.ones(2, F32)), contexts)
        self.assertEqual(values.tolist(), [2, 2])


class Views(Scene):
    """Updates cannot outlive their memory, whatever a program keeps."""

    def setUp(self):
        super().setUp()
        self.context, self.w = self.alone((6, 8), TOPK, forms=adtopk.LIST | adtopk.DENSE)
        self.step(self.context, ramp((6, 8)))
        self.update = self.w.update()
        self.view = self.update.dense
        self.values = numpy.array(self.view)

    def uses(self, view):
        """All ways to look at a view."""
        target = numpy.zeros((6, 8), F32)
        return [lambda: view[0], lambda: view[...], lambda: view + 1, lambda: 2 * view,
                lambda: numpy.array(view), lambda: numpy.asarray(view), lambda: numpy.sum(view),
                lambda: view.copy(), lambda: view.copy(out=target), lambda: list(view),
                lambda: numpy.subtract(target, view, out=target), lambda: numpy.dot(view, view.T)
                if hasattr(view, "T") else view == 1, lambda: numpy.concatenate([target, view]),
                lambda: numpy.copyto(target, view), lambda: view.__array__(), lambda: -view,
                lambda: target.__setitem__(0, view), lambda: numpy.linalg.norm(view),
                lambda: target.__isub__(view), lambda: bool(view), lambda: numpy.add.reduce(view),
                lambda: numpy.frompyfunc(lambda x: x, 1, 1)(view)]

    def assert_dead(self, view):
        self.assertTrue(view.released)
        self.assertIn("released", repr(view))
        for number, use in enumerate(self.uses(view)):
            with self.assertRaises((errors.ReleasedError, ValueError), msg=f"use {number}"):
                use()
                self.fail(f"use {number} of a dead view")

    def test_alive(self):
        for use in self.uses(self.view):
            try:
                use()
            except ValueError as problem:  # shapes that do not fit, the truth of many elements
                self.assertRegex(str(problem), "ambiguous|broadcast")
        self.assertEqual((self.view.shape, self.view.dtype, self.view.ndim, self.view.size,
                          self.view.nbytes, len(self.view)), ((6, 8), F32, 2, 48, 192, 6))
        self.assertIn("View(array", repr(self.view))

    def test_dead_after_push(self):
        self.w.push(ramp((6, 8), 2))
        for view in (self.view,):
            self.assert_dead(view)
        for name in ("dense", "index", "value"):
            with self.assertRaisesRegex(errors.ReleasedError, "'w' of step 0 was released"):
                getattr(self.update, name)
        with self.assertRaises(errors.ReleasedError):
            self.update.apply_sgd(numpy.zeros((6, 8), F32), 1)
        self.context.step_wait()
        self.assert_dead(self.view)

    def test_dead_after_step_end(self):
        self.context.step_end()
        self.assert_dead(self.view)

    def test_dead_after_step_wait(self):
        self.context.step_wait()
        self.assert_dead(self.view)

    def test_dead_after_close(self):
        gradient = self.w.gradient
        self.context.close()
        self.assert_dead(self.view)
        with self.assertRaises(errors.ReleasedError):
            gradient[...] = 1
        with self.assertRaises(errors.ReleasedError):
            numpy.copyto(gradient, 1)
        with self.assertRaises(errors.ReleasedError):
            self.w.gradient
        for call in (lambda: self.w.push(ramp((6, 8))), self.context.step_wait, self.w.update,
                     self.w.residual, self.context.commit, self.context.barrier, self.w.wait,
                     lambda: self.context.register("v", 3), self.context.fileno,
                     lambda: self.context.rank, lambda: self.context.step):
            with self.assertRaisesRegex(errors.StateError, "closed"):
                call()

    def test_dead_after_the_context_is_forgotten(self):
        context = adtopk.open(address=self.cluster.address(0), job=self.name + "b", rank=0, world_size=1,
                              policy=TOPK)
        w = context.register("w", (6, 8))
        context.commit()
        self.step(context, ramp((6, 8)))
        view = w.update().dense
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del context, w
            gc.collect()
        view[0]  # the view keeps its context
        del view
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gc.collect()
        self.assertTrue(any("was not closed" in str(one.message) for one in caught), caught)

    def test_nothing_of_numpy_keeps_the_memory(self):
        """Whatever numpy returns holds its numbers after the memory has others, and after close()."""
        kept = []

        def keep(row):
            kept.append(row)
            return 0.0

        results = [numpy.asarray(self.view), numpy.array(self.view, copy=False)
                   if numpy.lib.NumpyVersion(numpy.__version__) < "2.0.0" else numpy.asarray(self.view),
                   self.view[...], self.view[1:3], self.view[:, 0], numpy.ravel(self.view),
                   numpy.reshape(self.view, (8, 6)), numpy.transpose(self.view),
                   numpy.broadcast_to(self.view, (2, 6, 8)), *numpy.split(self.view, 2),
                   *numpy.atleast_3d(self.view), numpy.squeeze(self.view), numpy.diagonal(self.view),
                   numpy.real(self.view), numpy.ascontiguousarray(self.view), numpy.swapaxes(self.view, 0, 1),
                   numpy.lib.stride_tricks.as_strided(self.view, (3, 3), (4, 4)),
                   *numpy.broadcast_arrays(self.view, 1), numpy.require(self.view), numpy.flip(self.view),
                   *iter(self.view), numpy.moveaxis(self.view, 0, 1), numpy.rot90(self.view)]
        numpy.apply_along_axis(keep, 1, self.view)
        results += kept
        snapshots = [numpy.array(one) for one in results]
        for _ in range(2):
            self.step(self.context, ramp((6, 8), -3))
        self.context.close()
        for number, (result, snapshot) in enumerate(zip(results, snapshots)):
            self.assertIs(type(result) if not isinstance(result, numpy.generic) else numpy.ndarray,
                          numpy.ndarray)
            numpy.testing.assert_array_equal(result, snapshot, f"result {number}")

    def test_no_way_to_the_raw_memory(self):
        for attempt in (lambda: memoryview(self.view), lambda: numpy.frombuffer(self.view),
                        lambda: self.view.__array_interface__, lambda: self.view.ctypes,
                        lambda: self.view.__dlpack__(), lambda: self.view.__array__(copy=False),
                        lambda: pickle.dumps(self.context)):
            with self.assertRaises((TypeError, AttributeError, ValueError)):
                attempt()

    def test_read_only(self):
        for write in (lambda: self.view.__setitem__(0, 1), lambda: numpy.copyto(self.view, 1),
                      lambda: numpy.add(self.view, 1, out=self.view),
                      lambda: numpy.add.at(self.view, (0, 0), 1),
                      lambda: numpy.put(self.view, [0], [1]), lambda: numpy.fill_diagonal(self.view, 1),
                      lambda: numpy.clip(self.view, 0, 1, out=self.view)):
            with self.assertRaises((ValueError, TypeError)):
                write()
        numpy.testing.assert_array_equal(self.view, self.values)

    def test_foreign_arrays_see_copies(self):
        """An operand that brings its own rules could keep what it is given."""
        kept = []

        class Foreign(numpy.ndarray):
            def __array_ufunc__(self, ufunc, method, *inputs, **options):
                kept.extend(inputs)
                return 0

        numpy.add(self.view, numpy.zeros((6, 8), F32).view(Foreign))
        snapshot = numpy.array(kept[0])
        self.step(self.context, ramp((6, 8), -3))
        self.context.close()
        numpy.testing.assert_array_equal(kept[0], snapshot)

    def test_two_threads(self):
        """close() waits until a computation over a view is over; then the view is dead."""
        context = adtopk.open(address=self.cluster.address(0), job=self.name + "b", rank=0, world_size=1,
                              policy=DENSE)
        w = context.register("w", (1000, 1000))
        context.commit()
        self.step(context, ramp((1000, 1000)))
        view = w.update().dense
        reads = []

        def read():
            try:
                while True:
                    reads.append(float(numpy.sum(view * 2)))
            except errors.ReleasedError:
                return len(reads)
        done = self.pool.submit(read)
        while len(reads) < 3:
            time.sleep(0.01)
        context.close()
        self.assertGreaterEqual(done.result(30), 3)
        self.assertEqual(len(set(reads)), 1)

    def test_fork(self):
        """A forked child gets errors, and its parent trains on."""
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            found = []
            for use in (lambda: self.view[0], lambda: self.update.dense, self.context.step_wait,
                        lambda: self.w.push(ramp((6, 8))), self.w.update, lambda: self.context.rank):
                try:
                    use()
                    found.append("worked")
                except errors.StateError as problem:
                    found.append("forked" if "forked" in str(problem) else str(problem))
            self.context.close()
            os.write(into, json.dumps(found).encode())
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(json.loads(os.read(out, 10000)), ["forked"] * 6)
        os.close(out)
        os.close(into)
        self.assertTrue(self.step(self.context, ramp((6, 8))))

    def test_subprocess_in_between(self):
        self.assertEqual(subprocess.run(["true"], check=False).returncode, 0)
        self.assertTrue(self.step(self.context, ramp((6, 8))))


class BadInput(Scene):
    def test_no_daemon(self):
        began = time.monotonic()
        for address in ("unix:/nowhere/adtopkd.sock", "tcp://127.0.0.1:1"):
            with self.assertRaises(errors.UnreachableError) as caught:
                adtopk.open(address=address, rank=0, world_size=1, connect_timeout=0.2)
            self.assertIsInstance(caught.exception, ConnectionError)
            self.assertIn(address.split("/")[-1], str(caught.exception))
        with self.assertRaises(errors.UnreachableError):
            adtopk.open(address="unix:/nowhere/adtopkd.sock", rank=0, world_size=1, connect_timeout=0)
        self.assertLess(time.monotonic() - began, 20)

    def test_another_program(self):
        with tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp") as folder:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                path = os.path.join(folder, "sock")
                listener.bind(path)
                listener.listen()

                def answer():
                    with listener.accept()[0] as peer:
                        peer.recv(65536)
                        peer.send(b"\xff\xfenonsense")
                done = self.pool.submit(answer)
                with self.assertRaises(errors.ProtocolError):
                    adtopk.open(address=f"unix:{path}", rank=0, world_size=1)
                done.result(30)

    def test_wrong_gradients(self):
        context, w = self.alone()
        good = ramp((6, 8))
        for gradient, words in (
                (good.astype(numpy.float64), "float64, not float32"),
                (good.astype(numpy.float16), "float16, not float32"),
                (good.astype(">f4"), "not float32"), (good.astype(complex), "complex128"),
                (good.astype(int), "int64"), (good.tolist(), "float64"), (good[:5], r"\(5, 8\)"),
                (good.T, r"\(8, 6\)"), (good.ravel(), r"\(48,\)"), (good[None], r"\(1, 6, 8\)"),
                (numpy.empty((6, 0), F32), r"\(6, 0\)"), ("text", "<U4"), (object(), "object")):
            with self.assertRaisesRegex(errors.ArgumentError, words):
                w.push(gradient)
        for scale in (-1, 0, float("nan"), float("inf"), 1e-45):
            with self.assertRaisesRegex(errors.ArgumentError, "scale"):
                w.push(good, scale)
        self.assertTrue(self.step(context, good))
        numpy.testing.assert_array_equal(w.update().dense, good)

    def test_failed_push_changes_nothing(self):
        context, w = self.alone()
        self.step(context, ramp((6, 8)))
        with self.assertRaises(errors.ArgumentError):
            w.push(ramp((6, 8)), 1e-45)
        w.gradient[...] = 5  # not locked
        update = w.update()
        self.step(context, ramp((6, 8), 2))
        with self.assertRaises(errors.ReleasedError):
            update.dense

    def test_wrong_tensors(self):
        context = self.open()
        for shape in ((), (2,) * 9, (0,), (3, 0), (-1,), (2**33,), (2.5,), "ab", (2**64,)):
            with self.assertRaises(errors.ArgumentError, msg=shape):
                context.register("w", shape)
        for dtype in ("f64", numpy.float64, numpy.complex64, int, "f8", None, 7):
            with self.assertRaises(errors.ArgumentError, msg=dtype):
                context.register("w", 3, dtype)
        for name in ("", "x" * 128, "a\nb", "a\0b", None, b"w"):
            with self.assertRaises(errors.ArgumentError, msg=name):
                context.register(name, 3)
        for forms in (64, -1, adtopk.DENSE16, "list", 2**32):
            with self.assertRaises(errors.ArgumentError, msg=forms):
                context.register("w", 3, forms=forms)
        context.register("w", 3)
        with self.assertRaisesRegex(errors.ArgumentError, "registered already"):
            context.register("w", 3)
        self.assertEqual(len(context.tensors), 1)

    def test_wrong_options(self):
        for options in ({"rank": -1}, {"rank": 2**31}, {"rank": "0"}, {"world_size": 0},
                        {"world_size": 65537}, {"job": ""}, {"job": "a\0b"}, {"job": 5},
                        {"job": "x" * 64}, {"address": "http://x"}, {"connect_timeout": -1},
                        {"connect_timeout": float("nan")}, {"answer_timeout": 1e9},
                        {"rank": 1, "world_size": 1}):
            with self.assertRaises(errors.ArgumentError, msg=options):
                adtopk.open(**{"address": self.cluster.address(0), "rank": 0, "world_size": 1,
                               **options})
        for policy in ("{", {"density": 7}, {"no such key": 1}):
            with self.assertRaises(errors.PolicyError, msg=policy):
                self.open(policy=policy)
        with self.assertRaises(TypeError):
            adtopk.open(no_such_option=1)

    def test_wrong_arrays(self):
        context, w = self.alone()
        good = ramp((6, 8))
        self.step(context, good)
        read_only = good.copy()
        read_only.flags.writeable = False
        for array in (good.tolist(), good.astype(float), read_only, good.T, good[:, :4]):
            with self.assertRaises(errors.ArgumentError):
                context.allreduce(array)
            with self.assertRaises(errors.ArgumentError):
                w.update().apply_sgd(array, 1)
        for array in (good.astype(float), good[:3], good.T, read_only):
            with self.assertRaises(errors.ArgumentError):
                w.residual(array)
            if array is not read_only:
                with self.assertRaises(errors.ArgumentError):
                    w.lookahead(array, good.copy(), 0.1)
        for array in (good.T, "text", None, numpy.array([object()])):
            with self.assertRaises(errors.ArgumentError):
                context.broadcast(array)
        for root in (-1, 1, 2**31, "0"):
            with self.assertRaises(errors.ArgumentError):
                context.broadcast(good.copy(), root)
        with self.assertRaisesRegex(errors.ArgumentError, "24 parameters"):
            w.update().apply_sgd(numpy.zeros(24, F32), 1)

    def test_wrong_order(self):
        context = self.open()
        w = context.register("w", (6, 8))
        for call in (lambda: w.push(ramp((6, 8))), w.wait, w.update, w.residual, context.step_wait,
                     context.barrier, lambda: w.gradient, context.step_end):
            with self.assertRaises(errors.StateError):
                call()
        context.commit()
        w.gradient[...] = 1
        with self.assertRaises(errors.StateError):
            context.commit()
        with self.assertRaises(errors.StateError):
            w.update()
        w.push()
        with self.assertRaisesRegex(errors.StateError, "twice|already"):
            w.push()
        context.step_wait()

    def test_ranks_disagree(self):
        contexts = self.each(lambda rank: self.open(rank, 2, rank), (0, 1))
        for context in contexts:
            context.register("w", (3, 4 + context.rank))

        def commit(context):
            with self.assertRaises(errors.MismatchError) as caught:
                context.commit()
            with self.assertRaises(errors.MismatchError):
                context.step_wait()
            return str(caught.exception)
        for sentence in self.each(commit, contexts):
            self.assertIn("'w'", sentence)

    def test_rank_is_taken(self):
        self.open(0, 2)
        code = ("import adtopk, sys\ntry:\n    adtopk.open(address=sys.argv[1], job=sys.argv[2], rank=0,"
                " world_size=2)\nexcept adtopk.MismatchError as problem:\n    print(problem)")
        done = subprocess.run([sys.executable, "-c", code, self.cluster.address(0), self.name],
                              capture_output=True, text=True, check=True)
        self.assertIn("rank 0", done.stdout)

    def test_peer_leaves(self):
        contexts = self.pair()
        contexts[0].tensors[0].push(ramp((6, 8)))
        contexts[1].close()
        with self.assertRaisesRegex(errors.PeerError, "left the job"):
            contexts[0].step_wait()

    def test_limits_of_the_policy(self):
        contexts = self.pair({**DENSE, "push_timeout": 0.3})
        contexts[0].tensors[0].push(ramp((6, 8)))
        with self.assertRaisesRegex(errors.LimitError, "rank 1") as caught:
            contexts[0].step_wait()
        self.assertIsInstance(caught.exception, TimeoutError)

    def test_daemon_dies(self):
        with Cluster(BUILD, nodes=1) as cluster:
            context = adtopk.open(address=cluster.address(0), rank=0, world_size=1, policy=DENSE)
            w = context.register("w", (6, 8))
            context.commit()
            self.step(context, ramp((6, 8)))
            view = w.update().dense
            expected = view.copy()
            cluster.daemons[0].kill()
            numpy.testing.assert_array_equal(view, expected)
            with self.assertRaises(errors.UnreachableError):
                for _ in range(100):
                    self.step(context, ramp((6, 8)))
            context.close()

    def test_close_ends_a_wait(self):
        contexts = self.pair()
        contexts[0].tensors[0].push(ramp((6, 8)))
        waiting = self.pool.submit(contexts[0].step_wait)
        time.sleep(0.2)
        began = time.monotonic()
        contexts[0].close()
        with self.assertRaisesRegex(errors.StateError, "closed"):
            waiting.result(10)
        self.assertLess(time.monotonic() - began, 5)

    def test_second_waiter(self):
        contexts = self.pair()
        contexts[0].tensors[0].push(ramp((6, 8)))
        waiting = self.pool.submit(contexts[0].step_wait)
        time.sleep(0.2)
        with self.assertRaises((errors.StateError, errors.Pending)):
            contexts[0].step_wait(timeout=0)
        self.step(contexts[1], ramp((6, 8)))
        self.assertTrue(waiting.result(10))


WAITER = """
import sys, time, signal
import numpy
import adtopk
address, job, what = sys.argv[1:]
array = numpy.ones((3, 4), numpy.float32)
print("ready", flush=True)
try:
    if what == "open":
        adtopk.open(address="unix:/nowhere/sock", rank=0, world_size=2, connect_timeout=60)
    with adtopk.open(address=address, job=job, rank=0, world_size=2) as context:
        w = context.register("w", (3, 4))
        if what == "commit":
            context.commit()
        context.commit()
        w.push(array)
        {"wait": w.wait, "step_wait": context.step_wait, "barrier": context.barrier,
         "allreduce": lambda: context.allreduce(array),
         "broadcast": lambda: context.broadcast(array, 1)}[what]()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


class Signals(Scene):
    def interrupt(self, what, number):
        """Sends a signal to a rank that waits; returns what it printed, its status and the time."""
        self.name = f"signal-{what}-{number}"
        rank = subprocess.Popen([sys.executable, "-c", WAITER, self.cluster.address(0), self.name, what],
                                stdout=subprocess.PIPE, text=True)
        self.addCleanup(rank.stdout.close)
        self.addCleanup(rank.wait)
        self.addCleanup(rank.kill)
        self.assertEqual(rank.stdout.readline(), "ready\n")
        if what not in ("open", "commit"):
            other = self.open(1, 2, policy="{}")
            other.register("w", (3, 4))
            other.commit()
        time.sleep(0.3)
        began = time.monotonic()
        rank.send_signal(number)
        status = rank.wait(30)
        return rank.stdout.read(), status, time.monotonic() - began

    def test_interrupts(self):
        for what in ("open", "commit", "wait", "step_wait", "barrier", "allreduce", "broadcast"):
            with self.subTest(what):
                output, status, took = self.interrupt(what, signal.SIGINT)
                self.assertEqual((output, status), ("interrupted\n", 0))
                self.assertLess(took, SOON + 0.5)  # and the end of a Python

    def test_terminate(self):
        output, status, took = self.interrupt("step_wait", signal.SIGTERM)
        self.assertEqual((output, status), ("", -signal.SIGTERM))
        self.assertLess(took, SOON)

    def test_goes_on_after_a_handler(self):
        """A handler that returns does not end the wait."""
        contexts = self.pair()
        contexts[0].tensors[0].push(ramp((6, 8)))
        calls = []
        before = signal.signal(signal.SIGALRM, lambda number, frame: calls.append(number))
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        late = self.pool.submit(lambda: (time.sleep(0.5), self.step(contexts[1], ramp((6, 8)))))
        self.assertTrue(contexts[0].step_wait())
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertGreater(len(calls), 2)
        late.result(10)

    def test_goes_on_after_an_exception(self):
        """A wait that an exception has left goes on when it is called again."""
        contexts = self.pair()
        contexts[0].tensors[0].push(ramp((6, 8)))

        def interrupt(number, frame):
            raise KeyboardInterrupt
        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with self.assertRaises(KeyboardInterrupt):
            contexts[0].step_wait()
        late = self.pool.submit(self.step, contexts[1], ramp((6, 8)))
        self.assertTrue(contexts[0].step_wait())
        numpy.testing.assert_array_equal(contexts[0].tensors[0].update().dense, 2 * ramp((6, 8)))
        late.result(10)


assert threading.current_thread() is threading.main_thread()

if __name__ == "__main__":
    unittest.main()
