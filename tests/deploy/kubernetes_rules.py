"""What must hold for the objects that deploy/kubernetes renders to.

Each rule yields what is wrong, one line for each thing.
"""

import re

from tests.deploy.kubernetes_objects import environment, flags, in_pod, of_kind, pods

_LONGEST_NAME = 20
_PROBED = ("liveness", "readiness")


def _port(address):
    return int(address.rpartition(":")[2])


def _matches(selector, labels):
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def _selected(objects, selector):
    return [each for each in pods(objects) if _matches(selector, each.labels)]


def _named_port(pod, name):
    for container in pod.all_containers():
        for port in container.get("ports", []):
            if name in (port.get("name"), port["containerPort"]):
                return port["containerPort"]
    return None


def _programs(objects):
    for pod in pods(objects):
        for container in pod.coordinators() + pod.servers():
            yield pod, container


def names(objects):
    for each in objects:
        if each["kind"] in ("JobSet", "TrainJob", "TrainingRuntime", "StatefulSet"):
            if len(each["metadata"]["name"]) > _LONGEST_NAME:
                yield "%s %s: a name of more than %d characters" % (
                    each["kind"], each["metadata"]["name"], _LONGEST_NAME)
        if each["kind"] in ("JobSet", "TrainJob"):
            if "kueue.x-k8s.io/queue-name" not in each["metadata"]["labels"]:
                yield "%s %s: no queue" % (each["kind"], each["metadata"]["name"])
        if each["kind"] != "Namespace" and each["metadata"].get("namespace") != "optshard":
            yield "%s %s: not in the namespace" % (each["kind"], each["metadata"]["name"])


def services(objects):
    for service in of_kind(objects, "Service"):
        name = service["metadata"]["name"]
        selected = _selected(objects, service["spec"]["selector"])
        if not selected:
            yield "Service %s selects no pod" % name
        for pod in selected:
            for port in service["spec"]["ports"]:
                target = _named_port(pod, port["targetPort"])
                if target != port["port"]:
                    yield "Service %s: port %d leads to %s" % (name, port["port"], target)
    headless = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "Service")
                if each["spec"].get("clusterIP") == "None"}
    for pod in pods(objects):
        if not pod.servers():
            continue
        spec = headless.get(pod.spec.get("subdomain"))
        if spec is None or not spec.get("publishNotReadyAddresses"):
            yield "%s: no headless Service publishes its pods before they are ready" % pod.name
    for pod, container in _programs(objects):
        listening = {_port(flags(container).get(flag, "x:0"))
                     for flag in ("--listen", "--owner-listen", "--probe-listen")}
        for port in container["ports"]:
            if port["containerPort"] not in listening:
                yield "%s: nobody listens at port %d" % (container["name"], port["containerPort"])


def disruption(objects):
    for budget in of_kind(objects, "PodDisruptionBudget"):
        name = budget["metadata"]["name"]
        selected = _selected(objects, budget["spec"]["selector"]["matchLabels"])
        count = sum(pod.count for pod in selected)
        if budget["spec"]["minAvailable"] != count:
            yield "PodDisruptionBudget %s: minAvailable is %d, of %d pods" % (
                name, budget["spec"]["minAvailable"], count)


def network(objects):
    policies = of_kind(objects, "NetworkPolicy")
    if not any(each["spec"]["podSelector"] == {} and "ingress" not in each["spec"]
               and "egress" not in each["spec"]
               and each["spec"]["policyTypes"] == ["Ingress", "Egress"] for each in policies):
        yield "no NetworkPolicy denies by default"
    listening = {53}
    for _, container in _programs(objects):
        listening |= {_port(flags(container).get(flag, "x:0")) for flag in
                      ("--listen", "--owner-listen")}
    for policy in policies:
        name, spec = policy["metadata"]["name"], policy["spec"]
        peers = [spec["podSelector"]] if spec["podSelector"] else []
        for rule in spec.get("ingress", []) + spec.get("egress", []):
            peers += [peer["podSelector"] for peer in rule.get("from", []) + rule.get("to", [])
                      if "namespaceSelector" not in peer]
            for port in rule.get("ports", []):
                if port["port"] not in listening:
                    yield "NetworkPolicy %s: nobody listens at port %d" % (name, port["port"])
        for peer in peers:
            if not _selected(objects, peer["matchLabels"]):
                yield "NetworkPolicy %s selects no pod" % name


def probes(objects):
    for _, container in _programs(objects):
        port = _port(flags(container).get("--probe-listen", "x:0"))
        for kind, service in (("startupProbe", "readiness"), ("readinessProbe", "readiness"),
                              ("livenessProbe", "liveness")):
            probe = container.get(kind, {}).get("grpc")
            if probe != {"port": port, "service": service}:
                yield "%s: its %s asks %s" % (container["name"], kind, probe)


def security(objects):
    for namespace in of_kind(objects, "Namespace"):
        label = "pod-security.kubernetes.io/enforce"
        if namespace["metadata"].get("labels", {}).get(label) != "restricted":
            yield "the namespace does not enforce restricted pods"
    for pod in pods(objects):
        context = pod.spec.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
            yield "%s: may run as root" % pod.name
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield "%s: no seccomp profile" % pod.name
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield "%s: has a token of the cluster" % pod.name
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.spec.get(key):
                yield "%s: %s" % (pod.name, key)
        for volume in pod.spec.get("volumes", []):
            if not {"emptyDir", "persistentVolumeClaim"} & set(volume):
                yield "%s: a volume that is not restricted: %s" % (pod.name, volume["name"])
        for container in pod.all_containers():
            own = container.get("securityContext", {})
            if (own.get("allowPrivilegeEscalation") is not False
                    or own.get("capabilities") != {"drop": ["ALL"]}
                    or own.get("readOnlyRootFilesystem") is not True):
                yield "%s: its security context is %s" % (container["name"], own)
            if "runAsUser" in own:
                yield "%s: a user of its own, and servers let in their own user only" % (
                    container["name"])


def resources(objects):
    for pod in pods(objects):
        for container in pod.all_containers():
            own = container.get("resources", {})
            requests, limits = own.get("requests", {}), own.get("limits", {})
            if "cpu" not in requests or "memory" not in requests or "memory" not in limits:
                yield "%s: no requests, or no limit of memory" % container["name"]
            elif container in pod.servers() and requests["memory"] != limits["memory"]:
                yield "%s: is not sure to get the memory that it may use" % container["name"]


def sidecars(objects):
    for pod in pods(objects):
        for server in pod.servers():
            if server not in pod.spec.get("initContainers", []) or (
                    server.get("restartPolicy") != "Always"):
                yield "%s is no native sidecar" % server["name"]
            if not pod.spec.get("shareProcessNamespace"):
                yield "%s cannot watch trainers: the processes are not shared" % server["name"]
            socket = flags(server).get("--socket", "")
            mounts = {each["name"]: each["mountPath"] for each in server["volumeMounts"]}
            volume = next((name for name, path in mounts.items()
                           if socket.startswith(path + "/")), None)
            if volume is None:
                yield "%s: the socket is in no volume" % server["name"]
            elif socket.count("/") <= mounts[volume].count("/") + 1 or (
                    "--make-socket-folder" not in flags(server)):
                yield "%s: the socket lies in the volume itself, which is root's" % server["name"]
            for trainer in pod.trainers():
                shared = {each["name"]: each["mountPath"] for each in trainer["volumeMounts"]}
                if shared.get(volume) != mounts.get(volume):
                    yield "%s does not see the socket" % trainer["name"]
                if environment(trainer).get("OPTSHARD_ATTACH") != "unix:" + socket:
                    yield "%s attaches elsewhere" % trainer["name"]


def draining(objects):
    def seconds(text):
        return int(re.fullmatch(r"(\d+)s", text).group(1))

    for pod in pods(objects):
        grace = pod.spec.get("terminationGracePeriodSeconds", 0)
        for server in pod.servers():
            hook = server.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
            given = dict(argument.partition("=")[::2] for argument in hook[1:])
            own = flags(server)
            if "--drain" not in given or given.get("--socket") != own["--socket"]:
                yield "%s is not drained" % server["name"]
            elif not seconds(own["--drain-timeout"]) < seconds(given["--timeout"]) < grace:
                yield "%s: a grace of %d s is too short for its drain" % (server["name"], grace)
        for container in pod.coordinators() + pod.trainers():
            pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {})
            if not 0 < pause.get("seconds", 0) < grace:
                yield "%s ends at once" % container["name"]


def checkpoints(objects):
    """That all write to, and read from, the volume that the coordinator's checkpoints are in."""
    everyone = pods(objects)
    [directory] = [flags(each)["--checkpoint-dir"] for pod in everyone for each in pod.coordinators()]
    there = {each["metadata"]["name"]: each["spec"]["accessModes"]
             for each in of_kind(objects, "PersistentVolumeClaim")}
    used = set()
    for pod in everyone:
        volumes = {each["name"]: each.get("persistentVolumeClaim", {}).get("claimName")
                   for each in pod.spec.get("volumes", [])}
        for container in pod.all_containers():
            [mount] = [each for each in container["volumeMounts"]
                       if each["mountPath"] == directory] or [{"name": None}]
            claim = volumes.get(mount["name"])
            if claim not in there or mount.get("readOnly"):
                yield "%s cannot write to %s" % (container["name"], directory)
            elif there[claim] != ["ReadWriteMany"]:
                yield "PersistentVolumeClaim %s: not for several pods" % claim
            used.add(claim)
    if len(used) > 1:
        yield "%s is not the same volume everywhere: %s" % (directory, used)


def meeting(objects):
    """That each trainer has torchrun's variables, and that they lead to rank 0."""
    for pod in pods(objects):
        trainers = pod.trainers()
        for local, trainer in enumerate(trainers):
            own = environment(trainer)
            expected = {
                "LOCAL_RANK": "%d" % local,
                "LOCAL_WORLD_SIZE": "%d" % len(trainers),
                # The first pod, by the name that JobSet gives it in the headless Service.
                "MASTER_ADDR": "%s-node-0-0.%s" % (pod.name, pod.spec.get("subdomain")),
                "MASTER_PORT": "29500",
            }
            for index in range(pod.count):
                if in_pod(trainer, index).get("GROUP_RANK") != "%d" % index:
                    yield "%s: GROUP_RANK of pod %d is %s" % (
                        trainer["name"], index, own.get("GROUP_RANK"))
            for name, value in expected.items():
                if own.get(name) != value:
                    yield "%s: %s is %s, expected %s" % (trainer["name"], name, own.get(name), value)


def _rank_set(text):
    """Of the two forms that manifests use: "0-1", and "2@1" for two ranks of node 1."""
    each, at, node = text.partition("@")
    if at:
        return list(range(int(node) * int(each), (int(node) + 1) * int(each)))
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _rank(variables):
    """What the client takes for its rank (client/sharded_optimizer_options.h)."""
    if "RANK" in variables:
        return int(variables["RANK"])
    return (int(variables["GROUP_RANK"]) * int(variables["LOCAL_WORLD_SIZE"])
            + int(variables["LOCAL_RANK"]))


def job(objects):
    """That all agree on the job: its name, its size, its ranks, its coordinator."""
    everyone = pods(objects)
    [coordinator] = [each for pod in everyone for each in pod.coordinators()]
    asked = flags(coordinator)
    services_by_name = {each["metadata"]["name"] for each in of_kind(objects, "Service")}
    ranks = []
    for pod in everyone:
        for index in range(pod.count):
            own = [_rank(in_pod(trainer, index)) for trainer in pod.trainers()]
            hosted = [rank for server in pod.servers()
                      for rank in _rank_set(flags(server, in_pod(server, index))["--node-ranks"])]
            if own != hosted:
                yield "%s: ranks %s in pod %d, hosted %s" % (pod.name, own, index, hosted)
            ranks += own
        for server in pod.servers():
            if flags(server)["--job"] != asked["--job"]:
                yield "%s is of another job" % server["name"]
        for trainer in pod.trainers():
            if environment(trainer)["OPTSHARD_JOB"] != asked["--job"]:
                yield "%s is of another job" % trainer["name"]
            if environment(trainer)["WORLD_SIZE"] != asked["--world-size"]:
                yield "%s: another WORLD_SIZE than the coordinator's" % trainer["name"]
            if environment(trainer).get("OPTSHARD_JOIN_TIMEOUT") != asked["--join-timeout"]:
                yield "%s: waits for others not as long as the coordinator" % trainer["name"]
        addresses = [flags(each)["--coordinator"] for each in pod.servers()]
        addresses += [environment(each)["OPTSHARD_COORDINATOR"] for each in pod.trainers()]
        for address in addresses:
            name, _, port = address.partition(":")
            if name not in services_by_name or int(port) != _port(asked["--listen"]):
                yield "%s: no coordinator at %s" % (pod.name, address)
        counted = re.search(r"--world-size=(\d+)", pod.annotations.get("optshard/memory-need", ""))
        if pod.servers() and counted and counted.group(1) != asked["--world-size"]:
            yield "%s: its memory is that of a job of %s ranks" % (pod.name, counted.group(1))
    if "--exit-when-done" not in asked:
        yield "the coordinator stays with a job that has failed, and lets no rank in again"
    if ranks != list(range(int(asked["--world-size"]))):
        yield "the coordinator waits for %s ranks, there are %s" % (asked["--world-size"], ranks)


RULES = (names, services, disruption, network, probes, security, resources, sidecars, draining,
         checkpoints, meeting, job)


def problems(objects):
    return ["%s: %s" % (rule.__name__, wrong) for rule in RULES for wrong in rule(objects)]
