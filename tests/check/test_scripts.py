"""The small scripts: tests/check/count, format, readme and documents, deploy/setup and package."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


class Count(unittest.TestCase):
    def count(self, *logs, options=(), suite="p:unit"):
        """Each log has the results of the tests 0, 1 and so on."""
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, str(i)) for i in range(len(logs))]
            for path, results in zip(paths, logs):
                with open(path, "w", encoding="utf-8") as log:
                    log.write("".join(f'{{"name": "{suite} / t{i}", "result": "{result}", '
                                      f'"stderr": "one\\nok 1\\nit {result}"}}\n'
                                      for i, result in enumerate(results)))
            return run(sys.executable, os.path.join(HERE, "count"), *options, *paths).stdout.strip()

    def test_results(self):
        self.assertEqual(self.count([]), "0 0 0")
        self.assertEqual(self.count(["OK", "OK", "EXPECTEDFAIL", "SKIP"]), "3 0 1")
        self.assertEqual(self.count(["OK", "FAIL", "TIMEOUT", "ERROR", "UNEXPECTEDPASS",
                                     "INTERRUPT", "something new"]), "1 6 0")
        self.assertEqual(self.count(["OK", "FAIL", "SKIP"], options=["--failed"]),
                         "-- p:unit / t1: FAIL\none\nit FAIL")

    def test_run_again(self):
        """Tests of real processes may run again; where any other has failed, or many, none may."""
        again = {"options": ["--again"], "suite": "p:integration+plain"}
        self.assertEqual(self.count(["FAIL", "OK", "TIMEOUT"], **again), "t0\nt2")
        self.assertEqual(self.count(["FAIL"] * 4, **again), "")
        self.assertEqual(self.count(["FAIL"], options=["--again"]), "")
        self.assertEqual(self.count(["FAIL", "OK", "FAIL"], ["OK"]), "2 1 0")
        self.assertEqual(self.count(["FAIL", "OK", "FAIL"], ["OK"], options=["--names"]), "t2")


class Package(unittest.TestCase):
    @staticmethod
    def first(pattern, path):
        with open(os.path.join(ROOT, path), encoding="utf-8") as text:
            return re.search(pattern, text.read(), re.MULTILINE).group(1)

    def test_version(self):
        self.assertEqual(self.first(r"^adtopk \(([^)]+)\)", "deploy/debian/changelog"),
                         self.first(r"^ +version: '([^']+)'", "meson.build"))

    def test_usage(self):
        package = os.path.join(ROOT, "deploy/package")
        self.assertIn("--source", run(package, "--help").stdout)
        for wrong in (["--out"], ["now"]):
            self.assertEqual(run(package, *wrong).returncode, 2)


class Format(unittest.TestCase):
    def check(self, sources, *arguments):
        """Runs the check in a tree of these sources; returns the run and the sources after it."""
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "tests/check"))
            shutil.copy(os.path.join(HERE, "format"), os.path.join(root, "tests/check"))
            shutil.copy(os.path.join(ROOT, ".clang-format"), root)
            for path, text in sources.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            result = run(os.path.join(root, "tests/check/format"), *arguments)
            after = {}
            for path in sources:
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    after[path] = file.read()
            return result, after

    def test_good_and_bad(self):
        self.assertEqual(self.check({"kernels/a.c": "int a;\n"})[0].returncode, 0)
        bad = {"kernels/a.c": "int a;\n", "daemon/core/b.h": "int\tb ;\n"}
        result, _ = self.check(bad)
        self.assertEqual(result.returncode, 1)
        self.assertIn("daemon/core/b.h:1", result.stderr)
        self.assertNotIn("a.c:", result.stderr)
        result, after = self.check(bad, "--fix")
        self.assertEqual((result.returncode, after["daemon/core/b.h"]), (0, "int b;\n"))

    def test_python(self):
        for bad in ("x = 1 \n", "if x:\n\ty = 1\n", "x = '" + 110 * "y" + "'\n"):
            result, _ = self.check({"kernels/a.c": "int a;\n", "client/python/a.py": bad})
            self.assertEqual(result.returncode, 1)
            self.assertIn("client/python/a.py:", result.stderr)
        good = {"kernels/a.c": "int a;\n", "client/python/a.py": "if x:\n    y = 1\n"}
        self.assertEqual(self.check(good)[0].returncode, 0)

    def test_builds_are_left_alone_and_nothing_is_no_success(self):
        result, _ = self.check({"build/a.c": "int\ta ;\n"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("found no C files", result.stderr)


class Readme(unittest.TestCase):
    FOLDERS = ("client", "daemon", "deploy", "kernels", "proto", "tests")

    def check(self, text):
        """Runs the check in a tree whose README is this text, behind the example."""
        with tempfile.TemporaryDirectory() as root:
            for folder in self.FOLDERS + ("tests/check", "client/examples"):
                os.makedirs(os.path.join(root, folder), exist_ok=True)
            for path in [f"{folder}/README.md" for folder in self.FOLDERS]:
                with open(os.path.join(root, path), "w", encoding="utf-8"):
                    pass
            for path in ("README.md", "client/examples/minimal.c"):
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write("int a;\n" + (text if path == "README.md" else ""))
            shutil.copy(os.path.join(HERE, "readme"), os.path.join(root, "tests/check"))
            return run(sys.executable, os.path.join(root, "tests/check/readme"))

    def test_good_and_bad(self):
        self.assertEqual(self.check("[a](deploy/README.md) a@b.c\n").returncode, 0)
        for text, words in (("@MEASURED@\n", "@MEASURED@ was not filled in"),
                            ("[a](nowhere.md)\n", "a link to nowhere.md")):
            result = self.check(text)
            self.assertEqual(result.returncode, 1)
            self.assertIn(words, result.stderr)


class Documents(unittest.TestCase):
    PROTO = "message A {\n  uint32 a = 1; // what it is\n}\n"
    STATUS = "    /** It worked. */\n    ADTOPK_OK = 0,\n"
    CLIENT = ("<!-- status codes -->\n| code |  | meaning | what to do |\n| --- | --- | --- | --- |\n"
              "| `ADTOPK_OK` | 0 | It worked. | go on |\n<!-- end -->\n")

    def check(self, *arguments, **changed):
        """Runs the check in a tree of good files, of which some were changed; returns the run and
        the client's README after it."""
        files = {"proto/a.proto": self.PROTO, "proto/include/adtopk/status.h": self.STATUS,
                 "client/README.md": self.CLIENT, "deploy/options.md": "`ADTOPK_A`\n",
                 "client/a.c": 'getenv("ADTOPK_A");\n',
                 "proto/a.h": "#define A_VERSION 2u\n", "deploy/wire.md": "| a | `A_VERSION` 2 | refused |\n"}
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**files, **changed}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
                    os.fchmod(file.fileno(), 0o755)
            os.makedirs(os.path.join(root, "tests/check"))
            shutil.copy(os.path.join(HERE, "documents"), os.path.join(root, "tests/check"))
            result = run(sys.executable, os.path.join(root, "tests/check/documents"), *arguments,
                         cwd=root)
            with open(os.path.join(root, "client/README.md"), encoding="utf-8") as file:
                return result, file.read()

    def test_good_and_bad(self):
        self.assertEqual(self.check()[0].stderr, "")
        for path, text, words in (
                ("proto/a.proto", "message A {\n  uint32 bare = 1;\n}\n", "A.bare has no comment"),
                ("proto/a.proto", "message A { uint32 bare = 1; }\n", "has no comment"),
                ("proto/a.proto", "message A {\n  oneof kind {\n    B b = 2;\n  }\n  bool bare = 1;\n}\n",
                 "A.bare has no comment"),
                ("client/a.c", 'getenv("ADTOPK_B");', "reads ADTOPK_B"),
                ("proto/a.h", "#define A_VERSION 3\n", "A_VERSION is 3, the page says 2"),
                ("deploy/wire.md", "", "A_VERSION is 2, the page says nothing"),
                ("client/README.md", self.CLIENT.replace("worked", "failed"), "status codes differs"),
                ("client/README.md", self.CLIENT.replace("go on", ""), "without advice"),
                ("client/README.md", "nothing\n", "no table between"),
                ("deploy/a.md", "[a](nowhere.md#there)\n", "a link to nowhere.md"),
                ("deploy/a.md", "## Here\n[a](#here) [b](#there)\n", "a link to #there"),
                ("deploy/a.md", "[a](options.md#there)\n", "a link to options.md#there")):
            result, _ = self.check(**{path: text})
            self.assertEqual(result.returncode, 1, words)
            self.assertIn(words, result.stderr)

    def test_commands_in_running_text(self):
        """The only program here has a command "plan" with an option --json."""
        program = "client/adtopkctl/adtopkctl"
        result, _ = self.check("--build", ".", "--write", **{
            "README.md": "", "deploy/policy.md": "",
            program: '#!/bin/sh\n[ "$*" = "plan --help" ] && echo "--json"\n',
            "deploy/a.md": "`adtopkctl plan JOB --json` `adtopkctl plans JOB` `adtopkctl plan --jsn`\n"})
        for command in ("plans JOB", "plan --jsn"):
            self.assertIn(f"deploy/a.md: adtopkctl {command}: --help does not", result.stderr)
        self.assertNotIn("adtopkctl plan JOB", result.stderr)

    def test_write_keeps_what_was_written_by_hand(self):
        old = self.CLIENT.replace("It worked.", "Something else.")
        result, after = self.check("--write", **{"client/README.md": old})
        self.assertEqual((result.returncode, after), (0, self.CLIENT), result.stderr)


class Setup(unittest.TestCase):
    TOOLS = ("env", "bash", "sed", "tr", "head", "grep")  # what the script itself runs

    def setup_on(self, os_release, *arguments, programs=()):
        """Runs deploy/setup on a made-up system that has nothing but these programs."""
        with tempfile.TemporaryDirectory() as folder:
            for tool in self.TOOLS:
                os.symlink(shutil.which(tool), os.path.join(folder, tool))
            for name, script in programs:
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write("#!/usr/bin/env bash\n" + script + "\n")
                os.chmod(os.path.join(folder, name), 0o755)
            release = os.path.join(folder, "os-release")
            with open(release, "w", encoding="utf-8") as file:
                file.write(os_release)
            return run(os.path.join(ROOT, "deploy/setup"), *arguments,
                       env={"PATH": folder, "ADTOPK_OS_RELEASE": release})

    def test_other_system_without_anything(self):
        result = self.setup_on('ID=fedora\nPRETTY_NAME="Fedora 40"\n', "test")
        self.assertEqual(result.returncode, 1)
        for words in ("this is Fedora 40", "program meson", "library libuv >= 1.44",
                      "library libzmq", "library libprotobuf-c", "library libcjson",
                      "library cmocka", "program clang"):
            self.assertIn(words, result.stderr)

    def test_other_system_for_building_only(self):
        programs = [(name, "exit 0") for name in
                    ("gcc", "meson", "ninja", "pkg-config", "python3", "protoc", "protoc-c")]
        result = self.setup_on("ID=arch\n", "build", programs=programs)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_other_system_without_peers(self):
        result = self.setup_on("ID=arch\n", "bench")
        self.assertEqual(result.returncode, 1)
        self.assertIn("program mpirun", result.stderr)
        self.assertNotIn("cmocka", result.stderr)

    def test_debian_installs_only_what_is_missing(self):
        programs = [
            ("dpkg-query", '[[ ${*: -1} == meson ]] && exit 1; echo -n installed'),
            ("mktemp", "echo /dev/null"), ("rm", "exit 0"), ("tail", "exit 0"), ("promtool", "exit 0"),
            ("slurmd-wlm", "exit 0"), ("sudo", '[[ $1 == -v ]] || exec "$@"'),
            ("apt-get", '[[ $* == *update* || "${*: -1}" == meson ]]')]
        debian = 'ID=debian\nVERSION_ID="12"\n'
        result = self.setup_on(debian, "test", programs=programs)
        self.assertEqual((result.returncode, result.stdout),
                         (0, "deploy/setup: installing meson\n"), result.stderr)
        programs[-1] = ("apt-get", "exit 100")
        result = self.setup_on(debian, "test", programs=programs)
        self.assertEqual(result.returncode, 1)
        self.assertIn("apt-get could not install: meson", result.stderr)

    def test_servers_are_unpacked_and_not_installed(self):
        """promtool alone is taken out of its package, and Slurm is unpacked, once."""
        with tempfile.TemporaryDirectory() as tree:
            os.makedirs(os.path.join(tree, "deploy"))
            script = shutil.copy(os.path.join(ROOT, "deploy/setup"), os.path.join(tree, "deploy"))
            tools, release = (os.path.join(tree, name) for name in ("tools", "os-release"))
            os.makedirs(tools)
            for tool in self.TOOLS + ("mktemp", "rm", "tail", "mkdir", "mv", "chmod", "tar"):
                os.symlink(shutil.which(tool), os.path.join(tools, tool))
            with open(release, "w", encoding="utf-8") as file:
                file.write('ID=debian\nVERSION_ID="12"\n')
            os.makedirs(os.path.join(tree, "usr/bin"))
            with open(os.path.join(tree, "usr/bin/promtool"), "w", encoding="utf-8") as file:
                file.write("#!/usr/bin/env bash\n")
            os.chmod(os.path.join(tree, "usr/bin/promtool"), 0o755)
            for name, text in (("dpkg-query", "echo -n installed"),
                               ("apt-get", 'echo "apt-get $*" >>"$TREE/log"; : >"$3"_2_amd64.deb'),
                               ("dpkg-deb", 'if [[ $1 == --extract ]]; then mkdir -p "$3"; '
                                            'else tar --create --directory "$TREE" ./usr/bin/promtool; fi')):
                with open(os.path.join(tools, name), "w", encoding="utf-8") as file:
                    file.write(f"#!/usr/bin/env bash\n{text}\n")
                os.chmod(os.path.join(tools, name), 0o755)
            for _ in range(2):
                result = run(script, "test", env={"PATH": tools, "ADTOPK_OS_RELEASE": release, "TREE": tree})
                self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue(os.access(os.path.join(tree, ".tools/promtool"), os.X_OK))
            self.assertTrue(os.path.isdir(os.path.join(tree, ".tools/slurm")))
            with open(os.path.join(tree, "log"), encoding="utf-8") as file:
                self.assertEqual(file.read(), "apt-get -q download prometheus\napt-get -q download slurmctld "
                                 "slurmd slurm-client slurm-wlm-basic-plugins\n")

    def test_torch_is_installed_beside(self):
        """Into .torch of the tree that the script belongs to, once."""
        with tempfile.TemporaryDirectory() as tree:
            os.makedirs(os.path.join(tree, "deploy"))
            script = shutil.copy(os.path.join(ROOT, "deploy/setup"), os.path.join(tree, "deploy"))
            tools = os.path.join(tree, "tools")
            os.makedirs(tools)
            for tool in self.TOOLS + ("mktemp", "rm", "tail", "mkdir", "chmod", "cat", "touch"):
                os.symlink(shutil.which(tool), os.path.join(tools, tool))
            pip = '#!/usr/bin/env bash\necho "pip $*" >>"$LOG"\ntouch "${0%pip}accelerate"; ' \
                  'chmod +x "${0%pip}accelerate"\n'
            with open(os.path.join(tree, "pip"), "w", encoding="utf-8") as file:
                file.write(pip)
            programs = {name: "exit 0" for name in ("gcc", "meson", "ninja", "pkg-config", "protoc",
                                                    "protoc-c")}
            programs["python3"] = ('echo "python3 $*" >>"$LOG"; mkdir -p "$3/bin"; '
                                   'cat "$TREE/pip" >"$3/bin/pip"; chmod +x "$3/bin/pip"')
            for name, text in programs.items():
                with open(os.path.join(tools, name), "w", encoding="utf-8") as file:
                    file.write("#!/usr/bin/env bash\n" + text + "\n")
                os.chmod(os.path.join(tools, name), 0o755)
            log = os.path.join(tree, "log")
            environment = {"PATH": tools, "ADTOPK_OS_RELEASE": "/nowhere", "LOG": log, "TREE": tree}
            for _ in range(2):
                result = run(script, "torch", env=environment)
                self.assertEqual(result.returncode, 0, result.stderr)
            with open(log, encoding="utf-8") as file:
                self.assertEqual(file.read(), f"python3 -m venv {tree}/.torch\n"
                                 "pip install --disable-pip-version-check torch numpy accelerate"
                                 " lightning transformers\n")

    def test_usage(self):
        self.assertEqual(run(os.path.join(ROOT, "deploy/setup"), "everything").returncode, 2)


if __name__ == "__main__":
    unittest.main()
