"""The gauges of rank 0, and that their names are those of the documentation and the dashboard."""

import json
import re
from pathlib import Path

import pytest

from clustertrain.observe.ledger.book import CATEGORIES
from clustertrain.worker.loggers import ray_gauges

ROOT = Path(__file__).parents[2]
seen = {}


class Gauge:
    """Keeps what is set in seen."""

    def __init__(self, name, description, tag_keys):
        self.name, self.tag_keys = name, tag_keys

    def set_default_tags(self, tags):
        assert tuple(tags) == self.tag_keys
        return self

    def set(self, value):
        seen[self.name] = value


def test_a_line_of_the_log_sets_them(run, monkeypatch):
    monkeypatch.setattr(ray_gauges, "Gauge", Gauge)
    monkeypatch.setattr("time.monotonic", iter([100.0, 110.0]).__next__)
    gauges = ray_gauges.RayGauges(run)
    gauges.take({"kind": "train", "step": 10, "loss": 2, "compute_s": 9.0, "note": "text"})
    assert seen == {"clustertrain_loss": 2.0}
    times = {"data_wait_s": 1.0, "compute_s": 0.5, "communication_s": 0.25}
    gauges.take({"kind": "train", "step": 14, "loss": 1.5, "samples_per_s": 7.0, **times})
    assert seen == {
        "clustertrain_loss": 1.5,
        "clustertrain_samples_per_s": 7.0,
        "clustertrain_goodput": pytest.approx(4 * 0.75 / 10),
    }


def test_names_are_documented_and_the_dashboard_uses_no_others():
    page = (ROOT / "docs/guides/monitoring.md").read_text()
    names = {f"ray_clustertrain_{name}" for name in ray_gauges.GAUGES}
    assert set(re.findall(r"^\| `(ray_clustertrain_\w+)` \|", page, re.MULTILINE)) == names
    rows = re.findall(r"^\| `(\w+)` \|.*\| (yes|no) \|$", page, re.MULTILINE)
    assert dict(rows) == {name: "yes" if each.productive else "no" for name, each in CATEGORIES.items()}
    dashboard = json.loads((ROOT / "k8s/components/monitoring/dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert {name for query in queries for name in re.findall(r"ray_clustertrain_\w+", query)} == names
    assert all("ray_node_" in query or "ray_clustertrain_" in query for query in queries)
