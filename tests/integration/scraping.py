"""adtopk-exporter over a control socket, and what it says."""
import contextlib
import http.client
import os
import re
import subprocess
import unittest

from build import BUILD
from cluster import PATIENCE, die_with_parent

EXPORTER = os.path.join(BUILD, "client", "exporter", "adtopk-exporter")
SAMPLE = re.compile(r'(adtopk_[a-z_]+)(?:\{([^}]*)\})? (-?[0-9.e+-]+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"(?:,|$)')


def read(text, open_metrics):
    """{(name, labels)}: value; fails where the text is not as the formats ask."""
    values, families, family = {}, {}, None
    lines = text.splitlines()
    if open_metrics:
        assert lines.pop() == "# EOF"
    for line in lines:
        if line.startswith("# HELP "):
            family = line.split()[2]
            assert family not in families, line
            families[family] = None
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family and families[family] is None, line
            families[family] = line.split()[3]
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            counter = families[family] == "counter"
            if families[family] == "histogram":
                assert name in [f"{family}_{part}" for part in ("bucket", "count", "sum")], line
            else:
                assert name == family + ("_total" if counter and open_metrics else ""), line
            assert name.endswith("_total") == counter, line
            assert LABEL.sub("", labels or "") == "", line
            sample = (name, frozenset(LABEL.findall(labels or "")))
            assert sample not in values, line
            values[sample] = float(value)
    return values


class Scraping(unittest.TestCase):
    """A test with an exporter, which start() starts."""

    def run_exporter(self, *command, **more):
        """The process, and its first line."""
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=die_with_parent, **more)
        self.addCleanup(self.end, process)
        return process, process.stderr.readline()

    def start(self, control, *more):
        process, said = self.run_exporter(EXPORTER, "--socket", control, "--listen", "127.0.0.1:0", *more)
        self.assertIn("listens on", said)
        self.port = int(said.rsplit(":", 1)[-1])
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.wait()
        process.stderr.close()

    def get(self, path, method="GET", source=("127.0.0.1", 0), **headers):
        """(status, headers, text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE,
                                                source_address=source)
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()

    def metrics(self, **headers):
        status, given, text = self.get("/metrics", **headers)
        self.assertEqual(status, 200)
        return read(text, "openmetrics" in given["Content-Type"])
