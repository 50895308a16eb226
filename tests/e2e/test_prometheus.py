"""What an operator's Prometheus and Grafana make of a mesh: the metrics, the rules and every query of the dashboard, by the real programs."""
import json
import os
import re
import subprocess
import sys
import threading
import urllib.parse

import pytest

from conftest import tiny, wait_until
from prometheus_rig import RULES, Prometheus
from streams import body, run_all, words
from tls_mesh import TlsMesh, certs

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DASHBOARD = os.path.join(ROOT, "deploy/grafana/fastdecode.json")
OTHERS_NAMES = re.compile(r"^(# \w+ )?vllm:")  # autoscalers know them so; promtool wants no colon


def promtool(*arguments, **settings):
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, **settings)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    with TlsMesh(certs(tmp_path_factory.mktemp("tls") / "certs"), "--kv-workers", 2, "--local-pool", 0, model=tiny()) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(mesh, tmp_path_factory):
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), urllib.parse.urlparse(mesh.url).netloc)
    yield running
    running.stop()


@pytest.fixture
def load(mesh):
    """Streams as long as the test runs."""
    ended, seen = threading.Event(), []

    def go():
        while not ended.is_set():
            seen.extend(run_all(mesh.url, [body(words(40, i), 64) for i in range(8)]))

    thread = threading.Thread(target=go)
    thread.start()
    yield seen
    ended.set()
    thread.join()


def test_metrics_are_clean(mesh, load):
    wait_until(lambda: load, 60, "no stream has ended")
    lines = [line for line in mesh.get("/metrics").splitlines() if not OTHERS_NAMES.match(line)]
    assert any("fastdecode_place_load_tokens" in line for line in lines)
    assert promtool("check", "metrics", input="\n".join(lines) + "\n") == (0, "")


def dashboard_queries():
    """(panel, query), with the variables as Grafana would put them in."""
    with open(DASHBOARD, encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    found = [(panel["title"], target["expr"].replace("$mesh", ".+").replace("$__rate_interval", "5s"))
             for panel in panels for target in panel.get("targets", [])]
    assert len(found) > 30 and not [query for _, query in found if "$" in query]
    return found


@pytest.mark.usefixtures("load")
def test_every_query_of_the_dashboard_has_data(prometheus):
    missing = dashboard_queries()

    def all_there():
        nonlocal missing
        missing = [(title, query) for title, query in missing if not prometheus.ask(query)]
        return not missing

    wait_until(all_there, 60, lambda: f"no data for {missing}", 0.2)


def queries_of_autoscalers():
    """Of KEDA's triggers, and of Prometheus Adapter's rules as the adapter fills them in."""
    found = []
    for path in ("autoscale-keda/scaled-objects.yaml", "autoscale-adapter/adapter-rules.txt"):
        with open(os.path.join(ROOT, "deploy/kubernetes/components", path), encoding="utf-8") as file:
            found += re.findall(r"(?:query|metricsQuery): (.*)", file.read())
    return [query.replace("<<.LabelMatchers>>", 'mesh="m"').replace('mesh="fastdecode"', 'mesh="m"') for query in found]


@pytest.mark.usefixtures("load")
def test_queries_of_autoscalers_have_data(prometheus):
    queries = queries_of_autoscalers()
    assert len(queries) == 4
    for query in queries:
        wait_until(lambda: prometheus.ask(query), 60, f"no data for {query}")


@pytest.mark.usefixtures("load")
def test_what_autoscalers_ask_for(prometheus):
    """The load in workers, as the rule records it."""
    [(labels, up)] = wait_until(lambda: prometheus.ask("fastdecode:kv_workers:up"), 60, "the rules are not evaluated")
    assert labels["mesh"] == "m" and up == 2
    assert 0 < wait_until(lambda: prometheus.ask("fastdecode:wanted:workers > 0"), 60, "no load is seen")[0][1] < 2


def test_an_alert_of_certificates_fires(prometheus, mesh):
    """Once the new ones are good for less than a week; not for those of a year, nor for the CA, which stays."""
    wait_until(lambda: prometheus.ask("fastdecode_certificate_expiry_timestamp_seconds"), 60, "no certificate has an end")
    assert prometheus.ask('ALERTS{alertname="FastDecodeCertificateExpires"}') == []
    certs(mesh.certs, "--renew", "--days", 6)
    seen = wait_until(lambda: len(found := prometheus.ask('ALERTS{alertname="FastDecodeCertificateExpires"}')) == 5 and found, 60, "no alert")
    assert {(labels["service"], labels["certificate"]) for labels, _ in seen} == \
        {(name, "mesh") for name in ("gateway", "scheduler", "s-part", "kv-worker-0", "kv-worker-1")}


def test_an_alert_fires(prometheus, mesh):
    assert prometheus.ask('ALERTS{alertname="FastDecodeWorkerLost"}') == []
    mesh.kill("kv-worker-1")
    firing = wait_until(lambda: prometheus.ask('ALERTS{alertname="FastDecodeWorkerLost",alertstate="firing"}'), 60, "no alert fires")
    assert [labels["place"] for labels, _ in firing] == ["kv-worker-1"]


def alert_names():
    with open(RULES, encoding="utf-8") as file:
        return re.findall(r"- alert: (\w+)", file.read())


def test_rules():
    assert promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)[0] == 0
    assert promtool("check", "config", "--syntax-only", os.path.join(ROOT, "deploy/prometheus/prometheus.yml"))[0] == 0
    code, said = promtool("test", "rules", os.path.join(ROOT, "deploy/prometheus/rules_test.yml"))
    assert code == 0, said
    with open(os.path.join(ROOT, "deploy/prometheus/rules_test.yml"), encoding="utf-8") as file:
        tests = file.read()
    with open(os.path.join(ROOT, "docs/operations.md"), encoding="utf-8") as file:
        told = file.read()
    for name in alert_names():
        assert re.search(rf"alertname: {name}\s+exp_alerts:\s+- exp_labels", tests), f"{name}: no test in which it fires"
        assert re.search(rf"alertname: {name}, exp_alerts: \[\]", tests), f"{name}: no test in which it does not fire"
        assert f"| `{name}` |" in told, f"docs/operations.md does not say what to do about {name}"


def test_the_dashboard_is_what_its_script_makes():
    made = subprocess.run([sys.executable, os.path.join(ROOT, "deploy/grafana/make_dashboard.py")], capture_output=True, text=True, check=True).stdout
    with open(DASHBOARD, encoding="utf-8") as file:
        assert file.read() == made
