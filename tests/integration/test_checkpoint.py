#!/usr/bin/env python3
"""Checkpoints: a run that goes on from one equals an undisturbed run; other worlds; what is refused.

usage: test_checkpoint.py BUILD [unittest's arguments]
"""
import json
import os
import random
import shutil
import struct
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import digits
from build import BUILD
from cluster import Cluster, share_cluster
from ranks import Job
from rawclient import crc32c
from scene import text
from service import wait_for
from stores import StoreCluster
from training import read_floats

TENSORS = [("w", "f32", "both", (64, 70)), ("bias", "f32", "dense", (64,)),
           ("half", "bf16", "dense", (100, 130)), ("long", "f32", "list", (3, 9000))]
HOMES = [0, 0, 1]


class Checkpoints(unittest.TestCase):
    serial = 0

    @classmethod
    def setUpClass(cls):
        share_cluster(cls, BUILD, nodes=3)

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="adtopk-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        path = os.path.join(self.folder, name)
        os.makedirs(path, exist_ok=True)
        return path

    def job(self, homes=None, tensors=None, before=(), **document):
        Checkpoints.serial += 1
        policy = {"density": 0.02, **document}
        job = Job(self.cluster, BUILD, f"checkpoint{Checkpoints.serial}", homes or HOMES,
                  tensors or TENSORS, text(**policy), before=before)
        self.addCleanup(job.kill)
        return job

    def traced(self, job, name):
        """From now on rank 0 writes its updates."""
        path = os.path.join(self.folder, name)
        job.ranks[0].do(f"trace {path}")
        return path

    def verified(self, job, nodes=(0, 1)):
        for node in nodes:
            code, out, error = self.cluster.daemons[node].ask("verify", job.name)
            self.assertEqual(code, 0, out + error)

    # ---- the same world

    def go_on(self, saved=7, more=6, homes=None, **document):
        """Trains, saves, ends; a new run goes on as the first would have."""
        folder = self.path("saved")
        with self.job(homes, **document) as job:
            job.join()
            job.each("gradients random 5")
            self.assertEqual(job.steps(saved)[0], "ok")
            job.each(f"save {folder}")
            undisturbed = self.traced(job, "undisturbed")
            self.assertEqual(job.steps(more)[0], "ok")
        with self.job(homes, **document) as job:
            job.join()
            loaded = set(job.each("gradients random 5", f"load {folder}"))
            self.assertEqual(loaded, {f"{saved} {len(homes or HOMES)} 1"})
            job.each(f"skip {saved}")
            resumed = self.traced(job, "resumed")
            self.assertEqual(job.steps(more)[0], "ok")
            self.verified(job)
            # The second generation counts all steps.
            again = self.path("again")
            job.each(f"save {again}")
        with self.job(homes, **document) as job:
            job.join()
            self.assertEqual(set(job.each(f"load {again}")),
                             {f"{saved + more} {len(homes or HOMES)} 1"})
        with open(undisturbed, "rb") as one, open(resumed, "rb") as other:
            first, second = one.read(), other.read()
        self.assertGreater(len(first), 0)
        self.assertTrue(first == second, "the updates differ")

    def test_goes_on(self):
        self.go_on()

    def test_bf16_residuals(self):
        self.go_on(sparsifier="topk", residual="bf16")

    def test_momentum(self):
        self.go_on(sparsifier="topk", momentum=0.9, clip=1.0)

    def test_scope_rank(self):
        self.go_on(scope="rank")

    def test_trainers_elsewhere(self):
        self.go_on(homes=["r0", 0, "r1"])

    def test_random_choices(self):
        """The new run has another name, so its own seed would be another one."""
        self.go_on(sparsifier="randomk")
        self.go_on(sparsifier="dgc", values="int8")

    def test_thresholds(self):
        self.go_on(saved=20, interleave=True, fibre_turns=1, global_turns=1, estimate=True)
        self.go_on(sparsifier="sidco")
        self.go_on(saved=40, interleave=True, adaptive=True)

    def test_other_sums(self):
        self.go_on(reduce="sum", beta=0.9, sparse_collective="balanced")
        self.go_on(sparsifier="dense", dense_values="bf16")

    def test_training_goes_on_after_saving(self):
        with open(os.path.join(self.path("saved"), f"rank-2.adtopk.{32 * 'a'}.tmp"), "wb"):
            pass  # a trainer was killed while it saved
        with self.job() as job:
            job.join()
            job.each("gradients random 5")
            for _ in range(3):
                self.assertEqual(job.steps(2)[0], "ok")
                job.each(f"save {self.path('saved')}")
            self.verified(job)
        self.assertEqual(sorted(os.listdir(self.path("saved"))), ["rank-0.adtopk", "rank-2.adtopk"])

    # ---- an operator asks for one

    def statistics(self, node, job):
        return next(found for found in self.cluster.stats(node)["jobs"] if found["name"] == job.name)

    def heard(self, job, *nodes):
        """Trains while operators ask these nodes, and saves when the ranks hear of it: the steps after
        which they did, and the answers."""
        steps = []
        with ThreadPoolExecutor(len(nodes)) as pool:
            asked = [pool.submit(self.cluster.daemons[node].ask, "--json", "checkpoint", "ask",
                                 job.name, timeout=60) for node in nodes]
            while not all(answer.done() for answer in asked):
                done = job.steps(1)[1]
                due = job.each("due")
                self.assertEqual(len(set(due)), 1, f"after step {done} some ranks are told to save, some not")
                if due[0] == "1":
                    steps.append(done)
                    job.each(f"save {self.path('asked')}")
        return steps, [answer.result() for answer in asked]

    def test_asked_for(self):
        with self.job(["r0", 0, 1]) as job:
            job.join()
            job.each("gradients random 5")
            for nodes in ((1,), (0, 1)):  # the coordinator is node 0
                self.assertEqual(job.steps(2)[0], "ok")
                self.assertEqual(set(job.each("due")), {"0"})
                steps, answers = self.heard(job, *nodes)
                self.assertLessEqual(len(steps), len(nodes))
                for code, out, error in answers:
                    self.assertEqual(code, 0, error)
                    answer = json.loads(out)
                    self.assertIn(answer["step"], steps)
                    self.assertIs(answer["saved"], True)
            for node in (0, 1):
                found = self.statistics(node, job)
                self.assertEqual([found[f"checkpoint_{what}"] for what in ("due", "read", "saved")],
                                 [steps[-1]] * 3)
                code, out, error = self.cluster.daemons[node].ask("stats", job.name)
                self.assertIn(f"checkpoint  asked for after step {steps[-1]}; saved after step {steps[-1]}\n",
                              out)
            code, out, error = self.cluster.daemons[0].ask("checkpoint", "check", self.path("asked"))
            self.assertEqual(code, 0, error)
            self.assertIn(f"after step {steps[-1]},", out)
            self.assertEqual(job.steps(2)[0], "ok")
            self.assertEqual(set(job.each("due")), {"0"})
            job.each("push w")
            job.ranks[0].send("due")
            self.assertEqual(job.ranks[0].error()[0], "state")  # in mid-step
            self.assertEqual(job.steps(1)[0], "ok")
            self.verified(job)

    def answer(self, job, save):
        """What an operator hears who asks for a checkpoint, for which the ranks do `save`; and the step."""
        self.assertEqual(job.steps(2)[0], "ok")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.cluster.daemons[0].ask, "checkpoint", "ask", job.name, timeout=60)
            while not asked.done():
                done = job.steps(1)[1]
                if job.each("due")[0] == "1":
                    step = done
                    save()
            return step, *asked.result()

    def all_refused(self, job, command):
        """All ranks are refused a command with the same status, which it returns with rank 0's sentence."""
        for rank in job.ranks:
            rank.send(command(rank))
        said = [rank.error() for rank in job.ranks]
        self.assertEqual(len({status for status, _ in said}), 1, said)
        return said[0]

    def test_asked_and_saved_in_another_way(self):
        with self.job() as job:
            job.join()
            job.each("gradients random 5")
            step, code, _, error = self.answer(job, lambda: job.each("saved 1"))
            self.assertEqual(code, 0, error)
            self.assertEqual(self.statistics(0, job)["checkpoint_saved"], step)
            told = []
            bad = job.ranks[-1]
            _, code, _, error = self.answer(
                job, lambda: told.append(self.all_refused(job, lambda rank: f"saved {int(rank is not bad)}")))
            self.assertEqual(code, 1, error)
            self.assertIn("have not saved it", error)
            self.assertEqual(told[0][0], "system")
            self.assertIn(f"rank {bad.rank} refused", told[0][1])
            self.assertEqual(self.statistics(0, job)["checkpoint_saved"], step)
            job.each("push w")
            job.ranks[0].send("saved 1")
            self.assertEqual(job.ranks[0].error()[0], "state")  # in mid-step
            self.assertEqual(job.steps(1)[0], "ok")
            self.verified(job)

    def test_asked_and_not_saved(self):
        """A rank cannot save, or no rank says that it has: the operator hears it."""
        with self.job() as job:
            job.join()
            job.each("gradients random 5")
            for saves in (True, False):
                def save():
                    if saves:  # the other node has no such folder
                        status, _ = self.all_refused(job, lambda rank: (
                            f"save {self.path('asked')}" + "/nowhere" * (rank is job.ranks[-1])))
                        self.assertEqual(status, "lost")
                step, code, _, error = self.answer(job, save)
                self.assertEqual(code, 1 if saves else 6, error)
                self.assertIn(f"began a checkpoint after step {step}, and have not saved it" if saves else
                              f"did not say that they have saved a checkpoint after step {step}", error)
                found = self.statistics(0, job)
                self.assertEqual([found["checkpoint_read"] is not None, found["checkpoint_saved"]],
                                 [True, None])
            self.verified(job)

    def test_asked_in_vain(self):
        daemon = self.cluster.daemons[0]
        code, _, error = daemon.ask("checkpoint", "ask", "nowhere")
        self.assertEqual((code, error),
                         (1, 'adtopkctl: no job "nowhere" has ranks on this node\n'))
        with self.job() as job:
            for rank in job.ranks:
                rank.do(rank.opening, *job.registrations())
            job.ranks[0].send("due")
            self.assertEqual(job.ranks[0].error()[0], "state")  # before commit
            code, _, error = daemon.ask("checkpoint", "ask", job.name)
            self.assertEqual(code, 1)
            self.assertIn("the job is not running", error)
            job.each("commit", "gradients random 5")
            code, _, error = daemon.ask("checkpoint", "ask", "--timeout", "100", job.name)
            self.assertEqual(code, 6, error)  # no rank trains
            self.assertEqual(job.steps(2)[0], "ok")  # the request stays
            self.assertIsNotNone(self.statistics(0, job)["checkpoint_due"])

    # ---- another world

    def totals(self, job):
        """Sums over all elements and ranks of the gradients, and of one rank's updates."""
        given, got = {}, {}
        for rank in job.ranks:
            path = os.path.join(self.folder, f"totals{rank.rank}")
            rank.do(f"write-totals {path}")
            values, at = read_floats(path, "d"), 0
            for name, _, _, shape in job.tensors:
                count = 1
                for size in shape:
                    count *= size
                pushed = values[at:at + count]
                given[name] = [a + b for a, b in zip(given.get(name, [0] * count), pushed)]
                got[name] = values[at + count:at + 2 * count]
                at += 2 * count
        return given, got

    def conserve(self, before, after, **document):
        """What the first run did not send the second one does, in units of its updates."""
        folder = self.path("saved")
        mean = document.get("reduce", "mean") == "mean"
        with self.job(before, before=["totals"], **document) as job:
            job.join()
            job.each("gradients random 5")
            self.assertEqual(job.steps(6)[0], "ok")
            job.each(f"save {folder}")
            given, got = self.totals(job)
        with self.job(after, before=["totals"], **document) as job:
            job.join()
            self.assertEqual(set(job.each(f"load {folder}")), {f"6 {len(before)} 0"})
            self.verified(job, sorted(set(after)))
            job.each("gradients zero 0")
            self.assertEqual(job.steps(60)[0], "ok")
            self.verified(job, sorted(set(after)))
            _, later = self.totals(job)
        for name in given:
            scale = len(before) if mean else 1
            missing = [a / scale - b for a, b in zip(given[name], got[name])]
            if document.get("residual") == "bf16":  # elements exchange what rounding cuts off
                limit = 1e-5 * sum(abs(one) for one in given[name]) / scale
                self.assertLess(abs(sum(missing) - sum(later[name])), limit, name)
                continue
            limit = 1e-5 * max(abs(one) for one in given[name]) / scale
            self.assertLess(max(abs(a - b) for a, b in zip(missing, later[name])), limit, name)

    def test_fewer_nodes(self):
        self.conserve([0, 0, 1, 2], [0, 0], density=0.1, values="f32")

    def test_more_nodes(self):
        self.conserve([0, 0], [0, 1, 2, 2], density=0.1, values="f32")

    def test_other_worlds(self):
        self.conserve([0, 1, 2], [1, 2], density=0.1, values="f32", reduce="sum")
        self.conserve([0, 0, 1], [0, 1], density=0.1, values="f32", scope="rank")
        self.conserve([0, 1, 2], [0], density=0.1, values="bf16", residual="bf16",
                      sparsifier="topk")

    def test_ranks_moved(self):
        self.conserve([0, 0, 1], [0, 1, 1], density=0.1, values="f32")

    def test_other_policy(self):
        """Residuals fit another policy: from bf16 to f32 and back, with and without velocities."""
        one = {"sparsifier": "topk", "residual": "bf16"}
        for then, now in ((one, {"momentum": 0.9}), ({"momentum": 0.9}, one),
                          ({"scope": "rank"}, one), (one, {"scope": "rank"})):
            folder = self.path("saved")
            with self.job(**then) as job:
                job.join()
                job.each("gradients random 5")
                job.steps(5)
                job.each(f"save {folder}")
            with self.job(**now) as job:
                job.join()
                job.each(f"load {folder}", "gradients random 6")
                self.assertEqual(job.steps(3)[0], "ok")
                self.verified(job)

    # ---- the example trainer

    def test_killed_trainer(self):
        """All ranks of a training are killed; it goes on from a checkpoint for which an operator asked, and
        ends as an undisturbed one does."""
        data = digits.unpack(self.folder)
        policy = os.path.join(self.folder, "policy.json")
        with open(policy, "w", encoding="utf-8") as out:
            out.write(text(density=0.01, sparsifier="dgc", values="int8"))
        common = ["--steps", "120", "--policy", policy]
        undisturbed = digits.parameters(self, digits.start(
            self, self.cluster, HOMES, data, *common, "--job", "one"))
        folder = os.path.join(self.folder, "digits")
        saving = ["--checkpoint", folder, "--checkpoint-every", "20", "--job", "one"]
        latest = os.path.join(folder, "latest")
        killed = digits.start(self, self.cluster, HOMES, data, *common, *saving, "--checkpoint-every", "1000")
        deadline, code = time.monotonic() + 60, 1
        while code != 0 and time.monotonic() < deadline:
            code, out, error = self.cluster.daemons[1].ask("--json", "checkpoint", "ask", "one")
        self.assertEqual(code, 0, error)
        while not os.path.exists(latest) and time.monotonic() < deadline:
            time.sleep(0.001)
        for process in killed:
            process.kill()
        for process in killed:
            process.wait()
        with open(latest, encoding="utf-8") as file:
            self.assertEqual(int(file.read()), json.loads(out)["step"])
        resumed = digits.start(self, self.cluster, HOMES, data, *common, *saving, "--resume")
        self.assertEqual(digits.parameters(self, resumed), undisturbed)
        # Another number of ranks goes on, too.
        fewer = digits.start(self, self.cluster, [0, 1], data, "--steps", "140", "--policy", policy,
                             *saving, "--resume")
        digits.parameters(self, fewer)

    def test_trainer_without_rank_0(self):
        """The node of rank 0 is lost. The others save when they are asked, end with the same parameters, and go
        on from what they saved."""
        data = digits.unpack(self.folder)
        policy, folder = os.path.join(self.folder, "policy.json"), os.path.join(self.folder, "digits")
        with open(policy, "w", encoding="utf-8") as out:
            out.write(text(density=0.01, on_peer_loss="shrink", shrink_after=0.5))
        common = ["--policy", policy, "--checkpoint", folder, "--job", "lost"]
        with Cluster(BUILD, nodes=3, settings={"peer_timeout_ms": 1500, "heartbeat_ms": 200}) as cluster:
            ranks = digits.start(self, cluster, [0, 1, 2], data, "--steps", "500", *common,
                                 "--checkpoint-every", "1000")
            wait_for(lambda: [job for job in cluster.status(1)["jobs"] if job["steps_done"] > 5])
            cluster.daemons[0].kill()
            ranks[0].kill()
            wait_for(lambda: "lost_nodes" in cluster.status(1)["jobs"][0])
            code, out, error = cluster.daemons[1].ask("--json", "checkpoint", "ask", "lost")
            self.assertEqual(code, 0, error)
            digits.parameters(self, ranks[1:])
            self.assertTrue(os.path.isdir(os.path.join(folder, f"step-{json.loads(out)['step']}")))
            with open(os.path.join(folder, "latest"), encoding="utf-8") as file:
                self.assertEqual(int(file.read()), 500, "the last step is saved, too")
        resumed = digits.start(self, self.cluster, [0, 1], data, "--steps", "520", *common, "--resume")
        digits.parameters(self, resumed)

    # ---- what is refused

    def refused(self, job, command, status, *words, own=None):
        """Every rank gets an error; the words are in that of the rank `own`."""
        for rank in job.ranks:
            rank.send(command if isinstance(command, str) else command[rank.rank])
        for rank in job.ranks:
            got, sentence = rank.error()
            self.assertEqual(got, status, sentence)
            if own in (None, rank.rank):
                for word in words:
                    self.assertIn(word, sentence)

    def saved(self, **document):
        folder = self.path("saved")
        with self.job(**document) as job:
            job.join()
            job.each("gradients random 5")
            job.steps(4)
            job.each(f"save {folder}")
        return folder

    def test_other_model(self):
        folder = self.saved()
        for tensors, word in (
                ([*TENSORS[:1], ("other", "f32", "dense", (64,)), *TENSORS[2:]], '"other"'),
                ([*TENSORS[:3], ("long", "f32", "list", (9000, 3))], '"long"'),
                ([*TENSORS[:2], ("half", "f16", "dense", (100, 130)), TENSORS[3]], '"half"'),
                (TENSORS[:3], "4 tensors"), ([*TENSORS, ("more", "f32", "dense", (9, 9))], "4 tensors")):
            with self.job(tensors=tensors) as job:
                job.join()
                self.refused(job, f"load {folder}", "mismatch", word, own=0)
                # Nothing was changed, and the daemons still take steps.
                self.assertEqual(job.steps(1)[0], "ok")

    def test_moments(self):
        folder = self.saved()
        with self.job() as job:
            job.join()
            job.each("gradients random 5")
            job.steps(1)
            self.refused(job, f"load {folder}", "state", "before the first step", own=0)
        with self.job() as job:
            job.join()
            job.each(f"load {folder}")
            self.refused(job, f"load {folder}", "state", "has loaded one", own=0)
            job.each("gradients random 5")
            self.assertEqual(job.steps(1)[0], "ok")
        with self.job() as job:
            job.join()
            job.each("gradients random 5", "push 0")
            self.refused(job, f"save {folder}", "state", "in step 0")
            self.refused(job, f"load {folder}", "state", "in step 0")

    def test_arguments(self):
        """A wrong argument of one rank is told to all, whichever rank that is."""
        folder = self.saved()
        with self.job() as job:
            job.join()
            for own, wrong, words in ((0, "save none", "folder is NULL"), (1, "save empty", 'folder is ""'),
                                      (2, "load none", "folder is NULL"), (0, "load empty", 'folder is ""'),
                                      (1, f"load-unsized {folder}", "struct adtopk_checkpoint")):
                commands = [f"{wrong.split('-')[0].split()[0]} {folder}"] * len(job.ranks)
                commands[own] = wrong
                self.refused(job, commands, "argument", words, own=own)
                self.refused(job, commands, "argument", f"rank {own} refused", own=(own + 1) % 3)
            # Nothing was changed.
            job.each(f"load {folder}", "gradients random 5")
            self.assertEqual(job.steps(1)[0], "ok")
            job.each(f"save {folder}")
            self.verified(job)

    def test_files(self):
        folder = self.saved()
        other = self.path("other")
        with self.job() as job:
            job.join()
            self.refused(job, f"load {self.path('empty')}", "lost", "has no checkpoint", own=0)
            self.refused(job, "load /nowhere", "lost", "/nowhere", own=0)
            self.refused(job, "save /nowhere", "lost", "/nowhere", own=0)
            # One rank names another checkpoint than the others.
            job.each(f"save {other}")
            commands = [f"load {folder}", f"load {folder}", f"load {other}"]
            self.refused(job, commands, "mismatch", "another one than rank 0", own=2)
            self.refused(job, commands, "mismatch", "rank 2 refused", own=0)
            # Two files that were not saved together.
            shutil.copy(os.path.join(other, "rank-2.adtopk"), folder)
            self.refused(job, f"load {folder}", "mismatch", "not saved together", own=2)
            self.assertEqual(job.steps(1)[0], "ok")

    def test_checked(self):
        folder = self.saved()
        daemon = self.cluster.daemons[0]
        code, out, error = daemon.ask("checkpoint", "check", folder)
        self.assertEqual(code, 0, error)
        self.assertEqual([line.split()[-1] for line in out.splitlines()[2:]], ["good", "good"])
        document = json.loads(daemon.ask("--json", "checkpoint", "check", folder)[1])
        self.assertEqual((document["step"], document["world_size"], document["good"]), (4, 3, True))
        self.assertEqual(document["unfinished"], [])
        left = f"rank-0.adtopk.{32 * 'a'}.tmp"
        for name in (left, "rank-0.adtopk.tmp", f"rank-00.adtopk.{32 * 'a'}.tmp"):
            with open(os.path.join(folder, name), "wb"):
                pass
        code, out, _ = daemon.ask("checkpoint", "check", folder)
        self.assertEqual((code, out.splitlines()[4:]), (0, [f"{left} is of a save that has not ended"]))
        os.unlink(os.path.join(folder, left))
        with open(os.path.join(folder, "rank-2.adtopk"), "r+b") as file:
            file.seek(-9, os.SEEK_END)
            file.write(b"x")
        code, out, _ = daemon.ask("checkpoint", "check", folder)
        self.assertEqual((code, out.splitlines()[-1].count("the checksum of a block")), (1, 1))
        os.unlink(os.path.join(folder, "rank-2.adtopk"))
        self.assertEqual(daemon.ask("checkpoint", "check", folder)[0], 1)
        self.assertEqual(daemon.ask("checkpoint", "check", self.path("empty"))[0], 1)

    def test_forged(self):
        """An id of zeros, under right checksums, is an id like others."""
        folder = self.saved()
        for name in ("rank-0.adtopk", "rank-2.adtopk"):
            with open(os.path.join(folder, name), "r+b") as file:
                fixed, data = file.read(32), bytearray(file.read())
                size = struct.unpack_from("<I", fixed, 12)[0]
                self.assertEqual(data[:2], b"\x0a\x10")  # 16 bytes, the first field
                data[2:18] = bytes(16)
                fixed = fixed[:24] + struct.pack("<I", crc32c(data[:size]))
                file.seek(0)
                file.write(fixed + struct.pack("<I", crc32c(fixed)) + data[:size])
        with self.job() as job:
            job.join()
            self.refused(job, f"load {folder}", "lost", "the checksum of a block", own=2)
            job.each("gradients random 5")
            self.assertEqual(job.steps(1)[0], "ok")

    def test_damaged(self):
        folder = self.saved()
        path = os.path.join(folder, "rank-2.adtopk")
        with open(path, "rb") as file:
            whole = file.read()
        with self.job() as job:
            job.join()
            for damaged in (whole[:-1], whole[:1000], b"", whole + b"x",
                            whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:],
                            b"x" + whole[1:]):
                with open(path, "wb") as file:
                    file.write(damaged)
                self.refused(job, f"load {folder}", "lost", "rank-2.adtopk is damaged", own=2)
                self.refused(job, f"load {folder}", "lost", "rank 2 refused", own=0)
            os.unlink(path)
            self.refused(job, f"load {folder}", "lost", "rank-2.adtopk", own=2)
            with open(path, "wb") as file:
                file.write(whole)
            job.each(f"load {folder}", "gradients random 5")
            self.assertEqual(job.steps(1)[0], "ok")


class Kills(unittest.TestCase):
    """Daemons die while a checkpoint is saved, while it is loaded, and before the first step."""

    TENSORS = [*TENSORS, ("large", "f32", "dense", (1400, 1500))]
    SEEDS = range(25) if os.environ.get("ADTOPK_TEST_LONG") == "1" else range(3)

    def job(self, cluster, name):
        job = Job(cluster, BUILD, name, HOMES, self.TENSORS, text(density=0.02, sparsifier="topk",
                                                                  residual="bf16"))
        self.addCleanup(job.kill)
        job.join()
        job.each("gradients random 5")
        return job

    def disturbed(self, cluster, job, command, draw):
        """All ranks do it while daemons are killed or stopped, and started again."""
        for rank in job.ranks:
            rank.send(command)
        for _ in range(2):
            time.sleep(draw.uniform(0, 0.03))
            node = draw.randrange(2)
            draw.choice((cluster.daemons[node].kill, cluster.daemons[node].stop))()
            cluster.restart(node)
        return {rank.answer() for rank in job.ranks}

    def check(self, seed):
        draw = random.Random(seed)
        with StoreCluster() as cluster, tempfile.TemporaryDirectory(dir="/tmp") as folder:
            with self.job(cluster, "first") as job:
                self.assertEqual(job.steps(4)[0], "ok")
                self.assertEqual(self.disturbed(cluster, job, f"save {folder}", draw), {""})
                wanted = os.path.join(folder, "wanted")
                job.ranks[0].do(f"trace {wanted}")
                self.assertEqual(job.steps(3)[0], "ok")
            with self.job(cluster, "second") as job:
                self.assertEqual(self.disturbed(cluster, job, f"load {folder}", draw), {"4 3 1"})
                self.disturbed(cluster, job, "skip 4", draw)
                got = os.path.join(folder, "got")
                job.ranks[0].do(f"trace {got}")
                self.assertEqual(job.steps(3)[0], "ok")
                self.assertEqual(cluster.daemons[1].ask("verify", "second")[0], 0)
            with open(wanted, "rb") as one, open(got, "rb") as other:
                self.assertTrue(one.read() == other.read(), "the updates differ")

    def test_asked_while_a_daemon_dies(self):
        """It is asked of one node while the other's daemon is killed: all ranks hear the same."""
        with StoreCluster() as cluster, ThreadPoolExecutor(1) as pool, self.job(cluster, "asked") as job, \
                tempfile.TemporaryDirectory() as folder:
            for killed in (1, 0):
                self.assertEqual(job.steps(2)[0], "ok")
                asked = pool.submit(cluster.daemons[1 - killed].ask, "--json", "checkpoint", "ask",
                                    "asked", timeout=60)
                due = ["0"]
                while due[0] == "0" and not (asked.done() and asked.result()[0] != 0):
                    for rank in job.ranks:
                        rank.send("steps 1")
                    if cluster.daemons[killed].process.poll() is None and not asked.done():
                        cluster.daemons[killed].kill()
                        cluster.restart(killed)
                    self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)
                    due = job.each("due")
                    self.assertEqual(len(set(due)), 1)
                job.each(f"save {folder}")
                code, out, error = asked.result()
                self.assertEqual(code, 0, error)
                self.assertEqual(json.loads(out)["step"], cluster.status(0)["jobs"][0]["steps_done"])

    def test_killed_daemons(self):
        for seed in self.SEEDS:
            with self.subTest(seed=seed):
                self.check(seed)


if __name__ == "__main__":
    unittest.main(verbosity=2)
