#!/usr/bin/env python3
"""kube_play.py CERTS MODELS: the Kubernetes base as `podman kube play` takes it, on stdout.

Podman has no StatefulSets, Services and claims: a workload becomes a Pod with its name, by which the others find it, the claim a folder of this
host, and secrets hold the certificates of CERTS.
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
    pod = workload["spec"]["template"]["spec"]
    for volume in pod.get("volumes", []):
        if "persistentVolumeClaim" in volume:
            del volume["persistentVolumeClaim"]
            volume["hostPath"] = {"path": str(models), "type": "Directory"}
        else:
            volume["secret"]["optional"] = False  # podman 4.3 crashes without
    for container in pod["containers"]:
        container["image"] = f"localhost/{container['image']}:latest"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            container.pop(probe, None)  # podman runs them by systemd's timers, which may not be here
        container["resources"] = {}
        for entry in container["env"]:
            if entry["name"] == "FD_NAME":
                entry.clear()
                entry.update(name="FD_NAME", value=name)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod}


def main():
    certs, models = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    _, documents, errors = load(BASE)
    if errors:
        sys.exit("\n".join(errors))
    config = find(documents, "ConfigMap")["fastdecode"]
    config["data"]["FD_KV_MEMORY"] = config["data"]["FD_LOCAL_POOL"] = "67108864"
    workloads = {**find(documents, "Deployment"), **find(documents, "StatefulSet")}
    out = [config, *(secret(role, certs) for role in ROLES), *(playable(name, workload, models) for name, workload in sorted(workloads.items()))]
    yaml.safe_dump_all(out, sys.stdout, sort_keys=False)


if __name__ == "__main__":
    sys.exit(main())
