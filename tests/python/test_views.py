#!/usr/bin/env python3
"""Views of shared memory: alive, dead, and never a way to the memory itself.

usage: test_views.py BUILD [unittest's arguments]
"""
import gc
import json
import os
import pickle
import signal
import subprocess
import threading
import time
import traceback
import unittest
import warnings

import interpreter

interpreter.use("numpy")

import numpy  # noqa: E402

import adtopk  # noqa: E402
from adtopk import errors  # noqa: E402
from jobs import DENSE, F32, TOPK, Scene, ramp  # noqa: E402


def arrays(value):
    """The arrays in a value, and in the attributes of a view."""
    if isinstance(value, numpy.ndarray):
        return [value]
    if isinstance(value, adtopk.View):
        value = [getattr(value, name) for name in adtopk.View.__slots__]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for part in value for one in arrays(part)] if isinstance(value, (tuple, list)) else []


def variables(problem):
    """The arrays in the variables of the functions that an exception, or its cause, came through."""
    found = []
    while problem is not None:
        for frame, _ in traceback.walk_tb(problem.__traceback__):
            found += arrays(frame.f_locals)
        problem = problem.__context__
    return found


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

    def test_methods(self):
        """Those that only look are there; of others a sentence says what has them."""
        for name in ("sum", "mean", "min", "argmax", "ravel", "tolist", "cumsum"):
            numpy.testing.assert_array_equal(getattr(self.view, name)(), getattr(self.values, name)())
        numpy.testing.assert_array_equal(self.view.T, self.values.T)
        self.assertEqual(self.view.astype("float64").dtype, numpy.float64)
        for name in ("fill", "sort", "flat", "data", "ctypes", "setflags"):
            with self.assertRaisesRegex(AttributeError, r"numpy.array\(view\)"):
                getattr(self.view, name)
        self.context.close()
        with self.assertRaises(errors.ReleasedError):
            self.view.sum()

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
                   *iter(self.view), numpy.moveaxis(self.view, 0, 1), numpy.rot90(self.view),
                   numpy.einsum("ij->ji", self.view), *numpy.meshgrid(self.view[0], self.view, copy=False)]
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

    def test_no_exception_keeps_the_memory(self):
        """Whoever prints the variables of a traceback after close() reads no memory that is gone."""
        gradient, small = self.w.gradient, numpy.ones(7, F32)
        faults = [lambda: numpy.sum(self.view, axis=5), lambda: self.view + small, lambda: self.view[100, 1],
                  lambda: gradient.__setitem__(..., small), lambda: gradient.__setitem__(0, self.view),
                  lambda: numpy.concatenate([self.view, small]), lambda: numpy.copyto(gradient, small),
                  lambda: self.view.copy(out=small), lambda: numpy.add(self.view, 1, out=small),
                  lambda: numpy.add(small, 1, out=gradient), lambda: numpy.linalg.norm(self.view, 7),
                  lambda: numpy.add(self.view, 1, out=self.view), lambda: self.view["name"],
                  lambda: numpy.nan_to_num(self.view, copy=False)]
        caught = []
        for number, fault in enumerate(faults):
            try:
                fault()
                self.fail(f"fault {number} raised nothing")
            except (ValueError, TypeError, IndexError) as problem:
                caught.append(problem)
        bounds = [(view._address, view._address + view.nbytes) for view in (self.view, gradient)]
        for number, problem in enumerate(caught):
            for kept in variables(problem):
                here = numpy.lib.array_utils.byte_bounds(kept) if hasattr(numpy.lib, "array_utils") else (
                    numpy.byte_bounds(kept))
                self.assertFalse(any(here[0] < end and begin < here[1] for begin, end in bounds),
                                 f"fault {number} keeps an array over the memory")
        self.context.close()
        for problem in caught:
            list(traceback.TracebackException.from_exception(problem, capture_locals=True).format())

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

    def test_fork_beside_threads(self):
        """Threads of the parent that wait, or compute over a view, are not waited for in the child."""
        self.name += "b"
        contexts = self.pair()
        contexts[0].tensors[0].push(ramp((6, 8)))
        waiting = self.pool.submit(contexts[0].step_wait)
        while not contexts[0]._inside:
            time.sleep(0.01)
        held, over = threading.Event(), threading.Event()

        def compute():
            with self.view._gate.use():
                held.set()
                over.wait()
        computing = self.pool.submit(compute)
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                self.view.copy()
            except errors.ReleasedError:
                for context in (self.context, *contexts):
                    context.close()
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        over.set()
        computing.result(60)
        self.assertTrue(self.step(contexts[1], ramp((6, 8))))
        self.assertTrue(waiting.result(60))

    def test_subprocess_in_between(self):
        self.assertEqual(subprocess.run(["true"], check=False).returncode, 0)
        self.assertTrue(self.step(self.context, ramp((6, 8))))


if __name__ == "__main__":
    unittest.main()
