#!/usr/bin/env python3
"""The package adtopk with real daemons: training, step by step.

usage: test_package.py BUILD [unittest's arguments]
"""
import os
import re
import select
import tempfile
import threading
import time
import unittest
import warnings
from unittest import mock

import interpreter

interpreter.use("numpy")

import numpy  # noqa: E402

import adtopk  # noqa: E402
from adtopk import _warn, errors  # noqa: E402
from jobs import DENSE, F32, TOPK, Scene, ramp  # noqa: E402


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

    def test_copies_of_updates(self):
        """Each in its tensor's type; nothing of a tensor that no rank pushed, and nothing after close()."""
        context = self.open()
        for name, dtype, forms in (("a", "f32", adtopk.DENSE), ("b", "f16", adtopk.DENSE16),
                                   ("c", "f32", adtopk.DENSE)):
            context.register(name, (6, 8), dtype, forms)
        context.commit()
        a, b, c = context.tensors
        into = [numpy.full((6, 8), -1, tensor.dtype.name.replace("F", "float")) for tensor in context.tensors]
        places = [(tensor, array.ctypes.data) for tensor, array in zip((a, b, c), into)]
        with self.assertRaises(errors.StateError):
            context.copy_updates(places)
        for factor in (1, 2):
            a.push(ramp((6, 8), factor))
            b.push(ramp((6, 8), factor, numpy.float16))
            self.assertTrue(context.step_wait())
            self.assertEqual(context.copy_updates(places), [True, True, False])
            numpy.testing.assert_array_equal(into[0], ramp((6, 8), factor))
            numpy.testing.assert_array_equal(into[1], ramp((6, 8), factor, numpy.float16))
            self.assertTrue((into[2] == -1).all())
        b.push(numpy.full((6, 8), numpy.nan, numpy.float16))
        self.assertFalse(context.step_wait())
        with self.assertRaises(errors.StateError):
            context.copy_updates(places)
        context.close()
        with self.assertRaises(errors.ReleasedError):
            context.copy_updates(places)

    def test_copy_of_a_list(self):
        context, w = self.alone((10, 20), TOPK, forms=adtopk.LIST)
        self.step(context, ramp((10, 20)))
        into = numpy.ones((10, 20), F32)
        self.assertEqual(context.copy_updates([(w, into.ctypes.data)]), [True])
        update = w.update()
        whole = numpy.zeros(200, F32)
        whole[update.index.copy()] = update.value
        self.assertGreater(update.count, 0)
        numpy.testing.assert_array_equal(into.ravel(), whole)

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

    def test_an_operator_asks_for_a_checkpoint(self):
        contexts = self.pair()
        heard = []
        folder = self.enterContext(tempfile.TemporaryDirectory())
        asked = self.pool.submit(self.cluster.daemons[1].ask, "checkpoint", "ask", self.name)
        while not asked.done():
            self.each(lambda context: self.step(context, ramp((6, 8))), contexts)
            due = [context.checkpoint_due for context in contexts]
            self.assertEqual(due[0], due[1])
            heard.append(due[0])
            if due[0]:
                self.each(lambda context: context.checkpoint_save(folder), contexts)
        code, out, error = asked.result()
        self.assertEqual((code, heard.count(True)), (0, 1), error)
        self.assertIn(f"after step {heard.index(True) + 1}\n", out)

    def test_ranks_save_in_another_way(self):
        contexts = self.pair()
        self.each(lambda context: self.step(context, ramp((6, 8))), contexts)
        self.each(lambda context: context.checkpoint_saved(), contexts)
        def fails(context):
            with self.assertRaisesRegex(errors.SystemCallError, "could not" if context.rank else "rank 1"):
                context.checkpoint_saved(context.rank == 0)
        self.each(fails, contexts)
        self.each(lambda context: self.step(context, ramp((6, 8))), contexts)

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
                    self.assertTrue(select.select([contexts[0]], [], [], 60)[0])
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
        self.assertGreater(time.monotonic() - began, 0.25)
        self.assertTrue(self.each(lambda c: c.step_wait() if c.rank == 0 else
                                  self.step(c, ramp((6, 8))), contexts)[0])
        values = numpy.ones(2, F32)
        with self.assertRaises(errors.Pending):
            contexts[0].allreduce(values, timeout=0.05)
        with self.assertRaisesRegex(errors.StateError, "."):
            contexts[0].barrier()
        self.each(lambda c: c.allreduce(values if c.rank == 0 else numpy.ones(2, F32)), contexts)
        self.assertEqual(values.tolist(), [2, 2])

    def test_call_in_a_call(self):
        """As a signal handler makes it: the outer call is still one for which close() waits."""
        context = self.open()
        library, inside = context._library, []

        class Library:
            def __getattr__(self, name):
                return getattr(library, name)

            def adtopk_checkpoint_due(self, *arguments):
                self.members = context.members
                inside.append(threading.get_ident() in context._inside)
                return library.adtopk_checkpoint_due(*arguments)
        context._library = Library()
        context.register("w", 4)
        context.commit()
        self.assertFalse(context.checkpoint_due)
        self.assertEqual((inside, context._inside), ([True], set()))


class Variables(Scene):
    def warned(self, **variables):
        """What opening a job with these variables warns of."""
        with mock.patch.dict(os.environ, variables), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.open()
        return [(str(one.message), os.path.basename(one.filename)) for one in caught]

    def test_misspelt(self):
        self.assertEqual(self.warned(ADTOPK_JOBS="a", ADTOPK_LOG_LEVEL="info", ADTOPK_TEST_A="1"),
                         [('adtopk has no variable ADTOPK_JOBS; did you mean "ADTOPK_JOB"?', "jobs.py")])
        for other in ("ADTOPK_QQQQQQQQ", "ADTOPK_ROOT"):  # what all names begin with makes none similar
            self.assertEqual([text for text, _ in self.warned(**{other: ""})], [f"adtopk has no variable {other}"])

    def test_of_kubernetes(self):
        """Those of a Service. No variable of ours looks so."""
        names = [f"ADTOPK_EXPORTER_{end}" for end in (
            "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_METRICS", "PORT", "PORT_9100_TCP", "PORT_9100_TCP_ADDR")]
        self.assertEqual(self.warned(**dict.fromkeys(names, "tcp://10.0.0.1:9100")), [])
        self.assertEqual([name for name in _warn.VARIABLES if _warn.SERVICE.search(name)], [])

    def test_known(self):
        """The package knows what the daemon knows: its settings, and the variables of other programs."""
        def text(path):
            with open(os.path.join(interpreter.ROOT, path), encoding="utf-8") as file:
                return file.read()
        settings = re.findall(r"^\| `(\w+)`", text("deploy/options.md").split("<!-- settings -->")[1]
                              .split("<!-- end -->")[0], re.M)
        others = re.search(r"foreign_variables\[\] = {([^}]*)}", text("daemon/settings/config.c"))[1]
        self.assertEqual(_warn.VARIABLES, {*(f"ADTOPK_{name.upper()}" for name in settings),
                                           *re.findall(r"\w+", others)})


if __name__ == "__main__":
    unittest.main()
