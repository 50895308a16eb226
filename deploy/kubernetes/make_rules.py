#!/usr/bin/env python3
"""Writes components/monitoring/rules.yaml, the Prometheus Operator's form of deploy/prometheus/rules.yml: make_rules.py > FILE."""
import os

RULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../prometheus/rules.yml")
HEAD = """# Made of deploy/prometheus/rules.yml by make_rules.py.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: fastdecode
spec:
"""

if __name__ == "__main__":
    with open(RULES, encoding="utf-8") as file:
        lines = [line for line in file if not line.startswith("#")]
    print(HEAD + "".join("  " + line if line.strip() else line for line in lines), end="")
