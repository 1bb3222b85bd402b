#!/usr/bin/env python3
"""The daemon serves everybody: what one user does must not keep the others waiting, or out.

Each act has a daemon of its own, whose `status` then says how much CPU time the longest iteration of its
loop took. The promise is 20 ms, and that the sessions of a process that dies are free within 1 s.

usage: test_loop.py BUILD [unittest's arguments]
"""
import os
import resource
import subprocess
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from build import BUILD
from cluster import PATIENCE, Cluster, die_with_parent
from ranks import Job, Rank
from service import wait_for

HOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hog.py")
LONGEST_MS = 40  # deploy/limits.md: 20 to 31, and other programs may run beside these tests
MANY_TENSORS_MS = 70  # the most tensors that a job can have take up to 54
LARGE = 1 << 29  # elements of a tensor
TENSORS, TENSORS_AT_ONCE = 65536, 512
LATER = TENSORS // 3  # of a second commit
ATTEMPTS = 5
HOG_UID, OTHER_UID, THIRD_UID = 4002, 4001, 4003  # users need not have names
SESSIONS = 1024 if os.geteuid() == 0 else 768  # the daemon's limit, and that of one user
DESCRIPTORS = 8192  # of the daemon, which serves fewer sessions if it has fewer
ADDRESSES = 1 << 29  # bytes
os.environ.pop("MALLOC_PERTURB_", None)  # which meson sets: what is allocated would be written, too


class Hog:
    """A process that asks a daemon for much (hog.py), as another user or as this one."""

    def __init__(self, daemon, act, number, uid=-1):
        self.process = subprocess.Popen(
            [sys.executable, HOG, daemon.socket, str(uid), act, str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)

    def outcome(self):
        """What it says once it has done its act, or was refused."""
        return self.process.stdout.readline().strip()

    def wait(self):
        outcome = self.outcome()
        if outcome != "done":
            raise AssertionError(f"the hog says {outcome!r}")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Scene(unittest.TestCase):
    def setUp(self):
        self.hogs = []
        self.begin()

    def begin(self, **settings):
        self.cluster = Cluster(BUILD, nodes=1, settings=settings).start()
        os.chmod(self.cluster.directory, 0o755)  # for other users
        self.daemon = self.cluster.daemons[0]

    def tearDown(self):
        for hog in self.hogs:
            hog.kill()
        self.hogs = []
        self.cluster.close()

    def hog(self, *arguments, **options):
        self.hogs.append(Hog(self.daemon, *arguments, **options))
        return self.hogs[-1]

    def kill(self, hog):
        self.hogs.remove(hog)
        hog.kill()

    def freed(self, before):
        """Waits until no session is left; seconds since `before`."""
        while self.cluster.status(0)["sessions"] > 0:
            if time.monotonic() - before > PATIENCE:
                self.fail("sessions of a dead process stay")
        return time.monotonic() - before

    def longest_ms(self):
        return self.cluster.status(0)["loop"]["longest_iteration_us"] / 1000

    def check_turns(self, limit_ms=LONGEST_MS):
        longest_ms = self.longest_ms()
        print(f"# {self.id().split('.')[-1]}: longest iteration {longest_ms:.1f} ms", file=sys.stderr)
        self.assertLessEqual(longest_ms, limit_ms)


class LoopTest(Scene):
    """What keeps the loop busy."""

    def test_idle_sessions_die(self):
        hog = self.hog("sessions", SESSIONS)
        hog.wait()
        self.assertEqual(self.cluster.status(0)["sessions"], SESSIONS)
        before = time.monotonic()
        self.kill(hog)
        time.sleep(max(0, 1 - (time.monotonic() - before)))
        self.assertEqual(self.cluster.status(0)["sessions"], 0)
        self.check_turns()

    def test_many_tensors(self):
        """A job of 65,536 tensors begins, changes its policy while it trains, is verified, ends."""
        self.check_best(self.many_tensors, MANY_TENSORS_MS)

    def test_tensors_later(self):
        """A job of one tensor commits many more between two steps."""
        self.check_best(self.tensors_later)

    def check_best(self, act, limit_ms=LONGEST_MS):
        """What else runs on the machine takes the cache from a loop that goes through so much
        memory: the least of several attempts counts."""
        for _ in range(ATTEMPTS - 1):
            act()
            if self.longest_ms() <= limit_ms:
                break
            self.tearDown()
            self.setUp()
        else:
            act()
        self.check_turns(limit_ms)

    def register(self, rank, tensors):
        for first in range(0, tensors, TENSORS_AT_ONCE):
            rank.do(*(f"tensor layer{number} f32 both 8x8"
                      for number in range(first, min(first + TENSORS_AT_ONCE, tensors))))

    def tensors_later(self):
        rank = Rank(BUILD, self.cluster.address(0), "later", 0, 1, '{"density":0.25}')
        self.addCleanup(rank.kill)
        rank.do(rank.opening, "tensor first f32 both 8x8", "commit", "steps 1")
        self.register(rank, LATER)
        rank.do("commit", "steps 1", "close")

    def many_tensors(self):
        rank = Rank(BUILD, self.cluster.address(0), "many", 0, 1, '{"density":0.25}')
        self.addCleanup(rank.kill)
        rank.do(rank.opening)
        self.register(rank, TENSORS)
        rank.do("commit", "steps 1")
        for change in (["policy", "set", "many", "density=0.5"],
                       ["policy", "set", "many", "sparsifier=topk", "residual=bf16"], ["verify"]):
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(self.daemon.ask, *change, timeout=60)
                while not asked.done():
                    rank.do("steps 1")
            self.assertEqual(asked.result()[0], 0, asked.result())
        for words in (["plan", "many"], ["tensors", "many"], ["stats"]):
            self.assertEqual(self.daemon.ask("--json", *words)[0], 0)
        rank.kill()
        self.freed(time.monotonic())

    def test_status_of_many_jobs(self):
        """A thousand live jobs, and as many ended ones as are remembered."""
        self.check_best(self.status_of_many_jobs)

    def status_of_many_jobs(self):
        for uid in (HOG_UID, OTHER_UID, THIRD_UID, -1) if os.geteuid() == 0 else (-1,):
            hog = self.hog("sessions", 16, uid=uid)
            hog.wait()
            self.kill(hog)
            self.freed(time.monotonic())
        self.hog("sessions", min(1000, SESSIONS)).wait()
        for words in (["status"], ["jobs"], ["stats"], ["tensors", "no-such-job"]):
            self.daemon.ask("--json", *words)

    def test_large_results(self):
        if memory("MemAvailable") < 3 * LARGE * 4:
            self.skipTest("needs 6 GiB of memory")
        for act in ("dense", "list"):  # 1 GiB of gradients; 2 GiB of updates, or room for them
            hog = self.hog(act, LARGE)
            hog.wait()
            self.kill(hog)
            self.freed(time.monotonic())
        self.check_turns()


class AddressTest(Scene):
    """A daemon whose address space is limited says so, and serves those who ask for less."""

    def begin(self):
        self.cluster = Cluster(BUILD, nodes=1)
        self.daemon = self.cluster.daemons[0]
        self.daemon.prepare = self.limit
        self.cluster.start()

    @staticmethod
    def limit():
        die_with_parent()
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))

    def test_addresses(self):
        self.assertRegex(self.hog("list", ADDRESSES // 2).outcome(),
                         rf"needs \d+ bytes of address space, and this daemon may have {ADDRESSES} "
                         r"in all \(RLIMIT_AS, ulimit -v\)")
        self.hog("tensors", 3).wait()


class LimitTest(Scene):
    """Limits of each user, as settings."""

    def begin(self, **settings):
        pass

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("becomes other users, for which it has to be root")
        super().setUp()

    def served(self, *uids):
        """A small job of each of these users trains."""
        for uid in uids:
            self.hog("tensors", 3, uid=uid).wait()

    def test_memory(self):
        for percent in (25, 80):  # 80 is the default
            super().begin(**({"user_memory": 25} if percent == 25 else {}))
            part = memory("MemTotal") * (percent + 1) // 100
            said = self.hog("dense", part // 2, uid=HOG_UID).outcome()  # f16
            self.assertRegex(said, rf"^user {HOG_UID} has \d+ bytes .* asks for \d+ more, but one "
                                   rf"user may have \d+ \(user_memory: {percent} %\)")
            self.served(OTHER_UID, HOG_UID, -1)
            self.tearDown()

    def test_sessions(self):
        super().begin(user_jobs=1024)
        for uid, wanted in ((HOG_UID, 768), (OTHER_UID, 896 - 768)):
            said = self.hog("greedy", 1024, uid=uid).outcome()
            self.assertRegex(said, rf"^{wanted} user {uid} has {wanted} sessions on this daemon")
            self.assertRegex(self.daemon.log(), rf"warning refused: refused a trainer of uid {uid}, "
                             rf"process \d+: user {uid} has {wanted} sessions")
        self.served(THIRD_UID, -1)

    def test_jobs(self):
        super().begin(user_jobs=3)
        said = self.hog("greedy", 10, uid=HOG_UID).outcome()
        self.assertRegex(said, rf"^3 user {HOG_UID} has 3 jobs on this node, .* 3 \(user_jobs\)")
        self.served(OTHER_UID, -1)

    def test_requests(self):
        """Changes of one user that stay pending, as many as there may be, do not block root."""
        super().begin(user_requests=48)
        with Job(self.cluster, BUILD, "trained", [0], [("a", "f32", "both", (16, 32))]) as job:
            job.join().steps(2)
            self.assertEqual(self.hog("tickets", 48, uid=HOG_UID).outcome(), "48")
            self.assertRegex(self.hog("tickets", 1, uid=OTHER_UID).outcome(),
                             "^0 48 requests are under way on this node already, of 48")
            for words in (["policy", "set", "trained", "density=0.5"], ["verify", "trained"]):
                job.steps_while(lambda asked=words: self.cluster.ask(0, *asked))

    def test_requests_of_one_user(self):
        super().begin()
        self.assertRegex(self.hog("tickets", 64, uid=HOG_UID).outcome(),
                         rf"^16 user {HOG_UID} has 16 requests under way .* 16 \(user_requests\)")
        self.assertEqual(self.hog("tickets", 3, uid=OTHER_UID).outcome(), "3")

    def test_sessions_that_never_commit(self):
        super().begin(commit_timeout_ms=1000)
        hog = self.hog("sessions", 100, uid=HOG_UID)
        hog.wait()
        wait_for(lambda: self.cluster.status(0)["jobs"][0]["state"] == "failed")
        self.freed(time.monotonic())


def memory(what):
    with open("/proc/meminfo", encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.split(":")[0] == what)


def raise_limit():
    """Daemons inherit it. Without the right to raise it there are fewer sessions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted >= DESCRIPTORS


if __name__ == "__main__":
    if not raise_limit():
        SESSIONS = 128
    unittest.main(verbosity=2)
