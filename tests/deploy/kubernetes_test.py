"""deploy/kubernetes: what it renders to is valid, and fits the programs and itself."""

import copy
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import jsonschema

sys.path.insert(0, os.getcwd())
from tests.deploy import kubernetes_objects as k8s  # noqa: E402
from tests.deploy import kubernetes_rules as rules  # noqa: E402

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
            for pod_path in _POD_PATHS:
                objects = k8s.render(overlay)
                pod = _at(objects, pod_path)
                if pod is None:
                    continue
                with self.subTest(overlay=overlay, pod=pod_path):
                    pod["containers"][0]["imagePulPolicy"] = "Always"
                    [each] = k8s.of_kind(objects, pod_path[0])
                    name = _definition_of(definitions, each)
                    schema = {"$defs": definitions, "$ref": "#/$defs/" + name}
                    with self.assertRaises(jsonschema.ValidationError):
                        jsonschema.Draft202012Validator(schema).validate(each)


_POD_PATHS = (
    ("StatefulSet", "spec", "template", "spec"),
    ("JobSet", "spec", "replicatedJobs", 0, "template", "spec", "template", "spec"),
    ("TrainingRuntime", "spec", "template", "spec", "replicatedJobs", 0, "template", "spec",
     "template", "spec"),
)


def _at(objects, path):
    """What is there in the only object of a kind; None where there is no such object."""
    found = k8s.of_kind(objects, path[0])
    if not found:
        return None
    [value] = found
    for step in path[1:]:
        value = value[step]
    return value


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
            known = set(re.findall(r"(?m)^\| `(\w+)` \|", file.read()))
        known |= {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}  # torchrun's, for the trainer's own use
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


class Rules(unittest.TestCase):
    def test_EveryOverlay_KeepsThem(self):
        for overlay in k8s.overlays():
            with self.subTest(overlay=overlay):
                self.assertEqual(rules.problems(k8s.render(overlay)), [])

    def test_AnotherNumberOfNodes_InThePlacesThatThePatchesName_KeepsThem(self):
        with tempfile.TemporaryDirectory() as folder:
            copied = os.path.join(folder, "kubernetes")
            shutil.copytree(os.path.dirname(k8s.OVERLAYS), copied)
            overlay = os.path.join(copied, "overlays", "multi-node-cpu")
            places = 0
            for name in ("nodes.yaml", "min-available.yaml", "world-size.yaml"):
                path = os.path.join(overlay, name)
                with open(path, encoding="utf-8") as file:
                    text, count = re.subn(r'(value: "?|--world-size=)2', r"\g<1>3", file.read())
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                places += count
            self.assertEqual(places, 5)  # as docs/deploy/kubernetes.md says
            objects = k8s.render(overlay)
            self.assertEqual(rules.problems(objects), [])
            [trained] = [pod for pod in k8s.pods(objects) if pod.trainers()]
            self.assertEqual(trained.count, 3)

    def test_EachRule_SeesWhatItIsFor(self):
        """Every mutation of what is right is seen, by the rule that is for it."""
        right = k8s.render("multi-node-cpu")
        seen = set()
        for rule, mutate in _MUTATIONS:
            objects = copy.deepcopy(right)
            mutate(objects)
            with self.subTest(rule=rule, mutation=mutate.__name__):
                found = [line for line in rules.problems(objects) if line.startswith(rule + ": ")]
                self.assertNotEqual(found, [])
                seen.add(rule)
        self.assertEqual(seen, {rule.__name__ for rule in rules.RULES})


def _only(objects, kind, name=None):
    [found] = [each for each in k8s.of_kind(objects, kind)
               if name in (None, each["metadata"]["name"])]
    return found


def _node(objects):
    return _at(objects, _POD_PATHS[1])


def _server(objects):
    return _node(objects)["initContainers"][0]


def _trainer(objects):
    return _node(objects)["containers"][0]


def _set_flag(container, flag, value):
    container["args"] = [each for each in container["args"] if each.partition("=")[0] != flag]
    if value is not None:
        container["args"].append(flag + ("=" + value if value else ""))


def _set_variable(container, name, value):
    container["env"] = [each for each in container["env"] if each["name"] != name]
    container["env"].append({"name": name, "value": value})


def _put(path, key, value):
    """A mutation: `path(objects)[key] = value`; None removes it."""
    def mutate(objects):
        if value is None:
            del path(objects)[key]
        else:
            path(objects)[key] = value
    mutate.__name__ = "%s of %s becomes %s" % (key, path.__name__, value)
    return mutate


def _flag(path, flag, value):
    def mutate(objects):
        _set_flag(path(objects), flag, value)
    mutate.__name__ = "%s becomes %s" % (flag, value)
    return mutate


def _variable(name, value):
    def mutate(objects):
        _set_variable(_trainer(objects), name, value)
    mutate.__name__ = "%s becomes %s" % (name, value)
    return mutate


def _service(objects):
    return _only(objects, "Service", "optshard-coordinator")["spec"]


def _headless(objects):
    return _only(objects, "Service", "optshard-nodes")["spec"]


def _coordinator(objects):
    return _at(objects, _POD_PATHS[0])["containers"][0]


def _budget(objects):
    return _only(objects, "PodDisruptionBudget", "optshard-nodes")["spec"]


def _deny(objects):
    return _only(objects, "NetworkPolicy", "deny-by-default")["spec"]


def _admits(objects):
    return _only(objects, "NetworkPolicy", "coordinator")["spec"]["ingress"][0]["ports"][0]


def _peer(objects):
    return _only(objects, "NetworkPolicy", "coordinator")["spec"]["podSelector"]["matchLabels"]


def _job_metadata(objects):
    return _only(objects, "JobSet")["metadata"]


def _job_spec(objects):
    return _only(objects, "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]


def _context(objects):
    return _node(objects)["securityContext"]


def _own_context(objects):
    return _server(objects)["securityContext"]


def _namespace_labels(objects):
    return _only(objects, "Namespace")["metadata"]["labels"]


def _limits(objects):
    return _server(objects)["resources"]["limits"]


def _socket_volume(objects):
    return _trainer(objects)["volumeMounts"][0]


def _checkpoint_mount(objects):
    [mount] = [each for each in _server(objects)["volumeMounts"] if each["name"] == "checkpoints"]
    return mount


def _checkpoint_volume(objects):
    [volume] = [each for each in _node(objects)["volumes"] if each["name"] == "checkpoints"]
    return volume["persistentVolumeClaim"]


def _claim(objects):
    return _only(objects, "PersistentVolumeClaim")["spec"]


_MUTATIONS = (
    ("names", _put(_job_metadata, "name", "x" * 21)),
    ("names", _put(_job_metadata, "labels", {})),
    ("names", _put(_job_metadata, "namespace", "default")),
    ("services", _put(_service, "selector", {"app.kubernetes.io/component": "x"})),
    ("services", _put(_service, "ports", [{"port": 4701, "targetPort": "grpc"}])),
    ("services", _put(_headless, "publishNotReadyAddresses", False)),
    ("services", _put(_node, "subdomain", "x")),
    ("services", _flag(_server, "--owner-listen", "0.0.0.0:4999")),
    ("disruption", _put(_budget, "minAvailable", 1)),
    ("disruption", _put(_job_spec, "parallelism", 3)),
    ("network", _put(_deny, "policyTypes", ["Ingress"])),
    ("network", _put(_admits, "port", 4999)),
    ("network", _put(_peer, "app.kubernetes.io/component", "x")),
    ("probes", _flag(_server, "--probe-listen", "0.0.0.0:4999")),
    ("probes", _put(_server, "livenessProbe", None)),
    ("probes", _put(_server, "startupProbe", {"grpc": {"port": 4801, "service": "ready"}})),
    ("security", _put(_context, "runAsNonRoot", False)),
    ("security", _put(_context, "runAsUser", 0)),
    ("security", _put(_context, "seccompProfile", None)),
    ("security", _put(_own_context, "allowPrivilegeEscalation", None)),
    ("security", _put(_own_context, "readOnlyRootFilesystem", False)),
    ("security", _put(_own_context, "capabilities", {})),
    ("security", _put(_own_context, "runAsUser", 10002)),
    ("security", _put(_namespace_labels, "pod-security.kubernetes.io/enforce", "baseline")),
    ("security", _put(_node, "hostPID", True)),
    ("security", _put(_node, "automountServiceAccountToken", None)),
    ("security", _put(_node, "volumes", [{"name": "x", "hostPath": {"path": "/"}}])),
    ("resources", _put(_limits, "memory", None)),
    ("resources", _put(_limits, "memory", "9Gi")),
    ("sidecars", _put(_server, "restartPolicy", None)),
    ("sidecars", _put(_node, "shareProcessNamespace", False)),
    ("sidecars", _flag(_server, "--socket", "/tmp/socket")),
    ("sidecars", _flag(_server, "--socket", "/run/optshard/socket")),
    ("sidecars", _flag(_server, "--make-socket-folder", None)),
    ("sidecars", _put(_socket_volume, "mountPath", "/run/other")),
    ("sidecars", _variable("OPTSHARD_ATTACH", "unix:/run/optshard/other")),
    ("draining", _put(_server, "lifecycle", None)),
    ("draining", _put(_node, "terminationGracePeriodSeconds", 30)),
    ("draining", _flag(_server, "--drain-timeout", "30s")),
    ("draining", _put(_trainer, "lifecycle", None)),
    ("checkpoints", _put(_checkpoint_mount, "mountPath", "/elsewhere")),
    ("checkpoints", _put(_checkpoint_mount, "readOnly", True)),
    ("checkpoints", _put(_checkpoint_volume, "claimName", "other")),
    ("checkpoints", _flag(_coordinator, "--checkpoint-dir", "/tmp")),
    ("checkpoints", _put(_claim, "accessModes", ["ReadWriteOnce"])),
    ("meeting", _variable("MASTER_ADDR", "optshard-node-0-1.optshard-nodes")),
    ("meeting", _variable("MASTER_ADDR", "2")),
    ("meeting", _variable("MASTER_PORT", "4700")),
    ("meeting", _variable("LOCAL_RANK", "1")),
    ("meeting", _variable("LOCAL_WORLD_SIZE", "2")),
    ("meeting", _variable("GROUP_RANK", "0")),
    ("job", _flag(_server, "--job", "other")),
    ("job", _variable("OPTSHARD_JOB", "other")),
    ("job", _variable("WORLD_SIZE", "3")),
    ("job", _variable("RANK", "0")),
    ("job", _variable("OPTSHARD_COORDINATOR", "optshard-coordinator:4999")),
    ("job", _flag(_server, "--coordinator", "elsewhere:4700")),
    ("job", _flag(_server, "--node-ranks", "0")),
    ("job", _put(_job_spec, "parallelism", 3)),
    ("job", _flag(_coordinator, "--exit-when-done", None)),
)

if __name__ == "__main__":
    unittest.main()
