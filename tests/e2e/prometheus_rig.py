"""A real Prometheus that scrapes the gateways of a test."""
import json
import os
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from pace import seconds, wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RULES = os.path.join(ROOT, "deploy/prometheus/rules.yml")


class Prometheus:
    """Scrapes one mesh, by its gateway's address, and evaluates the rules."""

    def __init__(self, folder, target):
        config, self.log = folder / "prometheus.yml", folder / "log"
        config.write_text(f"""
global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}
rule_files: [{RULES}]
scrape_configs:
  - job_name: fastdecode
    static_configs: [{{targets: ["{target}"], labels: {{mesh: m}}}}]
""")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                                             "--web.listen-address=127.0.0.1:0", "--log.format=json"], stderr=log)

        def address():
            assert self.process.poll() is None, self.log.read_text()
            lines = [json.loads(line) for line in self.log.read_text().splitlines(True) if line.endswith("\n")]
            return next((line["address"] for line in lines if line.get("msg") == "Listening on"), None)

        def ready():
            try:
                return urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=seconds(30)).status == 200
            except urllib.error.HTTPError:
                return False

        self.address = wait_until(address, 60, "Prometheus does not listen")
        wait_until(ready, 60, "Prometheus is not ready")

    def ask(self, query):
        """The samples of a query, as (labels, value)."""
        with urllib.request.urlopen(f"http://{self.address}/api/v1/query?" + urllib.parse.urlencode({"query": query}), timeout=seconds(30)) as answer:
            return [(sample["metric"], float(sample["value"][1])) for sample in json.load(answer)["data"]["result"]]

    def stop(self):
        self.process.terminate()
        self.process.wait(seconds(60))
