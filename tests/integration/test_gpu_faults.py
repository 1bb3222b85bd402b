#!/usr/bin/env python3
"""What harms a GPU node from outside: faults that MPS spreads, and clients below the library.

libcuda is the library that stands in for it; see test_gpu.py.

usage: test_gpu_faults.py BUILD [unittest's arguments]
"""
import contextlib
import mmap
import os
import random
import signal
import struct
import tempfile
import time
import unittest

from build import BUILD
from cluster import PATIENCE, Cluster
from control import user
from ranks import Job
from rawclient import (ARENA, COMMIT, MAPPED, PUSH, READY, STEP_END, RawClient, field,
                       register_request, tensor)
from service import wait_for
from test_gpu import DRIVER, PROGRAM, TENSORS, gpu_cluster, text, workers

GPU = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a00"  # and a digit
STRANGER = 54321  # a user


def text_of(folder, name):
    """A file's only line, without its end; "" while there is none."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as content:
        return content.read().strip()


class Mps(unittest.TestCase):
    """What MPS does to processes that share a GPU by it."""

    CONTROL = """#!/bin/sh
read command
echo "$command" >>"$CUDA_MPS_PIPE_DIRECTORY/commands"
case $command in
    get_server_list) echo 4711 ;;
    get_client_list*) cat "$CUDA_MPS_PIPE_DIRECTORY/clients" ;;
esac
"""

    def shared(self, control=CONTROL):
        """The environment of processes that share GPUs, with a control program, by default one that
        notes what it is asked for; and the folder."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = os.path.join(folder.name, "nvidia-cuda-mps-control")
        with open(program, "w", encoding="utf-8") as out:
            out.write(control)
        os.chmod(program, 0o755)
        with open(os.path.join(folder.name, "control"), "w", encoding="utf-8"):
            pass
        return {"CUDA_MPS_PIPE_DIRECTORY": folder.name,
                "PATH": f"{folder.name}:{os.environ['PATH']}",
                "ADTOPK_TEST_CUDA_FAULT": os.path.join(folder.name, "fault")}, folder.name

    def updates(self, cluster, while_training):
        with cluster, Job(cluster, BUILD, "job", [0, 0], TENSORS, text({"density": 0.05})) as job:
            job.join()
            job.each("gradients random 3")
            before = job.steps(2)
            job.ranks[0].send("steps 40")
            while_training(cluster, lambda: job.ranks[1].send("steps 40"))
            return before, {rank.answer() for rank in job.ranks}

    def test_fault_of_a_trainer(self):
        """It spoils every context on the GPU. The worker comes back, and updates keep their bits. MPS
        ends what is left of a worker before its successor starts."""
        shared, folder = self.shared()
        dead = []

        def fault(cluster, train):
            with Job(cluster, BUILD, "culprit", [0], TENSORS, variables={**DRIVER, **shared},
                     devices=["- arena"]) as culprit:
                culprit.join()
                dead.append(workers(cluster, 0)[0]["pid"])
                with open(os.path.join(folder, "clients"), "w", encoding="utf-8") as out:
                    out.write(f"1{dead[0]}\n{dead[0]}\n")
                train()  # all steps are to come
                with open(os.path.join(folder, "fault"), "w", encoding="utf-8"):
                    pass
                culprit.ranks[0].send("steps 3")
                self.assertIn("illegal memory access", culprit.ranks[0].error()[1])
                culprit.kill()
            wait_for(lambda: workers(cluster, 0)[0]["starts"] == 2)
            self.assertIn("an illegal memory access", workers(cluster, 0)[0]["trouble"])

        expected = self.updates(Cluster(BUILD, nodes=1), lambda cluster, train: train())
        self.assertEqual(self.updates(gpu_cluster(1, variables=shared), fault), expected)
        with open(os.path.join(folder, "commands"), encoding="utf-8") as commands:
            self.assertEqual(commands.read().splitlines(),
                             ["get_server_list", "get_client_list 4711",
                              f"terminate_client 4711 {dead[0]}"])

    def test_not_terminated(self):
        """The worker comes back all the same, and the log says what MPS did not do."""
        refusing = self.CONTROL.replace("esac", "    term*) echo Not permitted ;;\nesac")
        for control, reason in (("#!/bin/sh\necho Cannot find the daemon\nexit 1\n",
                                 "not terminated by .*control: Cannot find the daemon"),
                                ("#!/nowhere\n", "not terminated by .*control: .*: not found"),
                                (self.CONTROL, ""),  # which has dropped this client already
                                (refusing, "terminated by .*control, which said: Not permitted")):
            shared, folder = self.shared(control)
            with self.subTest(reason), gpu_cluster(1, variables=shared) as cluster, \
                    Job(cluster, BUILD, "job", [0], TENSORS) as job:
                self.assertEqual(job.join().steps(2)[0], "ok")
                pid = workers(cluster, 0)[0]["pid"]
                with open(os.path.join(folder, "clients"), "w", encoding="utf-8") as out:
                    out.write(f"1{pid}\n" if control == self.CONTROL else f"{pid}\n")
                os.kill(pid, signal.SIGKILL)
                self.assertEqual(job.steps(2)[0], "ok")
                if reason:
                    self.assertRegex(cluster.daemons[0].log(), reason)
                else:
                    self.assertNotIn("terminated", cluster.daemons[0].log())

    def test_driver_that_does_not_say(self):
        """An older driver does not tell whether MPS shares a GPU. So MPS is asked, as if it did."""
        for control, reason in (("#!/bin/sh\necho Cannot find the daemon\nexit 1\n",
                                 "not terminated by .*control, and the driver does not say whether MPS "
                                 "shares the GPU: Cannot find the daemon"),
                                (self.CONTROL, "")):
            shared, folder = self.shared(control)
            with self.subTest(reason), \
                    gpu_cluster(1, variables={**shared, "ADTOPK_TEST_CUDA_VERSION": "12000"}) as cluster, \
                    Job(cluster, BUILD, "job", [0], TENSORS) as job:
                self.assertEqual(job.join().steps(2)[0], "ok")
                self.assertIsNone(cluster.status(0)["devices"][0]["mps"])
                self.assertIn("whether MPS runs is unknown", cluster.daemons[0].ask("status")[1])
                pid = workers(cluster, 0)[0]["pid"]
                with open(os.path.join(folder, "clients"), "w", encoding="utf-8") as out:
                    out.write(f"{pid}\n")
                os.kill(pid, signal.SIGKILL)
                self.assertEqual(job.steps(2)[0], "ok")
                if reason:
                    self.assertRegex(cluster.daemons[0].log(), reason)
                else:
                    with open(os.path.join(folder, "commands"), encoding="utf-8") as commands:
                        self.assertIn(f"terminate_client 4711 {pid}", commands.read())

    def stop(self):
        """How long the daemon takes to stop while the control program hangs."""
        shared, folder = self.shared("#!/bin/sh\necho $$ >\"$CUDA_MPS_PIPE_DIRECTORY/hangs\"\n"
                                     "exec sleep 60\n")
        with gpu_cluster(1, variables=shared) as cluster, \
                Job(cluster, BUILD, "job", [0], TENSORS) as job:
            self.assertEqual(job.join().steps(2)[0], "ok")
            os.kill(workers(cluster, 0)[0]["pid"], signal.SIGKILL)
            wait_for(lambda: text_of(folder, "hangs"))
            began = time.monotonic()
            cluster.daemons[0].process.terminate()
            self.assertEqual(cluster.daemons[0].process.wait(PATIENCE), 0)
            took = time.monotonic() - began
            wait_for(lambda: not os.path.exists(f"/proc/{text_of(folder, 'hangs')}"))
            job.kill()
        return took

    def test_control_program_that_hangs(self):
        """The daemon stops all the same, does not wait for its 3 s, and leaves no process behind."""
        self.assertTrue(any(self.stop() < 2.5 for _ in range(5)))  # a busy machine has five tries


@unittest.skipUnless(os.getuid() == 0, "only root can be two users")
class Owners(unittest.TestCase):
    """Users have workers of their own on a GPU, which work at the same time."""

    KILLS = 50 if "ADTOPK_TEST_LONG" in os.environ else 6

    def job(self, cluster, **ranks):
        job = Job(cluster, BUILD, "job", [0, 0], TENSORS, text({"density": 0.05}), **ranks)
        self.addCleanup(job.kill)
        job.join()
        job.each("gradients random 3")
        return job

    def train(self, jobs, meanwhile=lambda: None):
        """The updates of each job, whose steps are under way at once."""
        for job in jobs:
            for rank in job.ranks:
                rank.send("steps 8")
        meanwhile()
        found = []
        for job in jobs:
            answers = {rank.answer() for rank in job.ranks}
            self.assertEqual(len(answers), 1)
            found.append(answers.pop())
        return found

    def test_worker_of_another(self):
        """Its death does not concern the other's job: neither its bits nor its worker."""
        with gpu_cluster(1) as cluster:
            alone = self.job(cluster)
            expected = [self.train([alone])[0] for _ in range(self.KILLS)]
            alone.end()
        draw = random.Random(9)
        with gpu_cluster(1, variables={"ADTOPK_TEST_CUDA_KERNEL_US": "200"}) as cluster:
            os.chmod(cluster.directory, 0o755)
            try:
                jobs = [self.job(cluster), self.job(cluster, prepare=user(STRANGER))]
            except PermissionError:
                self.skipTest("other users cannot run the programs of this build")

            def worker(owner):
                return [one for one in workers(cluster, 0) if one["owner"] == owner][0]

            def kill():
                time.sleep(draw.uniform(0, 0.05))
                pid = worker(STRANGER)["pid"]
                if pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

            found = [self.train(jobs, kill) for _ in range(self.KILLS)]
            self.assertEqual(found, [[one, one] for one in expected])
            self.assertGreater(worker(STRANGER)["starts"], self.KILLS // 2)
            self.assertEqual((worker(os.getuid())["starts"], worker(os.getuid())["trouble"]), (1, ""))
            self.assertEqual(len(cluster.status(0)["devices"]), 1)
            for job in jobs:
                job.end()
            cluster.stop()


class Releases(unittest.TestCase):
    """adtopk-device is replaced while adtopkd of an earlier release runs."""

    def test_other_worker(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = os.path.join(folder.name, "adtopk-device")
        os.symlink(PROGRAM, program)
        with gpu_cluster(1, variables={"ADTOPK_DEVICE_PROGRAM": program}) as cluster, \
                Job(cluster, BUILD, "job", [0], TENSORS) as job:
            self.assertEqual(job.join().steps(2)[0], "ok")
            os.unlink(program)
            os.symlink(os.path.join(BUILD, "tests", "integration", "adtopk-device-other"), program)
            self.assertEqual(job.steps(2)[0], "ok")
            os.kill(workers(cluster, 0)[0]["pid"], signal.SIGKILL)
            job.ranks[0].send("steps 2")
            self.assertIn("has lost the residuals", job.ranks[0].error()[1])
            self.assertRegex(cluster.daemons[0].log(), "the last time: its program is of release 0.0.9, "
                                                       "and adtopkd of .*: restart adtopkd")
            job.kill()


class Hostile(unittest.TestCase):
    """A client below the library, which has no driver and says what it likes."""

    ON_GPU = field(8, 1) + field(9, f"{GPU}0")

    def test_forged(self):
        with gpu_cluster(1) as cluster, \
                Job(cluster, BUILD, "other", [0], TENSORS, variables=DRIVER,
                    devices=["- arena"]) as other:
            other.join()
            path = cluster.address(0).removeprefix("unix:")
            self.refuses(path, field(8, 4), "a kind of memory that this daemon does not serve")
            self.refuses(path, field(8, 1), "its device is no UUID")
            self.refuses(path, field(8, 1) + field(9, "GPU-\x1b[2J"), "its device is no UUID")
            self.refuses(path, field(8, 1) + field(9, "G" * 4000), "its device is no UUID")
            self.pushes(path)
            self.assertEqual(other.steps(3)[0], "ok")
            cluster.stop()

    def test_updates_of_some_tensors(self):
        with gpu_cluster(1) as cluster, RawClient(cluster.address(0).removeprefix("unix:")) as raw:
            there = field(8, 2) + field(9, f"{GPU}0")
            raw.open("raw")
            raw.send(register_request(tensor("a", more=there), tensor("b", more=self.ON_GPU)),
                     COMMIT)
            self.assertIn("updates of tensor 'b' not on its GPU", raw.refusal()[1])

    def test_engine_in_host_memory(self):
        """The client's library looks first. The daemon refuses, too."""
        with gpu_cluster(1, hosts=1) as cluster:
            self.refuses(cluster.address(0).removeprefix("unix:"), self.ON_GPU,
                         "and this daemon works in host memory")

    def refuses(self, path, more, sentence):
        with RawClient(path) as client:
            client.open("raw")
            client.send(register_request(tensor(more=more)), COMMIT)
            self.assertIn(sentence, client.refusal()[1])

    def pushes(self, path):
        """Pushes what no stream has written, then writes any number into the flag."""
        with RawClient(path) as client:
            client.open("raw", policy=text({"lookahead": 0}))
            client.send(register_request(tensor(more=self.ON_GPU)), COMMIT)
            kind, fields, descriptors = client.receive()
            self.assertEqual((kind, len(descriptors)), (ARENA, 2))
            self.assertEqual(fields[2] % int(DRIVER["ADTOPK_TEST_CUDA_GRANULE"]), 0)
            with mmap.mmap(descriptors[0], fields[1]) as arena:
                client.send(MAPPED)
                client.expect(READY)
                client.submit((PUSH, 0, 0), (STEP_END, 0, 0))
                time.sleep(0.1)
                self.assertEqual(client.taken(), 0)
                arena[fields[4]:fields[4] + 4] = struct.pack("<I", 1 << 30)
                wait_for(lambda: client.taken() == 2)

    def test_wrong_time(self):
        """Arenas that are mapped too early or twice; device memory that is cut, written and given back
        in the middle of a step. Another job keeps its bits."""
        with Cluster(BUILD, nodes=1) as host, Job(host, BUILD, "other", [0], TENSORS) as other:
            expected = other.join().steps(6)
        with gpu_cluster(1) as cluster, \
                Job(cluster, BUILD, "other", [0], TENSORS, variables=DRIVER,
                    devices=["- arena"]) as other:
            other.join()
            path = cluster.address(0).removeprefix("unix:")
            for before in [], [register_request(tensor(more=self.ON_GPU))]:
                with RawClient(path) as client:
                    client.open("raw")
                    client.send(*before, MAPPED)
                    self.assertIn('request 4 came in state "open"', client.refusal()[1])
            other.ranks[0].send("steps 6")
            self.spoils(path)
            self.assertEqual(other.ranks[0].answer().split(),
                             list(map(str, expected)))
            cluster.stop()

    def spoils(self, path):
        with RawClient(path) as client:
            client.open("raw", policy=text({"lookahead": 0}))
            client.send(register_request(tensor(more=self.SHOWN)), COMMIT)
            _, fields, (page, device) = client.receive()
            flags, words = fields[4], fields[5]
            with mmap.mmap(page, fields[1]) as arena:
                client.send(MAPPED)
                client.expect(READY)
                for step in range(20):
                    client.submit((PUSH, 0, step))
                    arena[flags:flags + 4] = struct.pack("<I", step + 1)
                    client.wake()
                    if step < 19:
                        with self.assertRaises(PermissionError):
                            os.ftruncate(device, 0)
                        os.pwrite(device, os.urandom(64), 0)
                    else:
                        os.close(device)
                    client.submit((STEP_END, 0, step))
                    wait_for(lambda: self.words(arena, words)[2] == step + 1)
                client.send(MAPPED)
                self.assertIn('request 4 came in state "ready"', client.refusal()[1])

    def test_words(self):
        """The daemon writes words and never reads them, so a client harms only itself."""
        with gpu_cluster(1) as cluster, RawClient(cluster.address(0).removeprefix("unix:")) as client:
            client.open("raw", policy=text({"lookahead": 0}))
            client.send(register_request(tensor(more=self.SHOWN), tensor("u", more=self.SHOWN)),
                        COMMIT)
            _, fields, descriptors = client.receive()
            flags, words = fields[4], fields[5]
            self.assertEqual((flags % 4096, words), (0, flags + 4096))
            self.assertEqual(fields[1], words + 4096)
            with mmap.mmap(descriptors[0], fields[1]) as arena:
                # Holes that it makes before the daemon seals the memory are filled again.
                arena.madvise(mmap.MADV_REMOVE, words, 4096)
                client.send(MAPPED)
                client.expect(READY)
                with self.assertRaises(PermissionError):
                    arena.madvise(mmap.MADV_REMOVE, words, 4096)
                self.assertEqual(self.words(arena, words), (0,) * 6)
                arena[words:words + 24] = bytes(range(24))
                for step in range(3):
                    client.submit((PUSH, 0, step), (PUSH, 1, step))
                    arena[flags:flags + 8] = struct.pack("<2I", step + 1, step + 1)
                    client.wake()
                    wait_for(lambda: self.words(arena, words)[:4] == (step + 1,) * 4)
                    client.submit((STEP_END, 0, step))
                    wait_for(lambda: self.words(arena, words) == (step + 1,) * 6)
                client.submit((PUSH, 9, 3))  # which ends the session
                self.assertIn("tensor", client.refusal()[1])
                over = 3 + 1 + (1 << 30)
                self.assertEqual(self.words(arena, words), (over, 3) * 3)
            cluster.stop()

    SHOWN = field(8, 2) + field(9, f"{GPU}0")

    @staticmethod
    def words(arena, at):
        """(over, right) of two tensors and of the step."""
        return struct.unpack("<6I", arena[at:at + 24])

    def test_who_returns(self):
        """The daemon tells its run, to which a rank can return, to clients that can, and to others whose
        gradients are in host memory."""
        with tempfile.TemporaryDirectory(prefix="adtopk-", dir="/dev/shm") as folder, \
                gpu_cluster(1, variables={"ADTOPK_STORE_FOLDER": folder}) as cluster:
            for number, (memory, abilities) in enumerate(((b"", 0), (self.ON_GPU, 1), (self.ON_GPU, 3))):
                with RawClient(cluster.address(0).removeprefix("unix:")) as client:
                    client.open(f"raw{number}", policy=text({"lookahead": 0}), abilities=abilities)
                    client.send(register_request(tensor(more=memory)), COMMIT)
                    client.expect(ARENA)
                    client.send(MAPPED)
                    kind, fields, _ = client.receive()
                    self.assertEqual((kind, fields.get(4, 0) != 0), (READY, number != 1))
            cluster.stop()

    def test_old_client(self):
        """A client library of an earlier release says nothing of its abilities. It commits once, and
        tensors that it registers later have no flags."""
        with gpu_cluster(1) as cluster:
            with RawClient(cluster.address(0).removeprefix("unix:")) as client:
                client.open("raw", policy=text({"lookahead": 0}))
                client.send(register_request(tensor(more=self.ON_GPU)), COMMIT)
                client.expect(ARENA)
                client.send(MAPPED)
                client.expect(READY)
                client.send(*(register_request(*(tensor(f"{batch}.{i}", more=self.ON_GPU)
                                                 for i in range(500))) for batch in range(3)))
                client.send(COMMIT)
                self.assertIn("commits its tensors once", client.refusal()[1])
                client.submit((PUSH, 1400, 0))
                self.assertIn("tensor", client.refusal()[1])
            cluster.stop()


if __name__ == "__main__":
    unittest.main()
