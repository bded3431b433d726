"""The dashboard, the alerts and the scrape example name only what a running server has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from scripts.metrics_reference import families
from tests.integration.api.support import Running

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
LABELS_OF_PROMETHEUS = {"job", "instance", "le"}
SUFFIXES = {"counter": ("",), "gauge": ("",), "info": ("",), "histogram": ("_bucket", "_count", "_sum")}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/tunefleet.json").read_text(encoding="utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    targets = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return [*targets, *(rule["expr"] for rule in rules())]


def selectors(expression: str) -> list[Any]:
    """Return the selectors of an expression, as Prometheus's grammar reads it."""
    found: list[Any] = []
    ahead: list[Any] = [promql_parser.parse(expression.replace("$__rate_interval", "5m"))]
    while ahead:
        node = ahead.pop()
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
            continue
        for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
            inner = getattr(node, name, None)
            if inner is not None and type(inner).__module__ == type(node).__module__:
                ahead.append(inner)
        ahead += [each for each in getattr(node, "args", None) or () if not isinstance(each, str | float)]
    return found


def test_every_metric_of_dashboard_and_alerts_is_one_that_a_server_has(running: Running) -> None:
    headers = {"Authorization": f"Bearer {running.admin_key}", "Accept": "text/plain"}
    text = httpx.get(f"{running.url}/metrics", headers=headers, timeout=60).text
    live: set[str] = {"up"}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        live |= {f"{name}{suffix}" for suffix in SUFFIXES.get(family.type, ("",))}
    labels = {f"{name}{suffix}": set(has) for name, kind, has, _ in families() for suffix in SUFFIXES.get(kind, ("",))}
    asked = [selector for expression in expressions() for selector in selectors(expression)]
    assert len({selector.name for selector in asked}) > 25
    assert {selector.name for selector in asked} - live == set()
    for selector in asked:
        used = {matcher.name for matcher in selector.matchers.matchers}
        if selector.name in labels:
            assert used <= labels[selector.name] | LABELS_OF_PROMETHEUS, selector.name
    # What the reference lists is what there is, and nothing of ours is missing from it.
    ours = {name for name in live if name.startswith("tunefleet_")}
    assert {f"{name}{suffix}" for name, kind, _, _ in families() for suffix in SUFFIXES.get(kind, ("",))} == ours


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_where_to_look(rule: dict[str, Any]) -> None:
    assert rule["alert"].startswith("Tunefleet")
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert len(rule["annotations"]["summary"]) > 15
    assert len(rule["annotations"]["description"]) > 15


def test_the_dashboard_can_be_imported() -> None:
    board = dashboard()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {variable["type"] for variable in board["templating"]["list"]} == {"datasource"}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells


def test_the_scrape_example_reads_the_alerts_with_a_key_from_a_file() -> None:
    found = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text(encoding="utf-8"))
    assert [(DEPLOY / "prometheus" / name).is_file() for name in found["rule_files"]] == [True]
    (job,) = found["scrape_configs"]
    assert (job["job_name"], job["metrics_path"]) == ("tunefleet", "/metrics")
    assert list(job["authorization"]) == ["credentials_file"]
