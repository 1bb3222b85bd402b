#!/usr/bin/env python3
"""deploy/kubernetes without Kubernetes: what `nodes` prints is what daemons take, the manifests for nodes
with and without GPUs differ by the GPUs alone, and the PodMonitor has the schema of tests/data.
test_container.py runs the manifests, and has those of Kubernetes checked.

usage: test_kubernetes.py BUILD [unittest's arguments]
"""
import base64
import copy
import importlib.util
import json
import os
import re
import subprocess
import sys
import unittest

from build import BUILD
from cluster import die_with_parent
from service import WithDirectory, wait_for

KUBERNETES = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../deploy/kubernetes")
SCHEMA = os.path.join(KUBERNETES, "../../tests/data/podmonitor.schema.json")
TYPES = {"object": dict, "array": list, "string": str}
DAEMON = os.path.join(BUILD, "daemon/adtopkd")


def faults(value, schema, place=""):
    """Where a value is not as a schema in JSON Schema wants it. Only words that our schema has are known."""
    assert set(schema) <= {"type", "required", "additionalProperties", "properties", "items", "pattern"}, schema
    if not isinstance(value, TYPES[schema["type"]]):
        return [f"{place} is no {schema['type']}"]
    if isinstance(value, str):
        return [] if re.fullmatch(schema.get("pattern", ".*"), value) else [f"{place} is '{value}'"]
    found = [f"{place}.{name} is missing" for name in schema.get("required", ()) if name not in value]
    known = schema.get("properties", {})
    for name, one in enumerate(value) if isinstance(value, list) else value.items():
        inner = schema["items"] if isinstance(value, list) else known.get(name, schema["additionalProperties"])
        found += faults(one, inner, f"{place}.{name}") if inner else [f"{place}.{name} is not known"]
    return found


@unittest.skipUnless(importlib.util.find_spec("yaml"), "no PyYAML here (package python3-yaml)")
class PodMonitor(unittest.TestCase):
    """For the Prometheus operator, whose kinds Kubernetes does not know."""

    @staticmethod
    def manifest(name):
        import yaml  # pylint: disable=import-outside-toplevel
        with open(f"{KUBERNETES}/{name}", encoding="utf-8") as text:
            return list(yaml.safe_load_all(text))[0]

    def setUp(self):
        self.monitor = self.manifest("podmonitor.yaml")
        with open(SCHEMA, encoding="utf-8") as text:
            self.schema = json.load(text)

    def test_schema(self):
        self.assertEqual(faults(self.monitor, self.schema), [])

    def test_the_schema_refuses(self):
        for path, value, said in ((("spec", "interval"), "15s", ".spec.interval is not known"),
                                  (("spec", "podMetricsEndpoints", 0, "port"), 9477, "0.port is no string"),
                                  (("spec", "podMetricsEndpoints", 0, "interval"), "15", "0.interval is '15'"),
                                  (("spec", "selector"), {}, ".spec.selector.matchLabels is missing"),
                                  (("kind",), "ServiceMonitor", ".kind is 'ServiceMonitor'")):
            changed = place = copy.deepcopy(self.monitor)
            for name in path[:-1]:
                place = place[name]
            place[path[-1]] = value
            found = faults(changed, self.schema)
            self.assertEqual(len(found), 1, found)
            self.assertIn(said, found[0])

    def test_what_it_names_is_there(self):
        for name in ("cpu.yaml", "gpu.yaml"):
            template = self.manifest(name)["spec"]["template"]
            self.assertLessEqual(self.monitor["spec"]["selector"]["matchLabels"].items(),
                                 template["metadata"]["labels"].items())
            ports = {port["name"] for container in template["spec"]["containers"]
                     for port in container.get("ports", [])}
            self.assertLessEqual({point["port"] for point in self.monitor["spec"]["podMetricsEndpoints"]}, ports)
        self.assertEqual(self.monitor["metadata"]["namespace"], self.manifest("base.yaml")["metadata"]["name"])


class Nodes(WithDirectory):
    def nodes(self, *words, tools=f"{BUILD}/client/adtopkctl"):
        return subprocess.run([sys.executable, f"{KUBERNETES}/nodes", "--keys", f"{self.directory}/keys", *words],
                              env={**os.environ, "PATH": f"{tools}:/usr/bin:/bin"}, capture_output=True, text=True,
                              check=False)

    def objects(self, *words):
        made = self.nodes(*words)
        self.assertEqual(made.returncode, 0, made.stderr)
        return {item["kind"]: item["data"] for item in json.loads(made.stdout)["items"]}

    def refused(self, said, *words, **given):
        made = self.nodes(*words, **given)
        self.assertEqual((made.returncode, made.stdout), (1, ""))
        self.assertIn(said, made.stderr)
        self.assertEqual(made.stderr.count("\n"), 1, made.stderr)

    def test_daemons_take_every_configuration(self):
        with open(f"{self.directory}/more.json", "w", encoding="utf-8") as text:
            json.dump({"log_format": "json"}, text)
        made = self.objects("--set", f"{self.directory}/more.json", "a.example=10.0.0.1", "b=fd00::2", "c=c.example")
        for number, name in enumerate(("a.example", "b", "c")):
            config = self.check(made, name)
            self.assertEqual((config["node"], len(config["peers"]), config["log_format"]), (number, 2, "json"))
            self.assertEqual(config["listen"], f"tcp://{'[::]' if name == 'b' else '0.0.0.0'}:7400")

    def write(self, made, name):
        """A node's command line and its variables, as its container has them."""
        path, key = f"{self.directory}/{name}.json", f"{self.directory}/{name}.key"
        with open(path, "w", encoding="utf-8") as text:
            text.write(made["ConfigMap"][f"{name}.json"])
        with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o400), "wb") as out:
            out.write(base64.b64decode(made["Secret"][f"{name}.key"]))
        return [DAEMON, "--config", path], {
            "ADTOPK_KEY_FILE": key, "ADTOPK_SOCKET": f"{self.directory}/{name}.s",
            "ADTOPK_CONTROL_SOCKET": f"{self.directory}/{name}.c"}

    def check(self, made, name):
        """The daemon takes the node's configuration."""
        command, variables = self.write(made, name)
        done = subprocess.run([*command, "--check-config"], capture_output=True, text=True, env=variables,
                              check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(made["ConfigMap"][f"{name}.json"])

    def test_many_nodes_have_seeds(self):
        names = [f"ip-10-0-0-{number}.example.internal" for number in range(120)]
        words = [f"{name}=10.0.0.{number}" for number, name in enumerate(names)]
        self.refused("the configurations of 120 nodes have", *words)
        made = self.objects("--seeds", "2", *words)
        seed, other = self.check(made, names[1]), self.check(made, names[100])
        self.assertEqual([peer["node"] for peer in seed["seeds"]], [0])
        self.assertEqual([peer["node"] for peer in seed["peers"]], list(range(2, 120)))
        self.assertEqual(([peer["node"] for peer in other["seeds"]], other["peers"]), ([0, 1], []))
        self.refused("--seeds 3: there are 2 nodes", "--seeds", "3", "a=1", "b=2")

    def test_nodes_meet_by_a_seed(self):
        """On one machine each listens on its own address."""
        names = "abc"
        made = self.objects("--seeds", "1", *(f"{name}=127.0.0.{1 + at}" for at, name in enumerate(names)))
        for at, name in enumerate(names):
            command, variables = self.write(made, name)
            daemon = subprocess.Popen([*command, "--listen", f"tcp://127.0.0.{1 + at}:7400"], env=variables,
                                      stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
            self.addCleanup(daemon.wait)
            self.addCleanup(daemon.kill)

        def meets(name):
            done = subprocess.run([f"{BUILD}/client/adtopkctl/adtopkctl", "--socket", f"{self.directory}/{name}.c",
                                   "--json", "status"], capture_output=True, text=True, check=False)
            peers = json.loads(done.stdout)["peers"] if done.stdout else []
            return [peer["state"] for peer in peers] == ["up", "up"]

        for name in names:
            wait_for(lambda name=name: meets(name))

    def test_keys_stay(self):
        before = self.objects("a=10.0.0.1", "b=10.0.0.2")
        after = self.objects("a=10.0.0.1", "b=10.0.0.2", "c=10.0.0.3")
        for name, key in before["Secret"].items():
            self.assertEqual(after["Secret"][name], key)

    def test_bad_input(self):
        self.refused("'a' is not NAME=ADDRESS", "a")
        self.refused("'A_b=1' is not NAME=ADDRESS", "A_b=1")
        self.refused("node 'a' is there twice", "a=1", "a=2")
        self.refused("nodes 'a' and 'b' have one address, 10.0.0.1", "a=10.0.0.1", "b=10.0.0.1")
        self.refused("nodes 'a' and 'b' have one address, FD00::2", "a=fd00::2", "b=FD00::2")
        self.refused("No such file", "--set", f"{self.directory}/none", "a=1")
        for text, said in (("{", "more.json: Expecting"), ('{"peers": []}', "more.json: 'peers' follows from"),
                           ("[]", "more.json: not a JSON object"),
                           ('{"log_formt": "json"}', "more.json: unknown setting 'log_formt'; did you mean "
                                                     "'log_format'?"),
                           ('{"x": 1}', "more.json: unknown setting 'x'\n")):
            with open(f"{self.directory}/more.json", "w", encoding="utf-8") as out:
                out.write(text)
            self.refused(said, "--set", f"{self.directory}/more.json", "a=1")
        self.refused("adtopkctl: No such file", "a=1", tools="/nowhere")
        os.makedirs(f"{self.directory}/keys", exist_ok=True)
        with open(f"{self.directory}/keys/a.key", "w", encoding="utf-8") as text:
            text.write("no key")
        os.chmod(f"{self.directory}/keys/a.key", 0o600)
        self.refused("a.key", "a=1")

    def test_settings_are_the_daemons(self):
        """The script runs where no daemon is installed, so it has their names itself."""
        with open(f"{self.directory}/none.json", "w", encoding="utf-8") as text:
            text.write("{}")
        printed = subprocess.run([DAEMON, "--print-config", "--config", text.name], capture_output=True, check=True)
        with open(f"{KUBERNETES}/nodes", encoding="utf-8") as text:
            named = re.search(r'SETTINGS = """(.*?)"""', text.read(), re.S)[1].split()
        self.assertEqual(sorted(named), sorted(json.loads(printed.stdout)["settings"]))

    def test_images_have_the_version_of_these_sources(self):
        with open(f"{KUBERNETES}/../../meson.build", encoding="utf-8") as text:
            version = re.search(r"version: '([\d.]+)'", text.read())[1]
        for name in ("kubernetes/cpu.yaml", "kubernetes/gpu.yaml", "containers.md"):
            with open(f"{KUBERNETES}/../{name}", encoding="utf-8") as text:
                self.assertEqual(set(re.findall(r"\badtopk(?:-gpu)?:(\d[\d.]*\d)", text.read())), {version}, name)

    def test_gpu_differs_by_what_a_gpu_needs(self):
        with open(f"{KUBERNETES}/gpu.yaml", encoding="utf-8") as text:
            lines = text.read().splitlines()[2:]
        lines.remove("      runtimeClassName: nvidia")
        lines.remove("      tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]")
        changed = "\n".join(lines).replace("adtopkd-gpu", "adtopkd-cpu").replace("component: gpu", "component: cpu")
        changed = changed.replace("adtopk-gpu:", "adtopk:").replace("operator: In,", "operator: NotIn,")
        with open(f"{KUBERNETES}/cpu.yaml", encoding="utf-8") as text:
            self.assertEqual(changed, "\n".join(text.read().splitlines()[1:]))


if __name__ == "__main__":
    unittest.main()
