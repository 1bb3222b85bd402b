"""Builds the wheel and the source archive of the package: the functions of PEP 517.

The wheel is the package with libadtopk-client inside, for every Python 3 of a processor architecture.
Nothing but this folder's pyproject.toml may tell how, and the sources of the library lie above it. So
this file stages them: `pip wheel client/python` builds the library by meson in a folder of its own.

Settings (pip: --config-settings KEY=VALUE): `build` is a build folder of meson that has the library;
`protobuf-c-license` is a file with the licence of protobuf-c, which the library contains.
"""
import base64
import hashlib
import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARY = "libadtopk-client.so.1"
LICENSES_OF_PROTOBUF_C = ("/usr/share/doc/libprotobuf-c-dev/copyright",
                          "/usr/share/doc/libprotobuf-c1/copyright",
                          "/usr/share/licenses/protobuf-c/LICENSE")
BUILT_BY = "adtopk's own backend"
LEFT_OUT = ("build", "quickstart-out", "study-out")  # folders that are no sources
PYPROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["client/python"]
"""


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def version():
    """The version of adtopk, which meson.build has."""
    return re.search(r"^  version: '([^']+)'", read(ROOT, "meson.build").decode(), re.MULTILINE)[1]


def metadata():
    """The text of METADATA and PKG-INFO."""
    head = (f"Metadata-Version: 2.1\nName: adtopk\nVersion: {version()}\n"
            "Summary: Sparse gradient exchange for data-parallel training\n"
            "License: Apache-2.0\nRequires-Python: >=3.9\nRequires-Dist: numpy\n"
            "Classifier: License :: OSI Approved :: Apache Software License\n"
            "Classifier: Operating System :: POSIX :: Linux\n"
            "Description-Content-Type: text/markdown\n\n")
    # A link to another file leads nowhere from the page of a package.
    text = re.sub(r"\[([^]]+)\]\((?!#|https?:)[^)]+\)", r"\1", read(HERE, "README.md").decode())
    return (head + text).encode()


# ---- the library

def run(*command):
    """Runs a program; its words go where pip shows them. Where pip isolates a build, it hides the packages
    of the system by two variables. Meson is such a package, so it runs without them."""
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    try:
        subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
    except FileNotFoundError:
        raise SystemExit(f"adtopk: {command[0]} is missing; deploy/setup build installs it") from None
    except subprocess.CalledProcessError as problem:
        raise SystemExit(f"adtopk: {' '.join(command)} ended with status {problem.returncode}") from None


def build_library(folder):
    """Builds the library into a new folder of meson."""
    run("meson", "setup", folder, ROOT, "--buildtype=release", "-Dtests=disabled", "-Dcuda=disabled",
        "-Dwerror=false")
    # Ninja knows the file by its whole version. Meson has made the link LIBRARY to it already.
    run("ninja", "-C", folder, "client/" + os.readlink(os.path.join(folder, "client", LIBRARY)))


def stripped_library(build):
    """The bytes of the library without its symbols for debuggers."""
    source = os.path.join(build, "client", LIBRARY)
    if not os.path.exists(source):
        raise SystemExit(f"adtopk: {source} is missing: build the library first")
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, LIBRARY)
        run("strip", "--strip-unneeded", "-o", copy, source)
        return read(copy)


def platform_tag(library):
    """The tag of the oldest glibc that has every symbol which the library needs."""
    found = re.findall(rb"\0GLIBC_2\.(\d+)(?=[\0.])", library)
    if not found:
        return f"linux_{platform.machine()}"
    return f"manylinux_2_{max(17, *map(int, found))}_{platform.machine()}"


def protobuf_c_license(settings):
    """The licence of protobuf-c, of which the library has a part."""
    given = settings.get("protobuf-c-license")
    for path in [given] if given else LICENSES_OF_PROTOBUF_C:
        if os.path.exists(path):
            return read(path)
    raise SystemExit("adtopk: the licence of protobuf-c was not found, and the wheel must carry it; pass"
                     " --config-settings protobuf-c-license=PATH")


# ---- archives

def record(files):
    """The text of RECORD, without the line of RECORD itself."""
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join(lines)


def write_wheel(path, files, information):
    """Writes the same bytes for the same files, whenever it is built."""
    listed = record(files) + f"{information}/RECORD,,\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in {**files, f"{information}/RECORD": listed.encode()}.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(LIBRARY) else 0o644) << 16
            wheel.writestr(entry, data)


def package_files():
    """Path in the wheel, and bytes, of every file of the package."""
    files = {}
    for folder, subfolders, names in os.walk(os.path.join(HERE, "adtopk")):
        subfolders.sort()
        for name in sorted(names):
            if name.endswith((".py", ".typed")):
                path = os.path.join(folder, name)
                files[os.path.relpath(path, HERE)] = read(path)
    return files


def source_files():
    """Paths of all sources, relative to the root: what git knows, or what lies there."""
    try:
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], check=True, capture_output=True)
        found = [name for name in listed.stdout.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = []
        for folder, subfolders, names in os.walk(ROOT):
            subfolders[:] = [one for one in subfolders if one[0] != "." and not one.startswith(LEFT_OUT)
                             and one != "__pycache__"]
            found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return sorted(name for name in found if name not in ("pyproject.toml", "PKG-INFO")
                  and os.path.isfile(os.path.join(ROOT, name)))


# ---- the functions of PEP 517

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds the wheel and returns its name."""
    settings = config_settings or {}
    license_of_part = protobuf_c_license(settings)
    if settings.get("build"):
        library = stripped_library(settings["build"])
    else:
        with tempfile.TemporaryDirectory() as folder:
            build_library(folder)
            library = stripped_library(folder)
    tag = f"py3-none-{platform_tag(library)}"
    information = f"adtopk-{version()}.dist-info"
    files = package_files()
    files[f"adtopk/{LIBRARY}"] = library
    files[f"{information}/METADATA"] = metadata()
    files[f"{information}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: {BUILT_BY} {version()}\n"
                                     f"Root-Is-Purelib: false\nTag: {tag}\n").encode()
    files[f"{information}/licenses/LICENSE"] = read(ROOT, "LICENSE")
    files[f"{information}/licenses/protobuf-c/LICENSE"] = license_of_part
    name = f"adtopk-{version()}-{tag}.whl"
    write_wheel(os.path.join(wheel_directory, name), files, information)
    return name


def build_sdist(sdist_directory, config_settings=None):
    """Packs all sources, with a pyproject.toml at their top, and returns the archive's name."""
    top = f"adtopk-{version()}"
    with tarfile.open(os.path.join(sdist_directory, top + ".tar.gz"), "w:gz") as archive:
        for path in source_files():
            archive.add(os.path.join(ROOT, path), f"{top}/{path}", recursive=False)
        for path, data in (("pyproject.toml", PYPROJECT.encode()), ("PKG-INFO", metadata())):
            entry = tarfile.TarInfo(f"{top}/{path}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return top + ".tar.gz"
