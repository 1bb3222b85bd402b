"""What tests of adtopkd as a service share: one daemon in a directory of its own."""
import os
import subprocess
import tempfile
import time
import unittest

from build import ADTOPKD
from cluster import PATIENCE, die_with_parent

TENSORS = [("first", "f32", "both", (16, 32)), ("last", "f32", "dense", (64, 64))]


def wait_for(condition, what="it did not happen", seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(what)
        time.sleep(0.02)


class WithDirectory(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp")
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name
        os.chmod(self.directory, 0o755)

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as out:
            out.write(text)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as text:
            return text.read()

    def start(self, *arguments, name="a", prepare=die_with_parent, more=None, **options):
        """One daemon, without waiting for anything."""
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("ADTOPK_", "WATCHDOG_", "NOTIFY_", "JOURNAL_"))}
        environment.update(more or {})
        process = subprocess.Popen(
            [ADTOPKD, "--socket", self.path(f"{name}.sock"), "--control-socket",
             self.path(f"{name}.control"), *arguments], stdin=subprocess.DEVNULL, env=environment,
            preexec_fn=prepare, **options)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def end(self, process):
        process.terminate()
        self.assertEqual(process.wait(PATIENCE), 0)
