"""metrics.prom, and that its names are those of the documentation and the dashboard."""

import json
import re
from pathlib import Path

from clustertrain.ledger.book import CATEGORIES, Booking, Ledger, Phase
from clustertrain.ledger.prometheus import (
    METRICS,
    Used,
    metrics_written,
    prometheus_text,
    write_metrics,
    written_figures,
)
from sample_records import sample_claim
from waiting import wait_until

ROOT = Path(__file__).parents[2]
SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\d+\.\d+)')


def test_every_sample_is_in_the_text_format(run):
    booked = (Booking("steps", 30.0), Booking("restart", 10.0, 'rank 1: "no"\nC:\\x'))
    ledger = Ledger((Phase(100.0, 140.0, 1, 0, 2, booked),), "GPU", 4)
    text = prometheus_text(run, ledger, now=141.0)
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    found = [SAMPLE.fullmatch(line) for line in samples]
    assert all(found), samples
    assert {match[1] for match in found} == METRICS.keys()
    assert 'clustertrain_run_ettr{run="digits",generation="1"} 0.750000' in samples
    assert (
        f'clustertrain_run_device_hours{{run="digits",generation="1",device="GPU"}} {320 / 3600:.6f}'
        in samples
    )
    assert re.findall(r"# TYPE (\w+) gauge", text) == list(METRICS)


def test_its_figures_are_read_again_unless_they_are_too_old(run):
    assert written_figures(run, 0.0) is None
    booked = (Booking("steps", 30.0), Booking("restart", 10.0, "clustertrain_run_ettr{} 1.0"))
    ledger = Ledger((Phase(100.0, 140.0, 1, 0, 2, booked),), "GPU", 90)
    run.store.write_atomic(run.prometheus_key, prometheus_text(run, ledger, now=141.0).encode())
    assert written_figures(run, 141.0) == Used(0.75, 2.0, 40.0)
    assert written_figures(run, 141.1) is None
    run.store.write_atomic(run.prometheus_key, b"\xff torn")
    assert written_figures(run, 0.0) is None


def test_the_file_is_written_while_the_block_runs_and_again_at_the_end(run, monkeypatch):
    monkeypatch.setattr("clustertrain.ledger.prometheus._EVERY_S", 0.01)
    run.attempt(1).claim.create(sample_claim(time=1000.0))
    path = run.local_path(run.prometheus_key)
    with metrics_written(run):
        wait_until(path.exists, 30)
    assert 'category="start"' in path.read_text()
    path.unlink()
    write_metrics(run, alive=False)
    assert "clustertrain_run_wall_seconds" in path.read_text()


def test_names_are_documented_and_the_dashboard_uses_no_others():
    page = (ROOT / "docs/ledger.md").read_text()
    assert set(re.findall(r"^\| `(clustertrain_\w+)` \|", page, re.MULTILINE)) == METRICS.keys()
    rows = re.findall(r"^\| `(\w+)` \|.*\| (yes|no) \| (?:`(\w+)`)?", page, re.MULTILINE)
    documented = {name: (productive == "yes", goodput) for name, productive, goodput in rows}
    assert documented == {name: (each.productive, each.goodput) for name, each in CATEGORIES.items()}
    dashboard = json.loads((ROOT / "k8s/components/monitoring/dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in dashboard["templating"]["list"]]
    used = {name for query in queries for name in re.findall(r"clustertrain_run_\w+", query)}
    assert used == METRICS.keys() - {"clustertrain_run_ledger_time_seconds"}
    assert all(
        "ray_node_" in query or query == "prometheus" or "clustertrain_run_" in query for query in queries
    )
