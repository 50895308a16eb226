#!/usr/bin/env python3
"""check_manifests.py DIR[,COMPONENT...]...: the Kubernetes manifests of kustomizations, each with components of its choice, without a cluster.

Each document against the API's schema (kubernetes-validate, strict: an unknown field is an error), and what a schema
cannot say: every file is listed, every reference (ConfigMap key, claim, selector, port name, serviceName) leads somewhere,
every service has the certificate for it, and no RPC port is open to other pods.
"""
import copy
import functools
import json
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml


ROLES = ("gateway", "scheduler", "s-part", "kv-worker")
SECRETS = {f"fastdecode-tls-{role}": role for role in ROLES}  # made by hand or by cert-manager (deploy/README.md): Secret and whose it is
OTHER_SECRETS = {"fastdecode-admin-keys"}  # made by hand, too
FILES = {"ca.crt": "ca.pem", "tls.crt": "cert.pem", "tls.key": "key.pem"}
OPEN_PORTS = {"http"}  # for everyone
CLUSTER_PORTS = {"admin"}  # for pods of the cluster; all others are for the mesh's own


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


def load(folder, onto=()):
    """(kustomization, its documents with patches applied, errors); those of the folders that it stands on come first. onto: the documents that
    a component changes, too."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    below = [*kustomization.get("resources", []), *kustomization.get("components", [])]
    bases = [name for name in below if (folder / name).is_dir()]
    patches = [patch["path"] for patch in kustomization.get("patches", [])]
    listed = {*below, *patches} - set(bases)
    present = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    errors = [f"{folder}/kustomization.yaml: {name} is not both listed and there" for name in sorted(listed ^ present)]
    documents = []
    for base in bases:
        lower, of_base, wrong = load(folder / base, documents if base in kustomization.get("components", []) else ())
        kustomization["images"] = kustomization.get("images", []) + lower.get("images", [])
        documents += of_base
        errors += wrong
    documents += [(name, document) for name in sorted(listed & present - set(patches))
                  for document in yaml.safe_load_all((folder / name).read_text()) if document]
    for path in present & set(patches):
        patch = yaml.safe_load((folder / path).read_text())
        target = find([*onto, *documents], patch["kind"]).get(patch["metadata"]["name"])
        if target is None:
            errors.append(f"{path}: there is no {patch['kind']} {patch['metadata']['name']} to patch")
        else:
            merge(target, patch)
    return kustomization, documents, errors


def find(documents, kind):
    return {document["metadata"]["name"]: document for _, document in documents if document["kind"] == kind}


# Kinds that a cluster has only with KEDA, the Prometheus Operator or the inference extension: the fields of their spec that must be there.
CUSTOM = {"ScaledObject": ("keda.sh/v1alpha1", {"scaleTargetRef", "triggers"}),
          "PodMonitor": ("monitoring.coreos.com/v1", {"selector", "podMetricsEndpoints"}),
          "PrometheusRule": ("monitoring.coreos.com/v1", {"groups"}),
          "InferencePool": ("inference.networking.k8s.io/v1", {"selector", "targetPorts", "endpointPickerRef"})}


@functools.cache  # most documents are those of another tree, too, and of each tree that is broken below
def schema_error(document):
    """What the API's schema has against a document in JSON, or None."""
    try:
        kubernetes_validate.validate(json.loads(document), "1.30", strict=True)
    except kubernetes_validate.ValidationError as error:
        return error.message
    return None


def check_schema(documents):
    for name, document in documents:
        if document["kind"] in CUSTOM:
            version, fields = CUSTOM[document["kind"]]
            if document["apiVersion"] != version or not fields <= set(document["spec"]):
                yield f"{name}: {document['kind']} {document['metadata']['name']}: not {version} with {', '.join(sorted(fields))}"
            continue
        wrong = schema_error(json.dumps(document, sort_keys=True))
        if wrong:
            yield f"{name}: {document['kind']} {document['metadata']['name']}: {wrong}"


def check_container(where, container, config, images, volumes):
    if container["image"] not in images:
        yield f"{where}: image {container['image']} is not in kustomization.yaml"
    for entry in container.get("env", []):
        reference = entry.get("valueFrom", {}).get("configMapKeyRef")
        if reference and reference["key"] not in config.get(reference["name"], {}).get("data", {}):
            yield f"{where}: no ConfigMap {reference['name']} with key {reference['key']}"
    own = {mount["mountPath"] for mount in container.get("volumeMounts", [])
           if SECRETS.get(volumes.get(mount["name"], {}).get("secret", {}).get("secretName")) == container["name"]}
    if not own & {entry.get("value") for entry in container.get("env", []) if entry["name"] == "FD_TLS"}:
        yield f"{where}: FD_TLS is not the folder of a mounted secret with the certificate of a {container['name']}"
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
            if "secret" in volume:
                secret = volume["secret"]["secretName"]
                if secret not in SECRETS and secret not in OTHER_SECRETS:
                    yield f"{name}: no secret {secret}"
                if secret in SECRETS and {item["key"]: item["path"] for item in volume["secret"].get("items", [])} != FILES:
                    yield f"{name}: its secret is not mounted as {', '.join(FILES.values())}"
            elif volume["persistentVolumeClaim"]["claimName"] not in claims:
                yield f"{name}: no claim {volume['persistentVolumeClaim']['claimName']}"
        for container in pod["spec"]["containers"]:
            yield from check_container(name, container, config, images, volumes)
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield f"{name}: no volume {mount['name']}"
    for name, service in services.items():
        pods = [workload["spec"]["template"] for workload in workloads.values()
                if workload["spec"].get("replicas") != 0 and service["spec"]["selector"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()]
        if len(pods) != 1:
            yield f"Service {name}: selects {len(pods)} workloads"
            continue
        ports = {port["name"]: port["containerPort"] for port in pods[0]["spec"]["containers"][0]["ports"]}
        for port in service["spec"]["ports"]:
            if port["targetPort"] not in ports:
                yield f"Service {name}: no port {port['targetPort']} in its pods"


def mebibytes(quantity):
    """Of a quantity of memory in Mi or Gi."""
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def check_pods(documents):
    """Pod security `restricted`, and memory for what the service plans to take."""
    config = find(documents, "ConfigMap")["fastdecode"]["data"]
    for name, workload in {**find(documents, "Deployment"), **find(documents, "StatefulSet")}.items():
        spec = workload["spec"]["template"]["spec"]
        if not spec["securityContext"].get("runAsNonRoot") or spec["securityContext"].get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{name}: its pods are not restricted"
        for container in spec["containers"]:
            security = container.get("securityContext", {})
            if security.get("allowPrivilegeEscalation") is not False or security.get("capabilities", {}).get("drop") != ["ALL"] or \
                    not security.get("readOnlyRootFilesystem"):
                yield f"{name}: its container is not restricted"
            planned = {"kv-worker": int(config["FD_KV_MEMORY"]), "s-part": int(config["FD_LOCAL_POOL"])}.get(container["name"], 0) >> 20
            if mebibytes(container["resources"]["requests"]["memory"]) < planned + 128:
                yield f"{name}: requests less memory than its {planned} MiB of pages and a little"


def check_operators(documents):
    """Budgets, autoscalers and monitors are about something that is there."""
    workloads = {kind: find(documents, kind) for kind in ("Deployment", "StatefulSet")}
    for kind in ("ScaledObject", "HorizontalPodAutoscaler"):
        for name, scaler in find(documents, kind).items():
            target = scaler["spec"]["scaleTargetRef"]
            if target["name"] not in workloads.get(target["kind"], {}):
                yield f"{kind} {name}: no {target['kind']} {target['name']}"
    pods = [workload["spec"]["template"]["metadata"]["labels"] for kind in workloads.values() for workload in kind.values()]
    for kind in ("PodDisruptionBudget", "InferencePool"):
        for name, document in find(documents, kind).items():
            if not any(selects(document["spec"]["selector"], labels) for labels in pods):
                yield f"{kind} {name}: selects no pods"
    for name, monitor in find(documents, "PodMonitor").items():
        ports = {port["name"] for kind in workloads.values() for workload in kind.values()
                 if selects(monitor["spec"]["selector"], workload["spec"]["template"]["metadata"]["labels"])
                 for container in workload["spec"]["template"]["spec"]["containers"] for port in container["ports"]}
        if not {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports:
            yield f"PodMonitor {name}: selects no pods with its ports"


def selects(selector, labels):
    """True if a LabelSelector of matchLabels and `In` expressions takes these labels."""
    return (selector.get("matchLabels", {}).items() <= labels.items() and
            all(labels.get(expression["key"]) in expression["values"] for expression in selector.get("matchExpressions", [])))


def check_network(documents):
    """Every pod is behind a policy, and each of its ports but HTTP takes connections of the mesh's pods alone."""
    workloads = {**find(documents, "Deployment"), **find(documents, "StatefulSet")}
    pods = {name: workload["spec"]["template"] for name, workload in workloads.items()}
    policies = find(documents, "NetworkPolicy")
    known = {port["name"] for pod in pods.values() for port in pod["spec"]["containers"][0]["ports"]}
    for name, policy in policies.items():
        for rule in policy["spec"]["ingress"]:
            ports = {port["port"] for port in rule["ports"]}
            if ports - known:
                yield f"NetworkPolicy {name}: no pod has a port {', '.join(sorted(ports - known))}"
            if "from" not in rule and ports - OPEN_PORTS:
                yield f"NetworkPolicy {name}: {', '.join(sorted(ports - OPEN_PORTS))} is open to everyone"
    for name, pod in pods.items():
        over = [policy["spec"] for policy in policies.values() if selects(policy["spec"]["podSelector"], pod["metadata"]["labels"])]
        if not over:
            yield f"{name}: no NetworkPolicy selects it"
        for port in pod["spec"]["containers"][0]["ports"]:
            rules = [rule for spec in over for rule in spec["ingress"] if {"port": port["name"]} in rule["ports"]]
            for other, peer in pods.items():
                if port["name"] not in OPEN_PORTS | CLUSTER_PORTS and not any(selects(source["podSelector"], peer["metadata"]["labels"])
                                                              for rule in rules for source in rule.get("from", [])):
                    yield f"{name}: {other} may not connect to its port {port['name']}"
            if port["name"] in OPEN_PORTS and not any("from" not in rule for rule in rules):
                yield f"{name}: its port {port['name']} is not open"


def check(kustomization, documents):
    return [*check_schema(documents), *check_references(kustomization, documents), *check_network(documents), *check_pods(documents),
            *check_operators(documents)]


def break_each(kustomization, documents):
    """Breaks one thing at a time; each must be noticed."""
    def worker(broken):
        return find(broken, "StatefulSet")["kv-worker"]["spec"]

    def pod(broken):
        return worker(broken)["template"]["spec"]["containers"][0]

    def policy(broken, name):
        return find(broken, "NetworkPolicy")[name]["spec"]

    breaks = {
        "unknown field": lambda broken: worker(broken).update(replica=2),
        "wrong type": lambda broken: worker(broken).update(replicas="two"),
        "key": lambda broken: find(broken, "ConfigMap")["fastdecode"]["data"].pop("FD_SCHEDULER"),
        "selector": lambda broken: find(broken, "Service")["scheduler"]["spec"]["selector"].update(x="y"),
        "service port": lambda broken: find(broken, "Service")["gateway"]["spec"]["ports"][0].update(targetPort="web"),
        "claim": lambda broken: find(broken, "PersistentVolumeClaim")["fastdecode-models"]["metadata"].update(name="other"),
        "probe": lambda broken: pod(broken).pop("readinessProbe"),
        "secret's name": lambda broken: worker(broken)["template"]["spec"]["volumes"][0]["secret"].update(secretName="other"),
        "another's secret": lambda broken: worker(broken)["template"]["spec"]["volumes"][0]["secret"].update(secretName="fastdecode-tls-gateway"),
        "secret's file": lambda broken: worker(broken)["template"]["spec"]["volumes"][0]["secret"]["items"].pop(),
        "secret's mount": lambda broken: pod(broken)["volumeMounts"].pop(),
        "secret's folder": lambda broken: pod(broken)["env"].remove(next(entry for entry in pod(broken)["env"] if entry["name"] == "FD_TLS")),
        "policy's pods": lambda broken: policy(broken, "mesh")["podSelector"]["matchExpressions"][0]["values"].remove("kv-worker"),
        "policy's peers": lambda broken: policy(broken, "mesh")["ingress"][0]["from"][0]["podSelector"]["matchExpressions"][0]["values"].pop(),
        "policy's ports": lambda broken: policy(broken, "mesh")["ingress"][0]["ports"].pop(),
        "policy without peers": lambda broken: policy(broken, "mesh")["ingress"][0].pop("from"),
        "policy of HTTP": lambda broken: policy(broken, "gateway-http")["ingress"][0]["ports"][0].update(port="rpc"),
        "image": lambda broken: pod(broken).update(image="other"),
        "restriction": lambda broken: pod(broken)["securityContext"].pop("allowPrivilegeEscalation"),
        "user": lambda broken: worker(broken)["template"]["spec"]["securityContext"].pop("runAsNonRoot"),
        "memory": lambda broken: pod(broken)["resources"]["requests"].update(memory="128Mi"),
    }
    if find(documents, "ScaledObject"):
        breaks |= {
            "scaler's target": lambda broken: find(broken, "ScaledObject")["kv-worker"]["spec"]["scaleTargetRef"].update(kind="Deployment"),
            "scaler": lambda broken: find(broken, "ScaledObject")["gateway"]["spec"].pop("triggers"),
            "budget": lambda broken: find(broken, "PodDisruptionBudget")["kv-worker"]["spec"]["selector"]["matchLabels"].update(x="y"),
            "monitor": lambda broken: find(broken, "PodMonitor")["fastdecode"]["spec"]["podMetricsEndpoints"][0].update(port="other"),
        }
    for name, damage in breaks.items():
        broken = copy.deepcopy(documents)
        damage(broken)
        if not check(kustomization, broken):
            yield f"the check does not notice a broken {name}"


def check_rules(documents):
    """The operator's form of the rules is that of the rules."""
    for name, document in documents:
        if document["kind"] == "PrometheusRule":
            root = Path(__file__).parent.parent.parent
            made = subprocess.run([sys.executable, root / "deploy/kubernetes/make_rules.py"], capture_output=True, check=True).stdout
            if yaml.safe_load(made) != document:
                yield f"{name}: is not what deploy/kubernetes/make_rules.py makes"


def check_tree(folders):
    """Prints what is wrong with a kustomization and its components; True if anything is."""
    kustomization, documents, errors = load(Path(folders[0]))
    for component in folders[1:]:
        _, more, wrong = load(Path(component), documents)
        documents += more
        errors += wrong
    errors += check_rules(documents)
    errors += check(kustomization, documents)
    if not errors:
        errors += break_each(kustomization, documents)
    for error in errors:
        print(f"{folders[0]}: {error}", file=sys.stderr)
    if not errors:
        print(f"{' '.join(folders)}: {len(documents)} documents are valid")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(any([check_tree(tree.split(",")) for tree in sys.argv[1:]]))
