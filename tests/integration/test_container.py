#!/usr/bin/env python3
"""The images of deploy/container, the commands of deploy/containers.md as they stand there, and the
manifests of deploy/kubernetes as a node of Kubernetes would follow them.

usage: ADTOPK_TEST_LONG=1 test_container.py BUILD [unittest's arguments]
Skips (77) where podman runs no container, and without that variable: each image compiles all of adtopk.
"""
import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

from build import BUILD
from container import BASE, Networks, Podman
from digits import unpack
from document import blocks
from machine import Impossible, bare_debian, quietly
from service import wait_for

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
KUBERNETES = os.path.join(ROOT, "deploy/kubernetes")
ADDED_BYTES = 30 << 20  # Debian's slim image has 30 MB: together they are below 60 MB
NODES = {"node-a": "10.99.0.1", "node-b": "10.99.0.2"}
TRAINER = """FROM adtopk:0.1.0
COPY train digits.csv /
WORKDIR /
USER 1000
"""
PODMAN = None
NETWORKS = None
FOLDER = None


def document(start):
    """The command of containers.md that begins with this."""
    with open(os.path.join(ROOT, "deploy/containers.md"), encoding="utf-8") as text:
        found = [line for block in blocks(text.read()) for line in block.lines if line.startswith(start)]
    assert len(found) == 1, (start, found)
    return found[0]


def manifests(name):
    import yaml  # here, because a short run has no need of it  pylint: disable=import-outside-toplevel
    with open(os.path.join(KUBERNETES, name), encoding="utf-8") as text:
        return list(yaml.safe_load_all(text))


def pod_of(name):
    return manifests(name)[0]["spec"]["template"]["spec"]


class Node:
    """What Kubernetes does with a pod on one node: its volumes, its variables, its containers."""

    def __init__(self, name, number, objects):
        self.name = name
        self.inside = NETWORKS.inside(number)
        self.folder = os.path.join(FOLDER, name)
        self.objects = objects

    def value(self, pod, entry):
        """The value of a variable, or the text in which variables before it stand."""
        if "valueFrom" not in entry:
            return entry["value"]
        field = entry["valueFrom"]["fieldRef"]["fieldPath"]
        return {"spec.nodeName": self.name, **pod}[field]

    def variables(self, fields, container):
        known = {}
        for entry in container.get("env", []):
            text = self.value(fields, entry)
            known[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: known[name[1]], text)
        return known

    def volume(self, pod_name, volume):
        """The folder of a volume, as Kubernetes makes it: for root, but for an empty one."""
        if "hostPath" in volume:
            path = os.path.join(self.folder, "host", volume["hostPath"]["path"].strip("/"))
            if volume["hostPath"]["type"] == "Directory":
                assert os.path.isdir(path), path
            os.makedirs(path, exist_ok=True)
            return path
        path = os.path.join(self.folder, pod_name, volume["name"])
        if os.path.isdir(path):
            return path
        os.makedirs(path)
        if "emptyDir" in volume:
            os.chmod(path, 0o777)
            return path
        kind = "ConfigMap" if "configMap" in volume else "Secret"
        name = volume["configMap"]["name"] if kind == "ConfigMap" else volume["secret"]["secretName"]
        for file, text in self.objects[kind, name].items():
            data = text.encode() if kind == "ConfigMap" else base64.b64decode(text)
            with open(os.path.join(path, file), "wb") as out:
                out.write(data)
            os.chmod(os.path.join(path, file), 0o644)
        return path

    def mounts(self, pod_name, spec, container, variables):
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in container.get("volumeMounts", []):
            path = self.volume(pod_name, volumes[mount["name"]])
            below = re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], mount.get("subPathExpr", ""))
            path = os.path.join(path, below) if below else path
            assert os.path.exists(path), path
            yield f"--volume={path}:{mount['mountPath']}:{'ro' if mount.get('readOnly') else 'rw'}"

    def command(self, pod_name, spec, container, fields, detached):
        security = {**spec["securityContext"], **container["securityContext"]}
        user = f"{security['runAsUser']}:{security.get('runAsGroup', 0)}"
        assert security["runAsNonRoot"] == (security["runAsUser"] != 0)
        variables = self.variables(fields, container)
        capabilities = security["capabilities"]
        return ["podman", "run", f"--name={pod_name}-{container['name']}-{self.name}", "--network=host",
                f"--user={user}", *(["--read-only"] if security.get("readOnlyRootFilesystem") else []),
                *(f"--cap-drop={name.lower()}" for name in capabilities["drop"]),
                *(f"--cap-add={name}" for name in capabilities.get("add", [])),
                "--security-opt=no-new-privileges", *(["--detach"] if detached else []),
                *(f"--env={name}={value}" for name, value in variables.items()),
                *self.mounts(pod_name, spec, container, variables),
                f"--entrypoint={json.dumps(container['command'])}", container["image"],
                *container.get("args", [])]

    def start(self, pod_name, spec, fields=(), detached=True):
        """Runs the init containers to their end, and starts the others; returns what was printed."""
        for container in spec.get("initContainers", []):
            PODMAN.shell(shlex.join(self.command(pod_name, spec, container, {}, False)), self.inside)
        return [PODMAN.shell(shlex.join(self.command(pod_name, spec, container, dict(fields), detached)), self.inside)
                for container in spec["containers"]]

    def run(self, container, *words):
        return PODMAN.shell(shlex.join(["podman", "exec", f"adtopkd-{container}-{self.name}", *words]), self.inside)


def answers(inside, path):
    """What the exporter there says; nothing while it does not answer."""
    done = subprocess.run([*inside, sys.executable, "-c", "import sys, urllib.request\n"
                           "print(urllib.request.urlopen(sys.argv[1]).read().decode(), end='')",
                           f"http://127.0.0.1:9477{path}"], capture_output=True, text=True, check=False)
    return done.stdout


class Containers(unittest.TestCase):
    """One set of images for all: the tests run in the order of their names."""

    def said_in(self, image, *words):
        return PODMAN.shell(shlex.join(["podman", "run", "--rm", "--network", "none", image, *words]))

    def assert_licences(self, image, package):
        """Each package that the image adds has its licence there; that of ours names what is linked in."""
        added = set.difference(*(set(self.said_in(name, "dpkg-query", "-W", "-f", "${Package}\n").split())
                                 for name in (image, BASE)))
        self.assertIn(package, added)
        self.said_in(image, "ls", *(f"/usr/share/doc/{name}/copyright" for name in added))
        said = self.said_in(image, "cat", f"/usr/share/doc/{package}/copyright",
                            "/usr/share/common-licenses/Apache-2.0")
        for words in ("protobuf-c, copyright", "License: BSD-2-Clause", "TERMS AND CONDITIONS FOR USE"):
            self.assertIn(words, said)

    def test_1_the_image_is_small(self):
        PODMAN.shell(document("podman build"), directory=ROOT)
        self.assertLess(PODMAN.added_bytes("adtopk:0.1.0"), ADDED_BYTES)
        self.assert_licences("adtopk:0.1.0", "adtopkd")
        folder = os.path.join(FOLDER, "training")
        os.mkdir(folder)
        shutil.copy(os.path.join(BUILD, "client/adtopk-digits"), f"{folder}/train")
        unpack(folder)
        with open(f"{folder}/Containerfile", "w", encoding="utf-8") as text:
            text.write(TRAINER)
        PODMAN.shell(f"podman build -t my-training {folder}")

    def test_2_one_node(self):
        """The commands of the document, one after the other, on a machine whose /run and /etc/adtopk are bare."""
        for place in ("/run/adtopk", "/etc/adtopk"):
            os.makedirs(place, exist_ok=True)
            quietly("mount", "-t", "tmpfs", "tmpfs", place)
        quietly("install", "-d", "-g", "10001", "-m", "0750", "/etc/adtopk")
        with open("/etc/adtopk/adtopkd.json", "w", encoding="utf-8") as text:
            json.dump({"node": 0}, text)
        inside = NETWORKS.inside(0)
        PODMAN.shell(document("install -d"), inside)
        PODMAN.shell(document("podman run --detach --name adtopkd "), inside)
        status = document("podman exec adtopkd")
        wait_for(lambda: subprocess.run([*inside, "sh", "-c", status], env=PODMAN.environment, capture_output=True,
                                        check=False).returncode == 0)
        self.assertIn("node 0: adtopkd 0.1.0", PODMAN.shell(status, inside))
        PODMAN.shell(document("podman run --detach --name adtopk-exporter"), inside)
        wait_for(lambda: answers(inside, "/healthz") == "ok\n")
        said = PODMAN.shell(document("podman run --rm") + " --data /digits.csv --steps 100", inside)
        self.assertRegex(said, "test accuracy|accuracy")
        PODMAN.shell(document("podman kill"), inside)
        wait_for(lambda: "the configuration has been taken" in PODMAN.shell("podman logs adtopkd"))
        PODMAN.shell(document("podman stop"), inside)
        PODMAN.shell("podman rm --all --force")

    def test_3_a_cluster(self):
        """Two nodes as the manifests have them: daemons with keys, exporters, a Job of two ranks."""
        os.environ["PATH"] += f":{BUILD}/client/adtopkctl"
        made = subprocess.run([f"{KUBERNETES}/nodes", "--keys", f"{FOLDER}/keys",
                               *(f"{name}={address}" for name, address in NODES.items())],
                              stdout=subprocess.PIPE, text=True, check=True)
        objects = {(item["kind"], item["metadata"]["name"]): item["data"] for item in json.loads(made.stdout)["items"]}
        nodes = [Node(name, number, objects) for number, name in enumerate(NODES)]
        for node in nodes:
            node.start("adtopkd", pod_of("cpu.yaml"))
        for node in nodes:
            wait_for(lambda node=node: '"up"' in node.run("adtopkd", "adtopkctl", "--json", "peers"), seconds=20)
            node.run("adtopkd", *pod_of("cpu.yaml")["containers"][0]["livenessProbe"]["exec"]["command"])
            wait_for(lambda node=node: "adtopk_up 1\n" in answers(node.inside, "/metrics"))
        job = pod_of("job.yaml")
        job["containers"][0]["command"] += ["--data", "/digits.csv", "--steps", "200"]
        ranks = [subprocess.Popen([*node.inside, *node.command("training", job, job["containers"][0], {
            "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(rank),
            "metadata.labels['batch.kubernetes.io/controller-uid']": "1-2-3"}, False)],
            env=PODMAN.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank, node in enumerate(nodes)]
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], said)
        hashes = set(re.findall(r"parameters\S*\s+(?:hash\s+)?([0-9a-f]{8,})", "".join(said)))
        self.assertEqual(len(hashes), 1, said)

    def test_4_the_manifests_have_the_schemas_of_kubernetes(self):
        """The PodMonitor is no kind of Kubernetes itself: test_kubernetes.py has its schema."""
        checker = os.path.join(BUILD, "kubernetes/bin/kubernetes-validate")
        if not os.path.exists(checker):
            made = subprocess.run(["sh", "-c", f"python3 -m venv {BUILD}/kubernetes && {BUILD}/kubernetes/bin/pip "
                                   "install --quiet kubernetes-validate==1.37.*"], check=False)
            if made.returncode != 0:
                self.skipTest("pip cannot install kubernetes-validate")
        for name in ("base", "cpu", "gpu", "job"):
            subprocess.run([checker, "--strict", f"{KUBERNETES}/{name}.yaml"], check=True)

    @unittest.skipUnless(os.path.exists(f"{BUILD}/tests/cuda/driver/libstandin-kernels.so"), "needs the stand-in")
    def test_5_the_image_of_gpu_nodes(self):
        """It starts with a driver that stands in for NVIDIA's; its worker finds all kernels."""
        PODMAN.shell(document("podman build").replace(" adtopk", " adtopk-gpu"), directory=ROOT)
        drivers = os.path.join(BUILD, "tests/cuda/driver")
        said = PODMAN.shell("podman run --rm --network none --read-only --cap-drop all --security-opt no-new-privileges "
                            f"--volume {drivers}:/drivers:ro --env ADTOPK_CUDA_LIBRARY=/drivers/libstandin-kernels.so "
                            "--env ADTOPK_ENGINE=cuda --env ADTOPK_SOCKET=/tmp/socket "
                            "--env ADTOPK_CONTROL_SOCKET=/tmp/control --env ADTOPK_INSECURE=1 "
                            "adtopk-gpu:0.1.0 timeout --preserve-status --signal TERM 5 adtopkd")
        self.assertRegex(said, r"residuals live on GPU-\S+ \(stand-in 0\)")
        self.assertNotIn("has no kernels", said)
        self.assert_licences("adtopk-gpu:0.1.0", "adtopk-device")


def main():
    global PODMAN, NETWORKS, FOLDER
    if "ADTOPK_TEST_LONG" not in os.environ:
        raise Impossible("images are built and run in a --long run")
    FOLDER = tempfile.mkdtemp(dir=BUILD)
    PODMAN = Podman(FOLDER)
    NETWORKS = Networks(list(NODES.values()))
    try:
        PODMAN.base(bare_debian(os.path.join(BUILD, "bare")))
        unittest.main(failfast=True)
    finally:
        PODMAN.close()
        NETWORKS.close()
        shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    try:
        main()
    except Impossible as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
