"""The Python that runs a test of this folder: one that has the modules the test needs.

A test imports it first and says what it needs. If this Python lacks a module and Debian's has it, the
test goes on under Debian's. If none has it, the test is skipped by name.
"""
import importlib.util
import os
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "")
DEBIAN = "/usr/bin/python3"
SKIPPED = 77  # meson's exit status for it


def has(python, modules):
    code = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    return subprocess.run([python, "-c", code, *modules], check=False).returncode == 0


def find(modules):
    """Returns under a Python that has the modules, or ends the program as skipped."""
    if all(map(importlib.util.find_spec, modules)):
        return
    if os.path.exists(DEBIAN) and sys.executable != DEBIAN and has(DEBIAN, modules):
        os.execv(DEBIAN, [DEBIAN, *sys.argv])
    print(f"SKIP: no Python here has {' and '.join(modules)}")
    sys.exit(SKIPPED)


def use(*modules):
    """Finds a Python with the modules. There `import adtopk` is this tree's, with the build's library."""
    find(modules)
    os.environ["ADTOPK_LIBRARY"] = os.path.join(BUILD, "client", "libadtopk-client.so")
    os.environ["PYTHONPATH"] = os.path.join(ROOT, "client/python")
    for folder in ("client/python", "tests/integration", "tests/python"):
        sys.path.insert(0, os.path.join(ROOT, folder))
    sys.argv[1:2] = []
