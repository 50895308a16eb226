#!/usr/bin/env python3
"""kube_play.py CERTS MODELS: the Kubernetes base as `podman kube play` takes it, on stdout.

Podman has no StatefulSets, Services and claims: workloads become Deployments, the claim a folder of this host, secrets hold the certificates of
CERTS, and services are found by the names of podman's pods (NAME-pod) instead of by Services.
"""
import base64
import sys
from pathlib import Path

import yaml
from check_manifests import FILES, ROLES, find, load

BASE = Path(__file__).parent.parent.parent / "deploy/kubernetes/base"


def secret(role, certs):
    data = {key: base64.b64encode((certs / role / name).read_bytes()).decode() for key, name in FILES.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"fastdecode-tls-{role}"}, "data": data}


def playable(name, workload, models):
    spec = workload["spec"]
    pod = spec["template"]["spec"]
    for volume in pod.get("volumes", []):
        if "persistentVolumeClaim" in volume:
            del volume["persistentVolumeClaim"]
            volume["hostPath"] = {"path": str(models), "type": "Directory"}
    for container in pod["containers"]:
        container["image"] = f"localhost/{container['image']}:latest"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            container.pop(probe, None)  # podman runs them by systemd's timers, which may not be here
        container["resources"] = {}
        if name == "s-part":  # the image's default is the name of the Service
            container["env"].append({"name": "FD_ADVERTISE", "value": "tls+tcp://s-part-pod:7401"})
        for entry in container["env"]:
            if entry["name"] == "FD_NAME":
                entry.clear()
                entry.update(name="FD_NAME", value=name)
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {"replicas": 1, "selector": spec["selector"], "template": spec["template"]}}


def main():
    certs, models = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    _, documents, errors = load(BASE)
    if errors:
        sys.exit("\n".join(errors))
    config = find(documents, "ConfigMap")["fastdecode"]
    config["data"]["FD_SCHEDULER"] = "tls+tcp://scheduler-pod:7400"
    config["data"]["FD_KV_MEMORY"] = config["data"]["FD_LOCAL_POOL"] = "67108864"
    workloads = {**find(documents, "Deployment"), **find(documents, "StatefulSet")}
    out = [config, *(secret(role, certs) for role in ROLES), *(playable(name, workload, models) for name, workload in sorted(workloads.items()))]
    yaml.safe_dump_all(out, sys.stdout, sort_keys=False)


if __name__ == "__main__":
    sys.exit(main())
