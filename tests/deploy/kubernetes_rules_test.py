"""That what deploy/kubernetes renders to fits itself, by the rules, and that each rule sees what it is for."""

import copy
import os
import re
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.getcwd())
from tests.deploy import kubernetes_objects as k8s  # noqa: E402
from tests.deploy import kubernetes_rules as rules  # noqa: E402


class Rules(unittest.TestCase):
    def test_EveryOverlay_KeepsThem(self):
        for overlay in k8s.overlays():
            with self.subTest(overlay=overlay):
                self.assertEqual(rules.problems(k8s.render(overlay)), [])

    def test_ThreeNodes_InThePlacesThatThePatchesName_KeepThem(self):
        # As docs/deploy/kubernetes.md says.
        for name, ranks, expected in (("multi-node-cpu", 1, 6), ("multi-rank-nodes-cpu", 2, 7)):
            with self.subTest(overlay=name), tempfile.TemporaryDirectory() as folder:
                copied = os.path.join(folder, "kubernetes")
                shutil.copytree(os.path.dirname(k8s.OVERLAYS), copied)
                overlay = os.path.join(copied, "overlays", name)
                places = _three_nodes(overlay, ranks)
                self.assertEqual(places, expected)
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


def _three_nodes(overlay, ranks):
    """Makes three nodes of the patches' two. Returns in how many places."""
    world_size = {"%d" % (2 * ranks): "%d" % (3 * ranks)}
    places = 0
    numbers = {"2": "3"}
    for name in ("nodes.yaml", "min-available.yaml", "world-size.yaml"):
        path = os.path.join(overlay, name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        # WORLD_SIZE stands among the nodes' numbers, as a string.
        text, count = re.subn(r'value: "(\d+)"', lambda found: 'value: "%s"' % world_size[found[1]],
                              text)
        places += count
        text, count = re.subn(r"(value: )(\d+)(?=\})", lambda found: found[1] + numbers[found[2]], text)
        places += count
        text, count = re.subn(r"(--world-size=)(\d+)", lambda found: found[1] + world_size[found[2]], text)
        places += count
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return places


def _only(objects, kind, name=None):
    [found] = [each for each in k8s.of_kind(objects, kind)
               if name in (None, each["metadata"]["name"])]
    return found


def _node(objects):
    return k8s.at(objects, k8s.POD_PATHS[1])


def _annotations(objects):
    return _job_spec(objects)["template"]["metadata"]["annotations"]


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
    return k8s.at(objects, k8s.POD_PATHS[0])["containers"][0]


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
    ("job", _variable("OPTSHARD_JOIN_TIMEOUT", "60s")),
    ("job", _put(_annotations, "optshard/memory-need", "--node-ranks=0 --world-size=3")),
    ("job", _flag(_server, "--node-ranks", "2@$(NODE_INDEX)")),
    ("job", _variable("OPTSHARD_COORDINATOR", "optshard-coordinator:4999")),
    ("job", _flag(_server, "--coordinator", "elsewhere:4700")),
    ("job", _flag(_server, "--node-ranks", "0")),
    ("job", _put(_job_spec, "parallelism", 3)),
    ("job", _flag(_coordinator, "--exit-when-done", None)),
)

if __name__ == "__main__":
    unittest.main()
