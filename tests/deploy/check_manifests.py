#!/usr/bin/env python3
"""check_manifests.py DIR: the Kubernetes manifests of a kustomization, without a cluster.

Each document against the API's schema (kubernetes-validate, strict: an unknown field is an error), and what a schema
cannot say: every file is listed, every reference (ConfigMap key, claim, selector, port name, serviceName) leads somewhere.
"""
import copy
import sys
from pathlib import Path

import kubernetes_validate
import yaml


def merge(into, patch):
    """A strategic merge, as far as patches here go: maps by key, lists of named things by name, all else is replaced."""
    for key, value in patch.items():
        old = into.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            merge(old, value)
        elif isinstance(value, list) and isinstance(old, list) and all("name" in item for item in value):
            for item in value:
                same = [there for there in old if there["name"] == item["name"]]
                if same:
                    merge(same[0], item)
                else:
                    old.append(item)
        else:
            into[key] = value


def load(folder):
    """(kustomization, its documents with patches applied, errors); those of the folders that it stands on come first."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    bases = [name for name in kustomization["resources"] if (folder / name).is_dir()]
    patches = [patch["path"] for patch in kustomization.get("patches", [])]
    listed = {*kustomization["resources"], *patches} - set(bases)
    present = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    errors = [f"{folder}/kustomization.yaml: {name} is not both listed and there" for name in sorted(listed ^ present)]
    documents = []
    for base in bases:
        below, of_base, wrong = load(folder / base)
        kustomization["images"] += below["images"]
        documents += of_base
        errors += wrong
    documents += [(name, document) for name in sorted(listed & present - set(patches))
                  for document in yaml.safe_load_all((folder / name).read_text()) if document]
    for path in present & set(patches):
        patch = yaml.safe_load((folder / path).read_text())
        target = find(documents, patch["kind"]).get(patch["metadata"]["name"])
        if target is None:
            errors.append(f"{path}: there is no {patch['kind']} {patch['metadata']['name']} to patch")
        else:
            merge(target, patch)
    return kustomization, documents, errors


def find(documents, kind):
    return {document["metadata"]["name"]: document for _, document in documents if document["kind"] == kind}


def check_schema(documents):
    for name, document in documents:
        try:
            kubernetes_validate.validate(document, "1.30", strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{name}: {document['kind']} {document['metadata']['name']}: {error.message}"


def check_container(where, container, config, images):
    if container["image"] not in images:
        yield f"{where}: image {container['image']} is not in kustomization.yaml"
    for entry in container.get("env", []):
        reference = entry.get("valueFrom", {}).get("configMapKeyRef")
        if reference and reference["key"] not in config.get(reference["name"], {}).get("data", {}):
            yield f"{where}: no ConfigMap {reference['name']} with key {reference['key']}"
    ports = {port["name"] for port in container["ports"]}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if kind not in container:
            yield f"{where}: no {kind}"
            continue
        for way in ("httpGet", "tcpSocket"):
            if way in container[kind] and container[kind][way]["port"] not in ports:
                yield f"{where}: {kind} asks a port that is not there"


def check_references(kustomization, documents):
    config, claims = find(documents, "ConfigMap"), find(documents, "PersistentVolumeClaim")
    services = find(documents, "Service")
    images = {image["name"] for image in kustomization["images"]}
    workloads = {**find(documents, "Deployment"), **find(documents, "StatefulSet")}
    for name, workload in workloads.items():
        spec = workload["spec"]
        pod = spec["template"]
        if not spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items():
            yield f"{name}: its selector does not match its pods"
        if "serviceName" in spec and spec["serviceName"] not in services:
            yield f"{name}: no Service {spec['serviceName']}"
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        for volume in volumes.values():
            if volume["persistentVolumeClaim"]["claimName"] not in claims:
                yield f"{name}: no claim {volume['persistentVolumeClaim']['claimName']}"
        for container in pod["spec"]["containers"]:
            yield from check_container(name, container, config, images)
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield f"{name}: no volume {mount['name']}"
    for name, service in services.items():
        pods = [workload["spec"]["template"] for workload in workloads.values()
                if service["spec"]["selector"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()]
        if len(pods) != 1:
            yield f"Service {name}: selects {len(pods)} workloads"
            continue
        ports = {port["name"]: port["containerPort"] for port in pods[0]["spec"]["containers"][0]["ports"]}
        for port in service["spec"]["ports"]:
            if port["targetPort"] not in ports:
                yield f"Service {name}: no port {port['targetPort']} in its pods"


def check(kustomization, documents):
    return [*check_schema(documents), *check_references(kustomization, documents)]


def break_each(kustomization, documents):
    """Breaks one thing at a time; each must be noticed."""
    def worker(broken):
        return find(broken, "StatefulSet")["kv-worker"]["spec"]

    def pod(broken):
        return worker(broken)["template"]["spec"]["containers"][0]

    breaks = {
        "unknown field": lambda broken: worker(broken).update(replica=2),
        "wrong type": lambda broken: worker(broken).update(replicas="two"),
        "key": lambda broken: find(broken, "ConfigMap")["fastdecode"]["data"].pop("FD_SCHEDULER"),
        "selector": lambda broken: find(broken, "Service")["scheduler"]["spec"]["selector"].update(x="y"),
        "service port": lambda broken: find(broken, "Service")["gateway"]["spec"]["ports"][0].update(targetPort="web"),
        "claim": lambda broken: find(broken, "PersistentVolumeClaim")["fastdecode-models"]["metadata"].update(name="other"),
        "probe": lambda broken: pod(broken).pop("readinessProbe"),
        "image": lambda broken: pod(broken).update(image="other"),
    }
    for name, damage in breaks.items():
        broken = copy.deepcopy(documents)
        damage(broken)
        if not check(kustomization, broken):
            yield f"the check does not notice a broken {name}"


def main():
    kustomization, documents, errors = load(Path(sys.argv[1]))
    errors += check(kustomization, documents)
    if not errors:
        errors += break_each(kustomization, documents)
    for error in errors:
        print(error, file=sys.stderr)
    if not errors:
        print(f"{sys.argv[1]}: {len(documents)} documents are valid")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
