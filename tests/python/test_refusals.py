#!/usr/bin/env python3
"""What the package refuses, and what happens when daemons, ranks and users end in mid-step.

usage: test_refusals.py BUILD [unittest's arguments]
"""
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
from unittest import mock

import interpreter

interpreter.use("numpy")

import numpy  # noqa: E402

import adtopk  # noqa: E402
from adtopk import errors  # noqa: E402
from cluster import Cluster  # noqa: E402
from interpreter import BUILD  # noqa: E402
from jobs import DENSE, F32, Scene, ramp  # noqa: E402

PROMISED = 0.5  # seconds in which a signal ends any wait
SOON = 5        # the same where one attempt has to do, on a busy machine


class BadInput(Scene):
    def test_no_daemon(self):
        for address in ("unix:/nowhere/adtopkd.sock", "tcp://127.0.0.1:1"):
            with self.assertRaises(errors.UnreachableError) as caught:
                adtopk.open(address=address, rank=0, world_size=1, connect_timeout=0.2)
            self.assertIsInstance(caught.exception, ConnectionError)
            self.assertIn(address.split("/")[-1], str(caught.exception))
        with self.assertRaises(errors.UnreachableError):
            adtopk.open(address="unix:/nowhere/adtopkd.sock", rank=0, world_size=1, connect_timeout=0)
        began = time.monotonic()
        with self.assertRaises(errors.UnreachableError):  # several slices
            adtopk.open(address="unix:/nowhere/adtopkd.sock", rank=0, world_size=1, connect_timeout=0.55)
        self.assertGreaterEqual(time.monotonic() - began, 0.54)

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
        for scale in (-1, 0, float("nan"), float("inf"), 1e-45, "1", None):
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
        for shape in ((), (2,) * 9, (0,), (3, 0), (-1,), (2**33,), (2.5,), "ab", (2**64,), None, 2.5):
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
                        {"connect_timeout": float("nan")}, {"connect_timeout": "5"}, {"first_step": -1},
                        {"answer_timeout": 1e9}, {"rank": 1, "world_size": 1}):
            with self.assertRaises(errors.ArgumentError, msg=options):
                adtopk.open(**{"address": self.cluster.address(0), "rank": 0, "world_size": 1,
                               **options})
        for policy in ("{", 5, "[]", {"density": 7}, {"no such key": 1}):
            with self.assertRaises(errors.PolicyError, msg=policy):
                self.open(policy=policy)
        itself = {}
        itself["rules"] = itself
        for policy in ({"rules": {1, 2}}, b"{}", itself, {"density": float("nan")}):
            with self.assertRaisesRegex(errors.ArgumentError, "policy"):
                self.open(policy=policy)
        with self.assertRaises(TypeError):
            adtopk.open(no_such_option=1)

    def test_timeouts(self):
        context, w = self.alone()
        for timeout in (float("nan"), "1", b"1", [1]):
            for call in (context.barrier, context.step_wait, w.wait):
                with self.assertRaisesRegex(errors.ArgumentError, "timeout", msg=timeout):
                    call(timeout=timeout)
        context.barrier(timeout=float("inf"))  # without a limit
        context.barrier(timeout=10**400)
        self.assertEqual(context.step, 0)
        self.step(context, ramp((6, 8)))

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
        contexts[0].close()
        with self.assertRaisesRegex(errors.StateError, "closed"):
            waiting.result(60)

    def test_long_wait(self):
        """A wait that lasts says once where to look."""
        contexts = self.pair()
        contexts[0].tensors[0].push(ramp((6, 8)))
        with mock.patch("adtopk._context.LONG_S", 0.2), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                with self.assertRaises(errors.Pending):
                    contexts[0].step_wait(timeout=0.5)
        told, = caught
        self.assertRegex(str(told.message), f"rank 0 of job '{self.name}' has waited 0.2 s: `adtopkctl jobs`")
        self.assertEqual(told.filename, __file__)

    def test_second_waiter(self):
        contexts = self.pair()
        contexts[0].tensors[0].push(ramp((6, 8)))
        waiting = self.pool.submit(contexts[0].step_wait)
        time.sleep(0.2)
        with self.assertRaises((errors.StateError, errors.Pending)):
            contexts[0].step_wait(timeout=0)
        self.step(contexts[1], ramp((6, 8)))
        self.assertTrue(waiting.result(60))


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
    print("interrupted", time.monotonic(), flush=True)
"""


# The library, and libc, with calls in which no other thread gets Python.
HOLDING = ctypes.PyDLL(os.environ["ADTOPK_LIBRARY"])
PENDING = adtopk.Status.PENDING


class Signals(Scene):
    def interrupt(self, what, number, attempt=0):
        """Sends a signal to a rank that waits; returns its status, what it printed, and when."""
        self.name = f"signal-{what}-{number}-{attempt}"
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
        output, _, when = rank.stdout.read().partition(" ")
        return status, output, float(when or began) - began

    def test_interrupts(self):
        for what in ("open", "commit", "wait", "step_wait", "barrier", "allreduce", "broadcast"):
            with self.subTest(what):
                for attempt in range(3):  # something else may have the cores for a moment
                    status, output, took = self.interrupt(what, signal.SIGINT, attempt)
                    self.assertEqual((output, status), ("interrupted", 0))
                    if took < PROMISED:
                        break
                self.assertLess(took, PROMISED)

    def interrupted(self, call):
        """Ends a call by a signal after a while, and returns how long it took."""
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        began = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            call()
        return time.monotonic() - began

    def test_checkpoint_goes_on(self):
        """A checkpoint whose wait a signal ended goes on when it is called again; nothing else comes between."""
        contexts = self.pair()
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
            self.assertLess(self.interrupted(lambda: contexts[0].checkpoint_save(folder)), SOON)
            for call in (lambda: contexts[0].checkpoint_save(other), contexts[0].barrier,
                         lambda: contexts[0].tensors[0].push(ramp((6, 8)))):
                with self.assertRaisesRegex(errors.StateError, r"checkpoint_save\(\) is under way"):
                    call()
            late = self.pool.submit(contexts[1].checkpoint_save, folder)
            contexts[0].checkpoint_save(folder)
            late.result(60)
            self.assertEqual(len(os.listdir(folder)), 2)
            self.assertLess(self.interrupted(contexts[0].checkpoint_saved), SOON)
            with self.assertRaisesRegex(errors.StateError, r"checkpoint_saved\(\) is .* same argument"):
                contexts[0].checkpoint_saved(False)
            late = self.pool.submit(contexts[1].checkpoint_saved)
            contexts[0].checkpoint_saved()
            late.result(60)
            self.assertLess(self.interrupted(lambda: contexts[0].checkpoint_load(folder)), SOON)
            began = time.monotonic()
            contexts[0].close()
            self.assertLess(time.monotonic() - began, SOON)
            contexts[1].close()

    def test_close_beside_a_stopped_daemon(self):
        with Cluster(BUILD, nodes=1, settings={"trainers_owner": os.geteuid()}) as cluster:
            context = adtopk.open(address=cluster.address(0), job=self.name, rank=0, world_size=1)
            daemon = cluster.daemons[0].process.pid
            os.kill(daemon, signal.SIGSTOP)
            try:
                self.assertLess(self.interrupted(context.close), SOON)
                context.close()
                with self.assertRaisesRegex(errors.StateError, "closed"):
                    context.commit()
            finally:
                os.kill(daemon, signal.SIGCONT)

    def test_looking_ahead_beside_a_stopped_daemon(self):
        """A signal ends the question for the residuals, whose late answer disturbs no other call."""
        gradient = ramp((100, 200))
        with Cluster(BUILD, nodes=1, settings={"trainers_owner": os.geteuid()}) as cluster, \
                adtopk.open(address=cluster.address(0), job=self.name, rank=0, world_size=1,
                            policy={"sparsifier": "topk", "lookahead": 0.25}) as context:
            tensor = context.register("w", gradient.shape, forms=adtopk.Form.LIST | adtopk.Form.PENDING)
            context.commit()
            tensor.push(gradient)
            context.step_wait()
            shifted, daemon = numpy.zeros(gradient.shape, F32), cluster.daemons[0].process.pid
            calls = [tensor.update, lambda: tensor.lookahead(gradient, shifted, 1.0), tensor.residual]
            os.kill(daemon, signal.SIGSTOP)
            try:
                for call in calls:
                    self.assertLess(self.interrupted(call), SOON)
            finally:
                os.kill(daemon, signal.SIGCONT)
            residual = calls[2]()
            self.assertGreater(numpy.count_nonzero(residual), 19000)
            calls[1]()
            numpy.testing.assert_allclose(shifted, gradient - 0.25 * residual, rtol=1e-2)
            self.assertIsNotNone(calls[0]().pending)

    def test_push_beside_a_stopped_daemon(self):
        """A push that finds the daemon's queue full is ended by a signal, and was not made."""
        with Cluster(BUILD, nodes=1, settings={"trainers_owner": os.geteuid()}) as cluster, \
                adtopk.open(address=cluster.address(0), job=self.name, rank=0, world_size=1,
                            policy=DENSE) as context:
            tensors = [context.register(f"w{t}", 3) for t in range(1030)]
            context.commit()
            pushed, daemon = [], cluster.daemons[0].process.pid

            def push():
                for tensor in tensors[len(pushed):]:
                    tensor.push(numpy.full(3, len(pushed), F32))
                    pushed.append(tensor)
            os.kill(daemon, signal.SIGSTOP)
            try:
                self.assertLess(self.interrupted(push), SOON)
                self.assertEqual(len(pushed), 1024)
                self.assertFalse(tensors[1024].is_pushed)
                self.assertLess(self.interrupted(context.step_end), SOON)
            finally:
                os.kill(daemon, signal.SIGCONT)
            push()
            self.assertTrue(context.step_wait())
            for number, tensor in enumerate(tensors):
                numpy.testing.assert_array_equal(tensor.update().dense, number)

    def interrupted_often(self, call):
        """Does what interrupted() does with a call that sleeps a millisecond at a time: a signal may miss a sleep."""
        awaited = [True]

        def interrupt(number, frame):
            if awaited:
                awaited.clear()
                raise KeyboardInterrupt
        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        began = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.3, 0.03)
            call()
        signal.setitimer(signal.ITIMER_REAL, 0)
        return time.monotonic() - began

    def test_push_to_a_stopped_daemon_elsewhere(self):
        """Over tcp:// a push waits for the daemon. A signal ends that, and the next call sends the rest."""
        gradient, zeros = ramp((3000, 2000)), numpy.zeros((3000, 2000), F32)
        with Cluster(BUILD, nodes=1, settings={"trainers_owner": os.geteuid()}) as cluster, \
                adtopk.open(address=cluster.address("r0"), job=self.name, rank=0, world_size=1,
                            policy=DENSE) as context:
            tensors = [context.register(name, gradient.shape) for name in "vw"]
            context.commit()
            daemon = cluster.daemons[0].process.pid
            for step in range(2):
                os.kill(daemon, signal.SIGSTOP)
                try:
                    self.assertLess(self.interrupted_often(lambda: tensors[0].push(gradient, 4.0)), SOON)
                    self.assertFalse(tensors[0].is_pushed)
                    with self.assertRaisesRegex(errors.StateError, "was interrupted: push it again"):
                        tensors[0].gradient[...] = zeros
                finally:
                    os.kill(daemon, signal.SIGCONT)
                tensors[1].push(gradient, 4.0)
                if step == 0:
                    tensors[0].push(zeros)  # sends the rest of the one that was begun, with its loss scale
                self.assertTrue(context.step_wait())
                for tensor in tensors if step == 0 else tensors[1:]:
                    numpy.testing.assert_array_equal(tensor.update().dense, gradient)
            self.assertTrue(tensors[0].update().unpushed)
            tensors[0].gradient[...] = zeros

    def test_end_of_step_follows_a_push_elsewhere(self):
        """The end of a step in another thread does not overtake a push over tcp:// that waits for the daemon."""
        gradient = ramp((3000, 2000))
        with Cluster(BUILD, nodes=1, settings={"trainers_owner": os.geteuid()}) as cluster, \
                adtopk.open(address=cluster.address("r0"), job=self.name, rank=0, world_size=1,
                            policy=DENSE) as context:
            tensor = context.register("w", gradient.shape)
            context.commit()
            daemon = cluster.daemons[0].process.pid
            os.kill(daemon, signal.SIGSTOP)
            try:
                pushed = self.pool.submit(tensor.push, gradient)
                time.sleep(0.4)
                for number in range(1000):  # the table of tensors moves meanwhile
                    context.register(f"later{number}", 2)
                ended = self.pool.submit(context.step_wait)
                time.sleep(0.4)
            finally:
                os.kill(daemon, signal.SIGCONT)
            pushed.result(60)
            self.assertTrue(ended.result(60))
            numpy.testing.assert_array_equal(tensor.update().dense, gradient)
            context.commit()
            self.assertEqual(len(context.tensors), 1001)

    def test_terminate(self):
        status, output, _ = self.interrupt("step_wait", signal.SIGTERM)
        self.assertEqual((output, status), ("", -signal.SIGTERM))

    def test_goes_on_after_a_handler(self):
        """A handler that returns does not end the wait."""
        contexts = self.pair()
        contexts[0].tensors[0].push(ramp((6, 8)))
        calls = []
        before = signal.signal(signal.SIGALRM, lambda number, frame: calls.append(number))
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)

        def step_later():
            while len(calls) < 3:
                time.sleep(0.01)
            self.step(contexts[1], ramp((6, 8)))
        late = self.pool.submit(step_later)
        self.assertTrue(contexts[0].step_wait())
        signal.setitimer(signal.ITIMER_REAL, 0)
        late.result(60)

    def test_goes_on_after_an_exception(self):
        """A wait that an exception has left goes on when it is called again."""
        contexts = self.pair()
        contexts[0].tensors[0].push(ramp((6, 8)))

        def interrupt(number, frame):
            raise KeyboardInterrupt
        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        with self.assertRaises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            contexts[0].step_wait()
        late = self.pool.submit(self.step, contexts[1], ramp((6, 8)))
        self.assertTrue(contexts[0].step_wait())
        numpy.testing.assert_array_equal(contexts[0].tensors[0].update().dense, 2 * ramp((6, 8)))
        late.result(60)

    def test_outcome_is_kept(self):
        """An exception that comes when the step is over already, and before Python knows, loses nothing."""
        contexts = self.pair()
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)

        def step_and_hold():
            """The other rank's call returns meanwhile, and finds Python taken when the signal comes."""
            signal.setitimer(signal.ITIMER_REAL, 0.15)
            contexts[1].step_end()
            HOLDING.usleep(500000)
            contexts[1].step_wait()
        for again, factor in ((True, 1), (False, 2), (True, float("nan")), (True, 3)):
            for context in contexts:
                context.tensors[0].push(ramp((6, 8), factor))
            late = self.pool.submit(step_and_hold)
            with self.assertRaises(KeyboardInterrupt):
                contexts[0].step_wait()
                time.sleep(1)
            late.result(60)
            if again and contexts[0]._outcome:  # otherwise this thread was the faster one
                self.assertEqual(contexts[0].step_wait(timeout=5), factor == factor)
            self.assertEqual(contexts[0].step, contexts[1].step)
        numpy.testing.assert_array_equal(contexts[0].tensors[0].update().dense, 2 * ramp((6, 8), 3))

    def test_collective_calls_are_not_made_twice(self):
        """A collective call that was over when an exception came is over when it is called again."""
        contexts = self.pair()
        arrays = [numpy.ones(3, F32), numpy.full(3, 2, F32)]
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)

        def call_and_hold(name, *arguments):
            """The other rank's call returns meanwhile, and finds Python taken when the signal comes."""
            while getattr(HOLDING, f"adtopk_{name}_for")(contexts[1]._handle, *arguments, 50) == PENDING:
                time.sleep(0.01)
            signal.setitimer(signal.ITIMER_REAL, 0.15)
            HOLDING.usleep(500000)
        address = ctypes.c_void_p(arrays[1].ctypes.data)
        calls = {"barrier": (lambda **more: contexts[0].barrier(**more), ()),
                 "allreduce": (lambda **more: contexts[0].allreduce(arrays[0], **more),
                               (address, ctypes.c_size_t(3))),
                 "broadcast": (lambda **more: contexts[0].broadcast(arrays[0], 1, **more),
                               (address, ctypes.c_size_t(12), 1)),
                 "commit": (lambda **more: contexts[0].commit(**more), ())}
        for name, (call, arguments) in calls.items():
            if name == "commit":
                for context in contexts:
                    context.register("v", 3)
            late = self.pool.submit(call_and_hold, name, *arguments)
            with self.assertRaises(KeyboardInterrupt):
                call()
                time.sleep(1)
            late.result(60)
            if contexts[0]._together[0]:  # otherwise this thread was the faster one
                call(timeout=5)
        numpy.testing.assert_array_equal(arrays, 3)
        self.each(lambda context: context.barrier(timeout=5), contexts)
        self.each(lambda context: context.barrier(timeout=5), contexts)


if __name__ == "__main__":
    unittest.main()
