"""manifest.py MANIFEST ARENA.json SERVE.json RATE SPARE - checks a manifest of deploy/kubernetes.

These are rules of this project for the fields that the manifest uses. They are not the schema of
Kubernetes. Prints each fault; the exit status is 1 if there are any.
"""

import json
import math
import re
import sys

import yaml

FAULTS = []
KINDS = {"Service": "v1", "ConfigMap": "v1", "StatefulSet": "apps/v1", "Deployment": "apps/v1"}
POD = {"containers", "volumes", "securityContext", "terminationGracePeriodSeconds"}
CONTAINER = {
    "name", "image", "args", "ports", "startupProbe", "readinessProbe", "livenessProbe", "resources",
    "securityContext", "env", "volumeMounts",
}
PROBE = {"httpGet", "tcpSocket", "periodSeconds", "failureThreshold", "timeoutSeconds"}
SPEC = {
    "Service": {"clusterIP", "publishNotReadyAddresses", "selector", "ports"},
    "StatefulSet": {"replicas", "serviceName", "podManagementPolicy", "selector", "template"},
    "Deployment": {"replicas", "selector", "template"},
}
VOLUME = {"persistentVolumeClaim": {"claimName", "readOnly"}, "emptyDir": set(), "configMap": {"name"}}


def check(holds, what):
    if not holds: FAULTS.append(what)


def known(where, have, may):
    check(set(have) <= set(may), f"{where}: unknown {sorted(set(have) - set(may))}")


def mebibytes(text):
    match = re.fullmatch(r"(\d+)Mi", str(text))
    check(match, f"a quantity of memory: {text}")
    return int(match[1]) if match else 0


def check_container(name, c, volumes):
    known(name, c, CONTAINER)
    ports = {p["name"] for p in c["ports"]}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = c.get(kind)
        if probe is None: continue
        known(f"{name} {kind}", probe, PROBE)
        target = probe.get("httpGet") or probe.get("tcpSocket") or {}
        check(target.get("port") in ports, f"{name} {kind}: its port is not a port of the container")
        path = target.get("path", "/health")
        check(path in ("/health", "/ready"), f"{name} {kind}: path {path}")
    for mount in c["volumeMounts"]:
        check(mount["name"] in volumes, f"{name}: no volume {mount['name']}")
    for kind in ("requests", "limits"):
        mebibytes(c["resources"][kind]["memory"])
        cpu = str(c["resources"][kind]["cpu"])
        check(re.fullmatch(r"\d+m?", cpu), f"{name}: cpu {cpu}")


def check_workload(d, services):
    name, spec = f"{d['kind']} {d['metadata']['name']}", d["spec"]
    known(name, spec, SPEC[d["kind"]])
    labels = spec["template"]["metadata"]["labels"]
    check(spec["selector"]["matchLabels"] == labels, f"{name}: the selector does not select its pods")
    pod = spec["template"]["spec"]
    known(f"{name}: pod", pod, POD)
    for volume in pod["volumes"]:
        kind = next(k for k in volume if k != "name")
        known(f"{name}: volume", [kind], VOLUME)
        known(f"{name}: volume {kind}", volume[kind], VOLUME.get(kind, set()))
    for c in pod["containers"]: check_container(name, c, {v["name"] for v in pod["volumes"]})
    if d["kind"] == "StatefulSet":
        check(spec["serviceName"] in services, f"{name}: no service {spec['serviceName']}")


def main():
    path, arena, serve, rate, spare = sys.argv[1:]
    docs = list(yaml.safe_load_all(open(path)))
    arena = json.load(open(arena))["memory"]["peak_bytes"] / (1 << 20)
    sustained = json.load(open(serve))["serving"]["sustained"]["requests_per_second"]
    for d in docs:
        known("a document", d, {"apiVersion", "kind", "metadata", "spec", "data"})
        check(KINDS.get(d["kind"]) == d["apiVersion"], f"kind {d['kind']} of {d['apiVersion']}")
        name = d["metadata"]["name"]
        check(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name), f"name {name}")
    names = [(d["kind"], d["metadata"]["name"]) for d in docs]
    check(len(set(names)) == len(names), "two objects have one name")
    services = {n for k, n in names if k == "Service"}
    pods = [d["spec"]["template"]["metadata"]["labels"] for d in docs if "template" in d.get("spec", {})]
    for d in docs:
        if d["kind"] in ("StatefulSet", "Deployment"): check_workload(d, services)
        if d["kind"] == "Service":
            known(f"service {d['metadata']['name']}", d["spec"], SPEC["Service"])
            selector = d["spec"]["selector"]
            one_pod = "statefulset.kubernetes.io/pod-name" in selector
            check(selector in pods or one_pod, f"selector {selector}")
    sets = [d for d in docs if d["kind"] == "StatefulSet"]
    check(len(sets) == 1, "one StatefulSet")
    spec = sets[0]["spec"]
    check(spec["replicas"] == math.ceil(float(rate) / sustained) + int(spare), f"replicas {spec['replicas']}")
    c = spec["template"]["spec"]["containers"][0]
    memory = mebibytes(c["resources"]["limits"]["memory"])
    check(arena <= memory - 1024 <= arena + 1, f"memory {memory} for {arena}")
    check(c["readinessProbe"]["httpGet"]["path"] == "/ready", "the readiness probe asks /ready")
    check(c["args"][0] == "serve" and c["args"][1].startswith("/models/"), f"args {c['args']}")
    check({m["mountPath"] for m in c["volumeMounts"]} == {"/models", "/tmp"}, "mounts")
    conf = next((d["data"]["rafter.conf"] for d in docs if d["kind"] == "ConfigMap"), "")
    upstream = re.findall(r"server (rafter-\d+):8000", conf)
    wanted = [f"rafter-{i}" for i in range(spec["replicas"])]
    check(upstream == wanted and set(wanted) <= services, f"the gateway's replicas: {upstream}")
    check("ssl" not in re.sub(r"#.*", "", conf) and "listen 8080;" in conf, "the gateway listens without TLS")
    for fault in FAULTS: print(fault)
    return 1 if FAULTS else 0


try:
    sys.exit(main())
except (KeyError, TypeError, AttributeError, StopIteration, yaml.YAMLError) as e:
    print(f"the manifest has another form: {type(e).__name__} {e}")
    sys.exit(1)
