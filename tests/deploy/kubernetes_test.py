"""deploy/kubernetes: what it renders to is valid, and fits the programs."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest

import jsonschema

sys.path.insert(0, os.getcwd())
from tests.deploy import kubernetes_objects as k8s  # noqa: E402

_PATIENCE_S = 60
_PROGRAMS = {
    "optshard-coordinator": "server/coordinator/optshard-coordinator",
    "optshard-server": "server/node/optshard-server",
}
_SCHEMAS = "external/kubernetes_tools/schemas"
_UNITS = {"Mi": 2 ** 20, "Gi": 2 ** 30}


def _bytes(quantity):
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()
    return int(number) * _UNITS[unit]


def _run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=_PATIENCE_S)


def _definitions(version):
    """Of Kubernetes, and of the objects that others add to it."""
    with open(os.path.join(_SCHEMAS, version), encoding="utf-8") as file:
        found = json.load(file)["$defs"]
    for name in ("jobset", "trainjob"):
        path = os.path.join("tests/deploy/schemas", name + ".json")
        with open(path, encoding="utf-8") as file:
            found.update(json.load(file)["$defs"])
    return found


def _definition_of(definitions, each):
    group, _, version = each["apiVersion"].rpartition("/")
    for name, definition in definitions.items():
        kind = definition.get("properties", {}).get("kind", {}).get("enum")
        api = definition.get("properties", {}).get("apiVersion", {}).get("enum")
        if kind == [each["kind"]] and api == [each["apiVersion"]]:
            return name
    raise AssertionError("no schema of %s %s/%s" % (each["kind"], group, version))


class Rendered(unittest.TestCase):
    def test_Overlays_AreThoseThatTheDocumentNames(self):
        with open(os.path.join(k8s.ROOT, "docs/deploy/kubernetes.md"), encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(sorted(set(re.findall(r"deploy/kubernetes/overlays/([\w-]+)", text))),
                         k8s.overlays())

    def test_OldAndNewKustomize_GiveTheSame(self):
        other = shutil.which("kubectl", path="/usr/local/bin:/usr/bin:/bin")
        if other is None:
            self.skipTest("there is no other kubectl than Debian's")
        for overlay in k8s.overlays():
            with self.subTest(overlay=overlay):
                def by_name(objects):
                    return sorted(objects, key=lambda e: (e["kind"], e["metadata"]["name"]))
                self.assertEqual(by_name(k8s.render(overlay)),
                                 by_name(k8s.render(overlay, other)))

    def test_EveryObject_IsValid_InTheNewestTwoVersions(self):
        versions = sorted(os.listdir(_SCHEMAS))
        self.assertEqual(len(versions), 2)
        for version in versions:
            definitions = _definitions(version)
            for overlay in k8s.overlays():
                for each in k8s.render(overlay):
                    with self.subTest(version=version, overlay=overlay, kind=each["kind"]):
                        name = _definition_of(definitions, each)
                        schema = {"$defs": definitions, "$ref": "#/$defs/" + name}
                        jsonschema.Draft202012Validator(schema).validate(each)

    def test_UnknownField_IsNotValid(self):
        definitions = _definitions(sorted(os.listdir(_SCHEMAS))[-1])
        for overlay in k8s.overlays():
            for pod_path in k8s.POD_PATHS:
                objects = k8s.render(overlay)
                pod = k8s.at(objects, pod_path)
                if pod is None:
                    continue
                with self.subTest(overlay=overlay, pod=pod_path):
                    pod["containers"][0]["imagePulPolicy"] = "Always"
                    [each] = k8s.of_kind(objects, pod_path[0])
                    name = _definition_of(definitions, each)
                    schema = {"$defs": definitions, "$ref": "#/$defs/" + name}
                    with self.assertRaises(jsonschema.ValidationError):
                        jsonschema.Draft202012Validator(schema).validate(each)


class Programs(unittest.TestCase):
    def test_EveryFlag_IsOneOfTheProgram(self):
        helps = {image: _run(program, "--help").stdout for image, program in _PROGRAMS.items()}
        drain = _run(_PROGRAMS["optshard-server"], "--drain", "--help").stdout
        checked = 0

        def check(text, arguments):
            for argument in arguments:
                flag = argument.partition("=")[0]
                self.assertRegex(text, r"(?m)^  (--\[no-\]|--)%s\b" % flag.removeprefix("--"))

        for overlay in k8s.overlays():
            for pod in k8s.pods(k8s.render(overlay)):
                for container in pod.coordinators() + pod.servers():
                    with self.subTest(overlay=overlay, container=container["name"]):
                        check(helps[container["image"]], container["args"])
                        hook = container["lifecycle"]["preStop"].get("exec")
                        if hook:
                            check(drain, [each for each in hook["command"][1:]
                                          if each != "--drain"])
                        checked += 1
        self.assertEqual(checked, 2 * len(k8s.overlays()))

    def test_EveryVariable_IsOneThatTrainersRead(self):
        with open(os.path.join(k8s.ROOT, "docs/options.md"), encoding="utf-8") as file:
            rows = re.findall(r"(?m)^\| (`\w+`(?:, `\w+`)*) \|", file.read())
        known = {name.strip("`") for row in rows for name in row.split(", ")}
        for overlay in k8s.overlays():
            for pod in k8s.pods(k8s.render(overlay)):
                for trainer in pod.trainers():
                    self.assertLessEqual(set(k8s.environment(trainer)), known)

    def test_EveryImage_IsAStageOfADockerfile(self):
        folder = os.path.join(k8s.ROOT, "deploy", "docker")
        stages = set()
        for name in os.listdir(folder):
            if name.endswith("Dockerfile"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    stages |= set(re.findall(r"(?mi)^FROM .* AS ([\w-]+)$", file.read()))
        for overlay in k8s.overlays():
            for pod in k8s.pods(k8s.render(overlay)):
                for container in pod.all_containers():
                    self.assertIn(container["image"], stages)

    def test_MemoryOfServers_IsWhatTheJobNeeds_AndNotTwice(self):
        for overlay in k8s.overlays():
            for pod in k8s.pods(k8s.render(overlay)):
                for server in pod.servers():
                    asked = shlex.split(pod.annotations["optshard/memory-need"])
                    result = _run(_PROGRAMS["optshard-server"], "--memory-need", *asked)
                    self.assertEqual(result.returncode, 0, result.stdout)
                    need = json.loads(result.stdout.splitlines()[-1])["server_bytes"]
                    limit = _bytes(server["resources"]["limits"]["memory"])
                    with self.subTest(overlay=overlay, need_mib=need // 2 ** 20):
                        self.assertGreaterEqual(limit, need)
                        self.assertLess(limit, 2 * need)


if __name__ == "__main__":
    unittest.main()
