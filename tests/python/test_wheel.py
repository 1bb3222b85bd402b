#!/usr/bin/env python3
"""The wheel: what is in it, and that it installs and trains in bare environments.

usage: test_wheel.py BUILD [unittest's arguments]
"""
import base64
import csv
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

import interpreter

interpreter.use("numpy")
sys.path.insert(0, os.path.join(interpreter.ROOT, "client/python"))

import backend  # noqa: E402

import adtopk  # noqa: E402
from cluster import Cluster  # noqa: E402

PYTHONS = [f"python3.{minor}" for minor in range(9, 14)]
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("PYTHONPATH", "PYTHONHOME") and not name.startswith("ADTOPK_")}
TRAIN = """
import sys, numpy, adtopk
from adtopk import _library
assert _library.path().startswith(sys.prefix), _library.path()
with adtopk.open(address=sys.argv[1], job=sys.argv[2], rank=0, world_size=1) as context:
    w = context.register("w", (10, 20))
    context.commit()
    for step in range(3):
        w.push(numpy.ones((10, 20), numpy.float32))
        assert context.step_wait()
    assert w.update().dense.shape == (10, 20)
print("trained with", adtopk.version())
"""


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="adtopk-wheel-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.name = backend.build_wheel(cls.folder, {"build": interpreter.BUILD})
        cls.path = os.path.join(cls.folder, cls.name)

    def content(self):
        with zipfile.ZipFile(self.path) as wheel:
            self.assertIsNone(wheel.testzip())
            return {name: wheel.read(name) for name in wheel.namelist()}

    def test_content(self):
        files = self.content()
        information = f"adtopk-{backend.version()}.dist-info/"
        for name in ("adtopk/__init__.py", "adtopk/py.typed", "adtopk/" + backend.LIBRARY,
                     information + "METADATA", information + "WHEEL", information + "RECORD"):
            self.assertIn(name, files)
        self.assertIn(b"Apache License", files[information + "licenses/LICENSE"])
        self.assertIn(b"Redistribution", files[information + "licenses/protobuf-c/LICENSE"])
        self.assertIn(b"(#parameters-on-a-gpu)", files[information + "METADATA"])
        self.assertNotRegex(files[information + "METADATA"], rb"\]\((?!#|https:)")
        self.assertIn(b"Requires-Python: >=3.9\nRequires-Dist: numpy\n", files[information + "METADATA"])
        self.assertEqual(adtopk.__version__, backend.version())
        self.assertFalse([name for name in files if "__pycache__" in name or "test" in name])

    def test_record(self):
        files = self.content()
        rows = list(csv.reader(files[f"adtopk-{backend.version()}.dist-info/RECORD"].decode().splitlines()))
        self.assertEqual({row[0] for row in rows}, set(files))
        for name, digest, size in rows[:-1]:
            wanted = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode()
            self.assertEqual((digest, int(size)), ("sha256=" + wanted.rstrip("="), len(files[name])))

    def test_same_bytes_again(self):
        with tempfile.TemporaryDirectory() as folder:
            again = backend.build_wheel(folder, {"build": interpreter.BUILD})
            with open(os.path.join(folder, again), "rb") as one, open(self.path, "rb") as other:
                self.assertEqual(one.read(), other.read())

    def test_library(self):
        """It needs libc alone, and the tag names the newest glibc of its symbols."""
        path = os.path.join(self.folder, backend.LIBRARY)
        with open(path, "wb") as out:
            out.write(self.content()["adtopk/" + backend.LIBRARY])
        read = subprocess.run(["readelf", "--wide", "-d", "-V", path], capture_output=True, text=True,
                              check=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", read))
        self.assertLessEqual(needed, {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"})
        newest = max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", read))
        self.assertIn(f"-py3-none-manylinux_2_{max(newest, 17)}_{os.uname().machine}.whl", self.name)

    def test_licence_is_missing(self):
        with self.assertRaisesRegex(SystemExit, "licence of protobuf-c"):
            backend.build_wheel(self.folder, {"build": interpreter.BUILD,
                                              "protobuf-c-license": "/nowhere"})

    def test_library_is_missing(self):
        with self.assertRaisesRegex(SystemExit, "/nowhere/client/.* is missing"):
            backend.build_wheel(self.folder, {"build": "/nowhere"})

    def test_sources(self):
        name = backend.build_sdist(self.folder)
        with tarfile.open(os.path.join(self.folder, name)) as archive:
            names = archive.getnames()
        top = f"adtopk-{backend.version()}/"
        self.assertEqual(name, top[:-1] + ".tar.gz")
        for path in ("pyproject.toml", "PKG-INFO", "meson.build", "client/src/context.h",
                     "client/python/backend.py", "client/python/adtopk/__init__.py", "LICENSE"):
            self.assertEqual(names.count(top + path), 1, path)

    def pip_wheel(self, folder, *settings):
        if not interpreter.has(sys.executable, ["pip"]):
            self.skipTest("this Python has no pip")
        subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "-q", "-w", folder,
                        *settings, os.path.join(interpreter.ROOT, "client/python")],
                       check=True, env=ENVIRONMENT)
        return os.listdir(folder)

    def test_pip_takes_a_build(self):
        """The library of a build folder."""
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.pip_wheel(folder, "--config-settings", f"build={interpreter.BUILD}"),
                             [self.name])

    def test_pip_builds_it(self):
        """As `pip wheel client/python` does, from the sources alone: it compiles the library."""
        with tempfile.TemporaryDirectory() as folder:
            name, = self.pip_wheel(folder)
            self.assertRegex(name, f"^adtopk-{backend.version()}-py3-none-manylinux_2_")
            with zipfile.ZipFile(os.path.join(folder, name)) as wheel:
                self.assertEqual(set(wheel.namelist()), set(self.content()))
                library = wheel.extract("adtopk/" + backend.LIBRARY, folder)
            version = ctypes.CDLL(library).adtopk_version
            version.restype = ctypes.c_char_p
            self.assertEqual(version().decode(), adtopk.version())


class Installed(unittest.TestCase):
    """In an environment of each Python that is found."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="adtopk-wheel-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.path = os.path.join(cls.folder, backend.build_wheel(cls.folder, {"build": interpreter.BUILD}))

    def install(self, python, folder):
        """Makes an environment with the wheel in it; returns its Python."""
        made = subprocess.run([python, "-m", "venv", "--system-site-packages", folder],
                              capture_output=True, text=True, env=ENVIRONMENT, check=False)
        inside = os.path.join(folder, "bin", "python")
        if made.returncode:
            self.skipTest(f"{python} makes no environment: {made.stdout}{made.stderr}")
        subprocess.run([inside, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
                        "--disable-pip-version-check", self.path], check=True, env=ENVIRONMENT)
        return inside

    def train(self, python, job):
        with tempfile.TemporaryDirectory() as folder:
            inside = self.install(python, folder)
            with Cluster(interpreter.BUILD, nodes=1) as cluster:
                done = subprocess.run([inside, "-c", TRAIN, cluster.address(0), job], env=ENVIRONMENT,
                                      capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (0, "trained with 1.1.0\n"), done.stderr)

    def test_this_python(self):
        self.train(sys.executable, "this")


def find(name):
    """A Python of this version that has numpy: the first on the path, or else Debian's."""
    for path in (shutil.which(name), "/usr/bin/" + name):
        works = path and os.path.exists(path) and subprocess.run([path, "-c", "pass"], capture_output=True,
                                                                 check=False).returncode == 0
        if works and interpreter.has(path, ["numpy"]):
            return path
    return None


def add_test(name):
    def test(self):
        python = find(name)
        if python is None:
            self.skipTest(f"no {name} with numpy here")
        self.train(python, name)
    setattr(Installed, "test_" + name.replace(".", "_"), test)


for each in PYTHONS:
    add_test(each)

if __name__ == "__main__":
    unittest.main()
