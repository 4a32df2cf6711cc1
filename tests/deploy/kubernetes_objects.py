"""What deploy/kubernetes renders to, and the pods in it."""

import os
import re
import subprocess

import yaml

_PATIENCE_S = 60
ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))
OVERLAYS = os.path.join(ROOT, "deploy", "kubernetes", "overlays")
DEBIAN_KUBECTL = os.path.abspath("external/kubernetes_tools/kubectl")


def overlays():
    return sorted(os.listdir(OVERLAYS))


def render(overlay, kubectl=DEBIAN_KUBECTL):
    result = subprocess.run(
        [kubectl, "kustomize", os.path.join(OVERLAYS, overlay)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=_PATIENCE_S,
    )
    if result.returncode != 0:
        raise AssertionError("%s: %s" % (overlay, result.stderr))
    return list(yaml.safe_load_all(result.stdout))


def of_kind(objects, kind):
    return [each for each in objects if each["kind"] == kind]


class Pods:
    """A template of pods: `count` of them run."""

    def __init__(self, name, count, template):
        self.name = name
        self.count = count
        self.labels = template["metadata"]["labels"]
        self.annotations = template["metadata"].get("annotations", {})
        self.spec = template["spec"]

    def all_containers(self):
        return self.spec.get("initContainers", []) + self.spec["containers"]

    def servers(self):
        return [each for each in self.all_containers() if each["image"] == "optshard-server"]

    def coordinators(self):
        return [each for each in self.all_containers() if each["image"] == "optshard-coordinator"]

    def trainers(self):
        return [each for each in self.all_containers() if each["image"] == "optshard-trainer"]


def pods(objects):
    found = []
    for each in of_kind(objects, "StatefulSet"):
        found.append(Pods(each["metadata"]["name"], each["spec"]["replicas"],
                          each["spec"]["template"]))
    for each in of_kind(objects, "JobSet"):
        for job in each["spec"]["replicatedJobs"]:
            spec = job["template"]["spec"]
            found.append(Pods(each["metadata"]["name"], job["replicas"] * spec["parallelism"],
                              spec["template"]))
    runtimes = {each["metadata"]["name"]: each for each in of_kind(objects, "TrainingRuntime")}
    for each in of_kind(objects, "TrainJob"):
        runtime = runtimes[each["spec"]["runtimeRef"]["name"]]
        for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
            found.append(Pods(each["metadata"]["name"], each["spec"]["trainer"]["numNodes"],
                              job["template"]["spec"]["template"]))
    return found


def flags(container, variables=None):
    """{"--name": "value"} of its arguments, with $(NAME) of `variables`; "" for a flag without one."""
    def expand(argument):
        return re.sub(r"\$\((\w+)\)", lambda found: variables[found.group(1)], argument)
    arguments = container.get("args", [])
    if variables is not None:
        arguments = map(expand, arguments)
    return dict(argument.partition("=")[::2] for argument in arguments)


def environment(container):
    """Values by name; {"fieldRef": ...} where the value comes from the pod."""
    return {each["name"]: each.get("value", each.get("valueFrom"))
            for each in container.get("env", [])}


_INDEX = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}


def in_pod(container, index):
    """What its environment is in the pod of this index."""
    return {name: str(index) if value == _INDEX else value
            for name, value in environment(container).items()}


# Of the pods' specifications in what the overlays render to, each from its kind on.
POD_PATHS = (
    ("StatefulSet", "spec", "template", "spec"),
    ("JobSet", "spec", "replicatedJobs", 0, "template", "spec", "template", "spec"),
    ("TrainingRuntime", "spec", "template", "spec", "replicatedJobs", 0, "template", "spec",
     "template", "spec"),
)


def at(objects, path):
    """What is there in the only object of a kind; None where there is no such object."""
    found = of_kind(objects, path[0])
    if not found:
        return None
    [value] = found
    for step in path[1:]:
        value = value[step]
    return value
