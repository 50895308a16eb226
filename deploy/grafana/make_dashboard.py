#!/usr/bin/env python3
"""Writes fastdecode.json, the Grafana dashboard, from the table below: `make_dashboard.py > fastdecode.json`.

Every query takes the variables $mesh and $__rate_interval. What the scheduler says is repeated by each gateway: max by mesh, not sum.
"""
import json

MESH = '{mesh=~"$mesh"}'
PLACE = '{mesh=~"$mesh",place!="local"}'


def once(metric, labels=MESH, by="mesh"):
    """A number of the scheduler's, taken once however many gateways repeat it."""
    return f"max by ({by}) (fastdecode_{metric}{labels})"


def rate(metric, labels=MESH, by="mesh"):
    return f"max by ({by}) (rate(fastdecode_{metric}{labels}[$__rate_interval]))"


def gateways(metric, by="mesh", labels=MESH):
    """A number of the gateways' own."""
    return f"sum by ({by}) (rate(fastdecode_{metric}{labels}[$__rate_interval]))"


def quantile(share, metric):
    return f"histogram_quantile({share}, sum by (mesh, le) (rate(fastdecode_{metric}_bucket{MESH}[$__rate_interval])))"


def quantiles(metric):
    return [(quantile(share, metric), name) for share, name in ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))]


# Rows of panels: title, unit, what it tells, and pairs of query and legend.
ROWS = [
    ("What users see", [
        ("Generated tokens", "tokens/s", "Tokens given to clients.", [(rate("generated_tokens_total"), "{{mesh}}")]),
        ("Time to first token", "s", "Arrival of a request to its first token.", quantiles("time_to_first_token_seconds")),
        ("Time between tokens", "s", "Of one sequence.", quantiles("time_between_tokens_seconds")),
        ("Requests", "reqps", "Answers by HTTP status.", [(gateways("http_responses_total", "mesh, code"), "{{code}}")]),
        ("Refused requests", "reqps", "By the reason.", [
            (gateways("http_responses_total", "mesh, reason", '{mesh=~"$mesh",reason!=""}') + " or on () vector(0)", "{{reason}}")]),
        ("Running and waiting", "short", "Interactive requests.", [(once("requests_running"), "running"), (once("requests_waiting"), "waiting"),
                                                                   (once("batch_requests_running"), "batch running"),
                                                                   (once("batch_requests_waiting"), "batch waiting")]),
        ("Whole request", "s", "Arrival to the end of the answer.", quantiles("request_seconds")),
    ]),
    ("S-part and R-part", [
        ("Busy", "percentunit", "Share of time in segments (S-part) and attention (each worker). The rest is the bubble.", [
            (rate("spart_busy_seconds_total"), "s-part"),
            (rate("place_busy_seconds_total", PLACE, "mesh, place"), "{{place}}")]),
        ("S-part waits for attention", "percentunit", "Share of time in which a step waited for KV workers.",
         [(rate("spart_waiting_seconds_total"), "waits")]),
        ("Steps", "short", "Steps a second, and mini-batches in use.", [(rate("steps_total"), "steps/s"), (once("mini_batches"), "mini-batches")]),
        ("Rows", "short", "Rows a second by what they are for.", [
            (rate("decode_tokens_total"), "decode"), (rate("prefill_tokens_total"), "prefill"), (rate("draft_tokens_total"), "drafts"),
            (rate("draft_tokens_right_total"), "right drafts"), (rate("wasted_rows_total"), "wasted")]),
        ("Bubbles of a pipeline", "percentunit", "Idle share of each stage by cause; empty with one s-part.",
         [(rate("bubble_seconds_total", MESH, "mesh, stage, kind") + " or on () vector(0)", "{{stage}} {{kind}}")]),
        ("Prediction", "percentunit", "Mean error of the predicted time of a step.", [(once("step_prediction_error_ratio"), "error")]),
    ]),
    ("KV", [
        ("Load by place", "short", "Context tokens that steps of all mini-batches read.", [
            (once("place_load_tokens", MESH, "mesh, place"), "{{place}}")]),
        ("Pages used", "percentunit", "Of those that are there.", [
            (once("kv_pages_used", MESH, "mesh, place") + " / (" + once("kv_pages", MESH, "mesh, place") + " > 0)", "{{place}}")]),
        ("Time of a context token", "s", "Measured, all layers: a slow worker stands out.",
         [(once("place_token_seconds", MESH, "mesh, place"), "{{place}}")]),
        ("KV read", "Bps", "By attention.", [(rate("kv_read_bytes_total", MESH, "mesh, place"), "{{place}}")]),
        ("Prefix cache", "short", "Prompt tokens a second that were there already, and those computed.", [
            (rate("prefix_cached_tokens_total"), "found"), (rate("prefill_tokens_total"), "computed")]),
        ("Weights read", "Bps", "From disk or over the bus, where the weights do not fit.", [(rate("weights_read_bytes_total"), "weights")]),
    ]),
    ("Scale and failures", [
        ("Workers wanted", "short", "KV workers that the load asks for, the queue included, and those that are up.", [
            (f"fastdecode:wanted:workers{MESH}", "wanted"), (f"fastdecode:kv_workers:up{MESH}", "up")]),
        ("Places up", "short", "1 while it takes part.", [(once("place_up", MESH, "mesh, place"), "{{place}}")]),
        ("Lost and computed again", "short", "Tokens a second that were computed again, sequences that moved, paused or lost.", [
            (rate("rebuilt_tokens_total"), "tokens again"), (rate("sequences_moved_total"), "moved"),
            (rate("sequences_preempted_total"), "paused"), (rate("sequences_rebuilt_total"), "rebuilt")]),
        ("Places lost", "short", "In the last ten minutes.", [
            (f"max by (mesh, place) (increase(fastdecode_place_lost_total{MESH}[10m]))", "{{place}}")]),
        ("Certificates", "s", "Time until each ends: of --tls, its CA, and HTTPS. Empty where there is none.", [
            (f"min by (mesh, service, certificate) (fastdecode_certificate_expiry_timestamp_seconds{MESH}) - time()", "{{service}} {{certificate}}"),
            (f"min by (mesh, certificate) (fastdecode_gateway_certificate_expiry_timestamp_seconds{MESH}) - time()", "gateway {{certificate}}")]),
        ("Not written", "short", "Writes in the last ten minutes that a gateway's disk did not take.", [
            (f"sum by (mesh, instance, what) (increase(fastdecode_gateway_not_written_total{MESH}[10m])) or on () vector(0)", "{{instance}} {{what}}")]),
        ("Gateways", "short", "Open HTTP requests of each gateway.", [(f"fastdecode_gateway_http_active{MESH}", "{{instance}}")]),
        ("Alerts", "short", "That fire now.", [('count by (alertname) (ALERTS{alertname=~"FastDecode.*",alertstate="firing"}) or on () vector(0)',
                                               "{{alertname}}")]),
    ]),
]
COLUMNS, WIDTH, HEIGHT = 3, 8, 8
SOURCE = {"type": "prometheus", "uid": "${source}"}


def panel(number, title, unit, description, queries, place):
    return {"id": number, "type": "timeseries", "title": title, "description": description, "datasource": SOURCE, "gridPos": place,
            "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 8, "showPoints": "never"}}, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
            "targets": [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query, "legendFormat": legend}
                        for i, (query, legend) in enumerate(queries)]}


def dashboard():
    panels, y = [], 0
    for title, row in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": COLUMNS * WIDTH, "h": 1}})
        y += 1
        for i, (name, unit, description, queries) in enumerate(row):
            place = {"x": i % COLUMNS * WIDTH, "y": y + i // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(panel(len(panels) + 1, name, unit, description, queries, place))
        y += -(-len(row) // COLUMNS) * HEIGHT
    variables = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {"name": "mesh", "label": "Mesh", "type": "query", "datasource": SOURCE, "refresh": 2, "includeAll": True, "multi": True,
         "current": {"text": "All", "value": "$__all"}, "query": "label_values(fastdecode_gateway_mesh_up, mesh)"}]
    return {"uid": "fastdecode", "title": "FastDecode", "tags": ["fastdecode"], "schemaVersion": 38, "version": 1, "refresh": "10s",
            "time": {"from": "now-30m", "to": "now"}, "timezone": "browser", "templating": {"list": variables}, "panels": panels}


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
