"""The page of runs that an earlier release wrote, whole and damaged, as text and in a browser."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.cli.report import facts
from clustertrain.job.file import load_job
from clustertrain.node.processes import this_process
from clustertrain.observe.as_json import last_printed
from clustertrain.observe.status_json import StoredStatus
from clustertrain.report.facts import RunFacts
from clustertrain.report.one_run import origin
from clustertrain.report.svg import chart
from clustertrain.run.folder import RunDir
from clustertrain.run.records import Provenance, Repository, Source
from commands import ran
from sample_records import sample_claim
from waiting import wait_until

SAMPLE = Path(__file__).parents[1] / "fixtures" / "sample_runs" / "storage"
MOST_BYTES = 2_000_000
NEVER_CLOSED = {"br", "hr", "img", "input", "link", "meta"}
BROWSER = shutil.which("chromium")


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
            self.described += given.get("aria-hidden") == "true" or given.get("role") == "img"
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
    for name in ("Summary", "Curves", "Where the time went", "Timeline", "Configuration", "reproduce"):
        assert name in found.text
    assert found.charts == found.described >= 4
    assert found.loads == ["data:,"], "no icon is asked for"
    assert "url(" not in page
    assert "done (finished)" in found.text
    assert "torch==" in found.text, "the packages of the Python that trained"
    assert len(page) < MOST_BYTES


@pytest.mark.parametrize("values", [(1e9, 1e9 + 10), (-0.0005, -0.0001), (-3e-13, -3e-13), (0.9998, 1.0)])
def test_the_numbers_of_a_chart_differ_and_are_within_it(values):
    drawn = chart("loss", [("train", [(10, values[0]), (1000, values[1])])])
    found = re.findall(r'<text class="(end|mid)" x="([\d.]+)" y="[\d.]+">(-?[\d.]+[^<]*)</text>', drawn)
    for css in ("end", "mid"):
        texts = [text for of, _, text in found if of == css]
        assert len({*texts}) == len(texts) >= 2
    for css, x, text in found:
        assert float(x) >= 7 * len(text) if css == "end" else float(x) + 3.5 * len(text) <= 360


def test_the_commands_to_run_it_again_apply_a_diff_where_it_fits():
    a, b = (Repository(f"/code/{name}", "c0ffee", changed=True) for name in "ab")
    where = {"name": "digits", "uri": "/runs/digits/g1", "attempt_uri": "/runs/digits/g1/attempts/2"}
    where |= {"status": StoredStatus()}
    known = Provenance(Source((a, replace(b, changed=False))), (), "3.11", "Linux", "node")
    here = RunFacts(**where, provenance=known, diff="-old\n+new\n")
    assert "\ngit apply /runs/digits/g1/attempts/2/diff.patch\ncd /code/b &amp;&amp;" in origin(here)
    of_both = replace(here, provenance=replace(known, source=Source((a, b))))
    assert "git apply" not in origin(of_both), "diff.patch has the files of both"
    on_s3 = replace(here, uri=f"s3:/{here.uri}", attempt_uri=f"s3:/{here.attempt_uri}")
    assert "aws s3 cp s3://runs/digits/g1/attempts/2/diff.patch - | git apply\n" in origin(on_s3)
    assert "aws s3 cp s3://runs/digits/g1/job.yaml digits-again.yaml\n" in origin(on_s3)
    assert " run digits-again.yaml --set name=digits-again<" in origin(on_s3)
    (name,) = re.findall("name=([^<]+)<", origin(replace(here, name="a" * 47)))
    assert load_job({"name": name, "script": "train.py"}).name == "a" * 41 + "-again"
    elsewhere = replace(on_s3, settings={"storage.endpoint": "http://store:9000"})
    assert "aws --endpoint-url http://store:9000 s3 cp s3://runs/digits/g1/job.yaml" in origin(elsewhere)


def test_runs_side_by_side_show_what_differs(write):
    found = Page(write("finished", "stopped"))
    assert "2 runs" in found.text
    assert "Differences" in found.text
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


def test_many_faults_leave_out_no_event_without_saying_so(write, runs):
    with (attempt_of(runs, "finished") / "events.jsonl").open("a") as file:
        for n in range(200):
            line = {"kind": "worker_died", "time": 2e9 + n, "step": n, "text": f"fault {n}"}
            file.write(json.dumps(line) + "\n")
    page = Page(write("finished")).text
    assert "fault 0" in page and "fault 199" in page
    assert "older ones" not in page
    assert "Timeline. 2 lanes of attempts and nodes" in write("finished")


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
    assert "to 77 at 31000" in Page(page).text


def test_what_a_pod_sends_is_what_is_shown_here(runs):
    target = str(runs / "finished")
    printed = CliRunner().invoke(main, ["report", target, "--send", "60"]).stdout
    sent = last_printed(RunFacts, f"a warning\n{printed}another\n")
    assert sent == facts(target, None, 60)
    assert last_printed(RunFacts, "a warning\n") is None


def test_watch_prints_a_block_and_ends_with_the_run(runs, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it reads a run that has ended again"))
    done = CliRunner().invoke(main, ["watch", str(runs / "finished")])
    assert done.exit_code == 0, done.output
    assert re.search(r"^finished +done$", done.output, re.MULTILINE)
    assert re.search(r"^ +loss +[▁-█]+ ", done.output, re.MULTILINE)
    assert "ETTR" in done.output


class GoingOn:
    """The finished run as one that this process trains: `step` adds metrics, `end` writes the result."""

    def __init__(self, runs):
        self.attempt = RunDir.newest(str(runs), "finished").attempt(1)
        self.result = self.attempt.result.read()
        attempt_of(runs, "finished").joinpath("result.json").unlink()
        self.attempt.claim.write(sample_claim(this_process(), time=self.attempt.claim.read().time))
        self.stream = metrics_of(runs, "finished")
        self.line = json.loads(self.stream.read_text().splitlines()[1])

    def step(self, step, loss):
        with self.stream.open("a") as file:
            file.write(json.dumps(self.line | {"step": step, "loss": loss}) + "\n")

    def end(self):
        self.attempt.result.write(self.result)


def test_follow_writes_the_page_again_with_what_was_added_until_the_run_ends(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("clustertrain.cli.report._FOLLOW_S", 0.1)
    going_on, page, seen = GoingOn(runs), tmp_path / "report.html", []

    def train():
        for step, loss in ((7001, 41.5), (7002, 77.25)):
            going_on.step(step, loss)
            wait_until(lambda: page.exists() and f"to {loss:.4g} at {step}" in page.read_text(), 60)  # noqa: B023
            seen.append('http-equiv="refresh"' in page.read_text())
        going_on.end()

    run = threading.Thread(target=train)
    run.start()
    done = CliRunner().invoke(main, ["report", "--follow", str(runs / "finished"), "-o", str(page)])
    run.join()
    assert (done.exit_code, seen) == (0, [True, True]), done.output
    assert "finished: running" in done.output
    assert f"wrote {page}" in done.output
    assert "done (finished)" in Page(page.read_text()).text
    assert 'http-equiv="refresh"' not in page.read_text()


@pytest.mark.slow
def test_watch_draws_over_itself_on_a_terminal_and_ends_with_the_run(runs):
    going_on, shown = GoingOn(runs), b""
    here, there = pty.openpty()
    command = [sys.executable, "-m", "clustertrain.cli", "watch", str(runs / "finished")]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    watch = subprocess.Popen(command, stdout=there, stderr=there, env=environment)
    os.close(there)

    def reads(text):
        nonlocal shown
        while text.encode() not in shown:
            shown += os.read(here, 4096)

    try:
        going_on.step(7001, 41.5)
        reads("41.5 at step 7001")
        going_on.step(7002, 77.25)
        reads("77.25 at step 7002")
        going_on.end()
        reads("finished  done")
        assert watch.wait(30) == 0
    finally:
        watch.kill()
        watch.wait()
        os.close(here)
    assert b"finished  running" in shown
    assert b"\x1b[1A\x1b[2K" in shown, "the block is drawn again in its place"


@pytest.mark.nightly
@pytest.mark.skipif(BROWSER is None, reason="Debian's chromium is not installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_without_a_request_or_a_scroll_to_the_side(write, tmp_path, width):
    write("finished", "stopped")
    probe = tmp_path / "probe.html"
    probe.write_text(
        f"<iframe src='report.html' width={width} height=900></iframe><script>onload = () => {{"
        "const page = frames[0].document.documentElement;"
        "document.title = page.scrollWidth + ' ' + frames[0].performance.getEntriesByType('resource').length;"
        "document.body.dataset.found = document.title }</script>"
    )
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files")
    shown = ran(
        [BROWSER, *options, "--virtual-time-budget=5000", "--dump-dom", f"file://{probe}"],
        code=0,
        timeout=120,
    )
    (found,) = re.findall(r'data-found="(\d+) (\d+)"', shown.stdout)
    assert int(found[0]) <= width
    assert int(found[1]) == 0
