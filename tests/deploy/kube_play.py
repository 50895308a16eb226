#!/usr/bin/env python3
"""kube_play.py CERTS MODELS FILE: the mesh of the Kubernetes base, started by `podman kube play`, answers a request with a key.

CERTS: what `fastdecode certs` made. MODELS: a folder with the model and `keys`. FILE: what is played. The base stands under tests/deploy/played, an
overlay like any other. What podman 4.3 has not is replaced, and all else is played as it is written:

  a workload             as many Pods as it has replicas; one alone has the workload's name, which is that of its Service, else a number follows
  a secret's volume      the folder of its certificate on this host (podman 4.3 mounts a secret's data as base64, and ignores its `items`)
  the claim              a volume that is bound to MODELS
  ports                  are left out: podman would publish each on the host, and two workers have the same ones
  probes                 are asked here, as the manifests say (podman 4.3 asks by curl and nc, which our images have not, at port 0)
"""
import copy
import http.client
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import yaml

from check_manifests import FILES, SECRETS, find, load

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))
from pace import wait_until  # noqa: E402 (its folder is named above)

PLAYED = Path(__file__).parent / "played"
NETWORK = "fastdecode-play"
READY_S = 60
STOP_S = "2"  # for a pod to end: the last worker waits for another to take its pages
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def podman(*arguments, check=True):
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"podman {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done


def played_image(name, images):
    """A container's image as kustomize names it; the first entry of a name is the outermost overlay's."""
    image = next(image for image in images if image["name"] == name)
    return f"{image.get('newName', name)}:{image['newTag']}"


def played_volume(volume, certs):
    if "secret" not in volume:
        return volume
    secret = volume["secret"]
    folder = certs / SECRETS[secret["secretName"]]
    for item in secret["items"]:
        if FILES[item["key"]] != item["path"]:
            sys.exit(f"{secret['secretName']}: {item['key']} is not {item['path']} in the folder of fastdecode certs")
    return {"name": volume["name"], "hostPath": {"path": str(folder), "type": "Directory"}}


def pods_of(name, workload, images, certs):
    """The Pods of a workload, with its template's labels and spec."""
    count = workload["spec"]["replicas"]
    for number in range(count):
        template = copy.deepcopy(workload["spec"]["template"])
        spec = template["spec"]
        spec["volumes"] = [played_volume(volume, certs) for volume in spec["volumes"]]
        for container in spec["containers"]:
            container["image"] = played_image(container["image"], images)
        own = name if count == 1 else f"{name}-{number}"
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": own, **template["metadata"]}, "spec": spec}


def render(certs, models):
    """The documents to play: configuration and claims first."""
    kustomization, documents, errors = load(PLAYED)
    if errors:
        sys.exit("\n".join(errors))
    claims = list(find(documents, "PersistentVolumeClaim").values())
    for claim in claims:
        claim["metadata"]["annotations"] = {"volume.podman.io/device": str(models), "volume.podman.io/type": "none",
                                            "volume.podman.io/mount-options": "bind"}
    workloads = {**find(documents, "Deployment"), **find(documents, "StatefulSet")}
    pods = [pod for name, workload in sorted(workloads.items()) for pod in pods_of(name, workload, kustomization["images"], certs)]
    return [*find(documents, "ConfigMap").values(), *claims, *pods]


def without_ports(document):
    document = copy.deepcopy(document)
    for container in document.get("spec", {}).get("containers", []):
        del container["ports"]
    return document


def address_of(pod):
    infra = podman("pod", "inspect", "--format", "{{.InfraContainerID}}", pod["metadata"]["name"]).stdout.strip()
    return podman("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", infra).stdout.strip()


def passes(probe, pod, container, address):
    """True if a probe of the manifests succeeds now."""
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    if "exec" in probe:
        name = f"{pod['metadata']['name']}-{container['name']}"
        return podman("exec", name, *probe["exec"]["command"], check=False).returncode == 0
    try:
        if "tcpSocket" in probe:
            socket.create_connection((address, ports[probe["tcpSocket"]["port"]]), timeout=probe.get("timeoutSeconds", 1)).close()
            return True
        connection = http.client.HTTPConnection(address, ports[probe["httpGet"]["port"]], timeout=probe.get("timeoutSeconds", 1))
        connection.request("GET", probe["httpGet"]["path"])
        return connection.getresponse().status == 200
    except OSError:
        return False


def await_probes(pods):
    """Waits until each probe of each pod has succeeded."""
    for pod in pods:
        for container in pod["spec"]["containers"]:
            for kind in PROBES:
                wait_until(lambda pod=pod, container=container, kind=kind: passes(container[kind], pod, container, address_of(pod)), READY_S,
                           f"{kind} of pod {pod['metadata']['name']}")


def check_restricted(pods):
    """What the manifests ask of security is what podman's containers have."""
    for pod in pods:
        for container in pod["spec"]["containers"]:
            name = f"{pod['metadata']['name']}-{container['name']}"
            state = json.loads(podman("inspect", name).stdout)[0]
            user = pod["spec"]["securityContext"]
            if state["Config"]["User"] != f"{user['runAsUser']}:{user['runAsGroup']}":
                sys.exit(f"{name} runs as user {state['Config']['User']}")
            if not state["HostConfig"]["ReadonlyRootfs"] or state["EffectiveCaps"]:
                sys.exit(f"{name}: its root is read-only: {state['HostConfig']['ReadonlyRootfs']}, it can: {state['EffectiveCaps']}")


def ask(address, key=None):
    """(status, text) of a question to the gateway."""
    connection = http.client.HTTPConnection(address, 8080, timeout=120)
    request = {"model": "default", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    connection.request("POST", "/v1/completions", json.dumps(request), headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def check_answer(pods, key):
    gateway = next(address_of(pod) for pod in pods if pod["metadata"]["name"] == "gateway")
    status, _ = ask(gateway)
    if status != 401:
        sys.exit(f"without a key the gateway answers {status}")
    status, text = ask(gateway, key)
    if status != 200 or " Paris" not in text:
        sys.exit(f"no Paris in the answer: {status} {text}")


def main():
    certs, models, file = (Path(argument).resolve() for argument in sys.argv[1:4])
    documents = render(certs, models)
    pods = [document for document in documents if document["kind"] == "Pod"]
    file.write_text(yaml.safe_dump_all([without_ports(document) for document in documents], sort_keys=False))
    began = time.monotonic()
    podman("network", "create", NETWORK)
    podman("kube", "play", "--network", NETWORK, str(file))
    await_probes(pods)
    ready = time.monotonic()
    check_restricted(pods)
    check_answer(pods, (models / "keys").read_text().split()[0])
    podman("pod", "stop", "--time", STOP_S, *(pod["metadata"]["name"] for pod in pods))
    podman("kube", "down", str(file))
    podman("volume", "rm", *(document["metadata"]["name"] for document in documents if document["kind"] == "PersistentVolumeClaim"))
    podman("network", "rm", NETWORK)
    print(f"podman kube play: {len(pods)} pods of the base, all probes passed after {ready - began:.1f} s, answer: Paris")


if __name__ == "__main__":
    sys.exit(main())
