"""The page of runs that an earlier release wrote, whole and damaged, as text and in a browser."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.cli.report import facts
from clustertrain.observe.as_json import last_printed
from clustertrain.observe.report.facts import RunFacts

SAMPLE = Path(__file__).parents[2] / "fixtures" / "sample_runs" / "storage"
MOST_BYTES = 2_000_000
NEVER_CLOSED = {"br", "hr", "img", "input", "link", "meta"}


@pytest.fixture
def runs(tmp_path):
    """Two runs, one of them finished and one stopped, in a storage of their own."""
    return shutil.copytree(SAMPLE, tmp_path / "runs")


@pytest.fixture
def write(runs, tmp_path):
    """Writes the report of these runs; returns its text."""

    def write_report(*names):
        page = tmp_path / "report.html"
        done = CliRunner().invoke(main, ["report", *(str(runs / name) for name in names), "-o", str(page)])
        assert (done.exit_code, done.exception) == (0, None), done.output
        return page.read_text()

    return write_report


def attempt_of(runs, name):
    return runs / name / "g1" / "attempts" / "1"


def metrics_of(runs, name):
    (stream,) = attempt_of(runs, name).glob("metrics-*.jsonl")
    return stream


class Page(HTMLParser):
    """Whether each element is closed, and what the page would load."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.charts, self.described, self.text = [], [], 0, 0, ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.loads += [value for key, value in attributes if key in ("src", "srcset", "data", "action")]
        self.loads += [given["href"]] if tag == "link" else []
        assert tag != "script"
        if tag == "svg":
            self.charts += 1
            self.described += given.get("role") == "img" and "aria-label" in given
        for key in ("width", "height", "r"):
            assert not str(given.get(key, "")).startswith("-"), (tag, given)
        if tag not in NEVER_CLOSED:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in NEVER_CLOSED:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_of_a_run_has_its_sections_and_loads_nothing(write):
    page = write("finished")
    found = Page(page)
    for name in ("Summary", "Curves", "Where the time went", "Attempts"):
        assert name in found.text
    assert found.charts == found.described >= 4
    assert found.loads == ["data:,"], "no icon is asked for"
    assert "url(" not in page
    assert "done (finished)" in found.text
    assert len(page) < MOST_BYTES


def test_runs_side_by_side_show_what_differs(write):
    found = Page(write("finished", "stopped"))
    assert "2 runs" in found.text
    assert "What differs" in found.text
    assert found.charts == found.described


def test_a_run_without_metrics_says_so(write, runs):
    metrics_of(runs, "finished").unlink()
    assert "metrics: none were written" in Page(write("finished")).text


def test_torn_lines_and_later_kinds_are_left_out(write, runs):
    before = Page(write("finished")).charts
    for stream in (metrics_of(runs, "finished"), attempt_of(runs, "finished") / "events.jsonl"):
        with stream.open("ab") as file:
            file.write(b'{"kind": "warp", "time": 1.0, "step": "nine"}\n{"kind": "tra')
    assert Page(write("finished")).charts == before


def test_values_that_no_chart_can_show_are_left_out_and_counted(write, runs):
    stream = metrics_of(runs, "finished")
    line = json.loads(stream.read_text().splitlines()[1])
    with stream.open("a") as file:
        for step, loss in enumerate((1e308, -1e308, float("nan"), float("inf")), 1000):
            file.write(json.dumps(line | {"step": step, "loss": loss}) + "\n")
    assert "4 values beyond 1e300, or no numbers" in Page(write("finished")).text


def test_the_newest_causes_of_many_failures_are_shown_and_all_are_counted(write, runs):
    with (attempt_of(runs, "finished") / "events.jsonl").open("a") as file:
        for n in range(200):
            line = {"kind": "worker_died", "time": 2e9 + n, "step": n, "text": f"fault {n}"}
            file.write(json.dumps(line) + "\n")
    page = write("finished")
    assert "<td>200</td>" in page and "fault 199" in Page(page).text


def test_what_users_write_is_text_on_the_page(write, runs):
    result = attempt_of(runs, "finished") / "result.json"
    told = json.loads(result.read_text()) | {"state": "failed", "cause": "error", "exit_code": 1}
    result.write_text(json.dumps(told | {"text": "<script>alert('&amp;')</script>"}))
    assert "<script>alert('&amp;')</script>" in Page(write("finished")).text


def test_a_report_that_cannot_be_written_is_refused(runs):
    folder = runs / "finished" / "g1" / "job.yaml"  # a file
    done = CliRunner().invoke(main, ["report", str(runs / "finished"), "-o", str(folder / "report.html")])
    assert done.exit_code == 4
    assert str(folder) in done.output
    assert "Traceback" not in done.output


@pytest.mark.slow
def test_a_long_run_has_a_small_page(write, runs):
    stream = metrics_of(runs, "finished")
    line = json.loads(stream.read_text().splitlines()[1])
    with stream.open("a") as file:
        for step in range(1000, 31_000):
            file.write(json.dumps(line | {"step": step, "loss": 1 / step}) + "\n")
        file.write(json.dumps(line | {"step": 31_000, "loss": 77.0}) + "\n")
    page = write("finished")
    assert len(page) < MOST_BYTES
    assert "77 at step 31000" in Page(page).text


def test_what_a_pod_sends_is_what_is_shown_here(runs):
    target = str(runs / "finished")
    printed = CliRunner().invoke(main, ["report", target, "--send", "60"]).stdout
    sent = last_printed(RunFacts, f"a warning\n{printed}another\n")
    assert sent == facts(target, None, 60)
    assert last_printed(RunFacts, "a warning\n") is None
