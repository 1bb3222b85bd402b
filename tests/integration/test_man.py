"""The manual pages have everything that the programs say of themselves, and roff takes them.

usage: test_man.py BUILD [unittest's arguments]
"""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

from build import ADTOPKCTL, ADTOPKD, BUILD

sys.dont_write_bytecode = True  # of man.py
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
MAN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/man.py")

PERF = os.path.join(BUILD, "tests/bench/adtopk-perf")
EXPORTER = os.path.join(BUILD, "client/exporter/adtopk-exporter")
PROGRAMS = [ADTOPKD, ADTOPKCTL, PERF, EXPORTER]


# What a page of each section of the manual has at least.
SECTIONS = {"1": {"ENVIRONMENT", "FILES", "SIGNALS", "EXIT STATUS", "EXAMPLES"},
            "3": {"ENVIRONMENT", "FILES", "SIGNALS", "EXAMPLES"}, "5": {"EXAMPLES"}}
SECTIONS["8"] = SECTIONS["1"]


def flow(text):
    """Running text on one line, however it was wrapped."""
    return " ".join(text.split())


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class Pages(unittest.TestCase):
    def page(self, name, programs=PROGRAMS):
        made = run(sys.executable, MAN, name, *programs)
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        if shutil.which("groff"):
            warned = run("groff", "-man", "-Tutf8", "-ww", "-z", input=made.stdout)
            self.assertEqual((warned.returncode, warned.stderr), (0, ""))
            shown = run("groff", "-man", "-Tutf8", "-P-cbou", "-rLL=78n", input=made.stdout).stdout
            self.assertEqual([line for line in shown.splitlines() if len(line) > 80], [], "as MANWIDTH=80 man shows it")
        if shutil.which("mandoc"):
            linted = run("mandoc", "-T", "lint", "-W", "warning", input=made.stdout)
            self.assertEqual((linted.returncode, linted.stdout), (0, ""))
        heads = re.findall(r'^\.SH "?([A-Z ]+)', made.stdout, re.MULTILINE)
        self.assertLessEqual(SECTIONS[name[-1]], set(heads), name)
        return re.sub(r"\\f[BIR]", "", made.stdout).replace("\\-", "-").replace("\\(aq", "'")

    def test_adtopkctl(self):
        page = self.page("adtopkctl.1")
        text = run(ADTOPKCTL, "--help").stdout
        commands = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  ", text.split("\n\n")[2], re.MULTILINE)
        self.assertIn("verify", commands)
        for name in commands:
            text = run(ADTOPKCTL, *name.split(), "--help").stdout
            self.assertIn(f'.SS "{name}', page)
            for flag in re.findall(r"^  (--[a-z-]+(?: [A-Z]+)?)", text, re.MULTILINE):
                self.assertIn(f".TP\n{flag}\n", page)
            self.assertIn(text.splitlines()[2].strip(), flow(page))
        self.assertIn(".TP\n5\ndegraded", page)

    def test_adtopkd(self):
        page, file = self.page("adtopkd.8"), self.page("adtopkd.json.5")
        text = run(ADTOPKD, "--help").stdout
        flags = re.findall(r"^[* ] --([a-z-]+)", text, re.MULTILINE)
        self.assertIn("log-level", flags)
        for flag in flags:
            self.assertIn(f".TP\n--{flag}", page)
            if flag not in ("config", "check-config", "print-config", "help", "version"):
                self.assertIn(f".TP\n{flag.replace('-', '_')}\n", file)
        self.assertIn('array of objects such as {"node": 1, "endpoint": "tcp://', flow(file))
        self.assertNotIn("N=ENDPOINT", file)
        self.assertNotIn("KEY=USER", file)
        for name in ("ADTOPK_CONFIG", "ADTOPK_NCCL_LIBRARY", "SIGHUP", "1", "2"):
            self.assertIn(f".TP\n{name}\n", page)

    def test_device(self):
        page = self.page("adtopk-device.8")
        for name in ("--probe UUID", "ADTOPK_CUDA_LIBRARY", "CUDA_VISIBLE_DEVICES", "2"):
            self.assertIn(f".TP\n{name}\n", page)

    def test_perf(self):
        page = self.page("adtopk-perf.1")
        text = run(PERF, "--help").stdout
        flags = re.findall(r"^  (--[a-z-]+(?: [A-Z]+)?)", text, re.MULTILINE)
        self.assertIn("--min SIZE", flags)
        for name in [*flags, *re.findall(r"^  ([a-z]+)  ", text, re.MULTILINE), "0", "1", "2"]:
            self.assertIn(f".TP\n{name}\n", page)

    @unittest.skipUnless(os.path.exists(EXPORTER), "built without the exporter")
    def test_exporter(self):
        page = self.page("adtopk-exporter.1")
        metrics = re.findall(r"`(\w+)`", run(EXPORTER, "--metrics").stdout)
        self.assertIn("adtopk_job_steps_total", metrics)
        for name in [*metrics, "--listen ADDRESS:PORT", "--socket PATH", "--version", "0", "1", "2"]:
            self.assertIn(f".TP\n{name}\n", page)

    def test_examples(self):
        for name in ("adtopk-digits", "adtopk-text", "adtopk-transformer"):
            program = os.path.join(BUILD, "client", name)
            page = self.page(f"{name}.1", [program])
            flags = re.findall(r"^  (--[a-z-]+(?: [A-Z]+)?)", run(program, "--help").stdout, re.MULTILINE)
            self.assertIn("--data FILE", flags)
            for flag in flags:
                self.assertIn(f".TP\n{flag}\n", page)

    def test_library(self):
        """Every function that the library exports, every status, and every field."""
        page = self.page("libadtopk.3")
        with open(os.path.join(ROOT, "client/src/adtopk.map"), encoding="utf-8") as file:
            functions = re.findall(r"^ +(adtopk_\w+);", file.read(), re.MULTILINE)
        self.assertIn("adtopk_open", functions)
        heads = re.findall(r'^\.SS "(.*)"$', page, re.MULTILINE)
        named = {name for head in heads for name in head.split(", ")}
        self.assertLessEqual(set(functions), named)
        with open(os.path.join(ROOT, "client/include/adtopk/adtopk.h"), encoding="utf-8") as file:
            header = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
        with open(os.path.join(ROOT, "proto/include/adtopk/status.h"), encoding="utf-8") as file:
            statuses = re.findall(r"^ +(ADTOPK_\w+ = \d+)", file.read(), re.MULTILINE)
        fields = re.findall(r"^ {4}(\w[^;()\n]*;)$", header, re.MULTILINE)
        self.assertGreater(len(fields), 40)
        for text in fields + statuses:
            self.assertTrue(re.search(rf"\n\.TP\n(.*; )?{re.escape(text)}", page), text)
        self.assertNotIn("/*", page.partition(".SH EXAMPLES")[0])
        self.assertIn("MISMATCH: world size or policy differ", page)

    def test_policy(self):
        page = self.page("adtopk-policy.5")
        for key in json.loads(run(ADTOPKCTL, "policy", "keys", "--json").stdout)["keys"]:
            self.assertIn(f".TP\n{key['name']}\n", page)
        for one in json.loads(run(ADTOPKCTL, "sparsifiers", "--json").stdout)["sparsifiers"]:
            self.assertIn(f".TP {one['name']} {one['help']} ", flow(page))

    def test_usage(self):
        made = run(sys.executable, MAN, "adtopk.9", *PROGRAMS)
        self.assertEqual((made.returncode, made.stdout), (1, ""))
        self.assertIn("usage: man.py PAGE", made.stderr)

    def test_roff_is_not_commanded(self):
        spec = importlib.util.spec_from_file_location("man", MAN)
        man = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(man)
        self.assertEqual(man.plain(".x\n'y\\z -"), "\\&.x\n\\(aqy\\ez \\-")

    def test_code_is_folded(self):
        """Between words, never in a text, and below the second column of a list."""
        spec = importlib.util.spec_from_file_location("man", MAN)
        man = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(man)
        for given, room, made in (
                ("int f(long argument, int other);", 24, ["int f(long argument,", "    int other);"]),
                ('  x = {"a b c d", "e"};', 18, ['  x = {"a b c d",', '      "e"};']),
                ("f()   does something", 16, ["f()   does", "      something"]),
                ("abcdefgh", 4, ["abcdefgh"])):
            self.assertEqual(man.folded(given, room).split("\n"), made)


if __name__ == "__main__":
    unittest.main()
