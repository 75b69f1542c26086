"""benchmarks/bench.py: its arithmetic, its page, and a run of the commands that it measures."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench import main, measured
from comparison.figures import FIGURES, Goal
from comparison.plan import FULL, QUICK, Measurement, plan
from comparison.processes import Failed, environment, last_error
from comparison.quiet import Quiet
from comparison.results import Report, Row, Value
from comparison.trainings import Program, Recovered, Step, read_steps, recovered, samples_per_s

from support.commands import ran

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
EMPTY = Report("2026-11-25", "python benchmarks/bench.py", {}, {})


@pytest.mark.parametrize(
    ("tries", "waits", "load", "found"),
    [
        (3, 0, (0.0, 1.5, 0.1, 0.0), ("c", 0.1)),  # b began at a load of 1.5
        (3, 0, (0.0, 1.5, 1.5, 0.3), ("a", 1.5)),  # all were loaded
        (2, 0, (0.9, 0.5, 0.4), ("b", 0.5)),
        (1, 3, (1.0, 0.9, 0.1, 0.2), ("a", 0.2)),  # it waits for a quiet machine
        (1, 2, (1.0, 0.9, 0.8, 0.2), ("a", 0.8)),  # but not for ever
    ],
)
def test_a_loaded_measurement_is_made_again_and_the_quietest_counts(tries, waits, load, found):
    loads = iter(load)
    assert Quiet(tries, waits, lambda: next(loads)).measure(iter("abc").__next__) == found


def test_a_report_is_read_as_it_was_written(tmp_path):
    report = EMPTY.with_values("job", "a", [Value(1.5, 0.25)]).with_values("save", "b", [], "code 1")
    report.write(tmp_path / "new" / "bench.json")
    assert Report.read(tmp_path / "new" / "bench.json") == report


@pytest.mark.parametrize(
    ("goal", "ours", "text", "verdict"),
    [
        (Goal("ours", 0.5, "peer"), 5.0, "≤ 0.5 × peer", "reached: 0.50 ×"),
        (Goal("ours", 0.5, "peer"), 8.0, "≤ 0.5 × peer", "**missed by 60%**: 0.80 ×"),
        (Goal("ours", 1.15, "peer", at_least=True), 12.0, "≥ 1.15 × peer", "reached: 1.20 ×"),
        (Goal("ours", 1.15, "peer", at_least=True), 10.0, "≥ 1.15 × peer", "**missed by 13%**: 1.00 ×"),
        (Goal("ours", 4.0), 5.0, "≤ 4 s", "**missed by 25%**: 5.00 s"),
        (Goal("ours", 4.0), 50.0, "≤ 4 s", "**missed by a factor of 12.5**: 50.00 s"),
        (Goal("ours", 4.0, "another"), 5.0, "≤ 4 × another", "not measured"),
        (Goal("absent", 4.0), 5.0, "≤ 4 s", "not measured"),
    ],
)
def test_a_goal_says_how_far_it_was_missed(goal, ours, text, verdict):
    report = EMPTY.with_values("job", "ours", [Value(ours, 0.0)]).with_values(
        "job", "peer", [Value(10.0, 0.0)]
    )
    assert goal.text("s") == text
    assert goal.verdict(report, "job", "s") == verdict


def test_the_goals_compare_programs_that_are_measured_also_in_a_quick_round(tmp_path):
    for amounts in (FULL, QUICK):
        rows = {row for each in plan(amounts, tmp_path) for row in each.rows}
        assert {figure for figure, _ in rows} <= {figure.key for figure in FIGURES}
        for figure in FIGURES:
            of_a_cluster = figure.key in ("slurm_start", "kubernetes_start")
            for goal in figure.goals if amounts is FULL or not of_a_cluster else ():
                assert (figure.key, goal.program) in rows
                assert not goal.of or (figure.key, goal.of) in rows


def test_the_speed_is_that_of_both_ranks():
    assert samples_per_s([Step(10.0, 100, 1), Step(10.5, 101, 1), Step(11.0, 102, 1)]) == 2 * 2 * 64


def test_a_recovery_ends_with_the_first_step_that_is_new():
    old = [Step(float(step), step, 7) for step in range(1, 6)]
    again = [Step(20.0 + step, step, 8) for step in (4, 5)]
    assert recovered(old, 5.5) is None
    assert recovered([*old, *again], 5.5) is None
    assert recovered([*old, *again, Step(26.0, 6, 8), Step(27.0, 7, 8)], 5.5) == Recovered(20.5, 2)
    assert recovered([*old, Step(6.0, 6, 8)], 5.5) == Recovered(0.5, 0)


def test_a_note_in_the_making_is_not_read(tmp_path):
    (tmp_path / "rank-1").write_text("10.250000 1 77 3.500000 250\n10.5000")
    assert read_steps(tmp_path, 1) == [Step(10.25, 1, 77, 3.5, 250)]
    assert read_steps(tmp_path, 0) == []


def test_a_peer_that_is_not_installed_has_a_row_that_says_so(tmp_path):
    missing = Program("Peer", "no_such_peer", lambda *_: []).missing
    each = Measurement("start", (("first_step", "Peer"), ("job", "Peer")), lambda _: [[1.0]], missing)
    report = measured(EMPTY, each, tmp_path, Quiet(1, 0, lambda: 0.0))
    assert [(row.program, row.missing) for row in report.rows] == [("Peer", "not installed")] * 2


def test_a_program_that_fails_ends_its_own_rows_only(tmp_path):
    def fail(_):
        raise Failed("code 1: ValueError: no")

    report = measured(EMPTY, Measurement("start", (("job", "a"),), fail), tmp_path, Quiet(2, 0, lambda: 0.0))
    assert report.rows == (Row("job", "a", (), "code 1: ValueError: no"),)
    assert last_error("starts\nRuntimeError: bad\n====\n") == "RuntimeError: bad"
    assert last_error("killed\n") == "killed"
    assert last_error("") == ""


def test_the_programs_get_no_settings_of_this_shell(tmp_path, monkeypatch):
    for name in ("RAY_ADDRESS", "CLUSTERTRAIN_RAY", "OMP_NUM_THREADS", "RANK", "PYTHONPATH"):
        monkeypatch.setenv(name, "8")
    found = environment(tmp_path)
    assert not {"RAY_ADDRESS", "CLUSTERTRAIN_RAY", "RANK", "PYTHONPATH"} & set(found)
    assert found["OMP_NUM_THREADS"] == "1" and found["HOME"] == str(tmp_path)


ORPHANS = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from comparison.processes import MemoryWatch, running
folder = Path(sys.argv[2])
shell = "setsid sleep 600 & echo $! > orphan; exit 3"
with MemoryWatch(0.01) as memory, running(["sh", "-c", shell], folder) as process:
    process.wait()
    while not memory.peak_bytes:
        time.sleep(0.01)
alive = Path("/proc", (folder / "orphan").read_text().strip()).exists()
print(process.returncode, alive)
"""


@pytest.mark.slow
def test_a_program_leaves_no_orphan_and_its_orphans_count_as_its_memory(tmp_path):
    argv = [sys.executable, "-c", ORPHANS, str(BENCHMARKS), str(tmp_path)]
    done = ran(argv, timeout=60)
    assert done.stdout == "3 False\n", done.stderr


@pytest.mark.slow
def test_the_commands_are_measured_and_shown(tmp_path):
    argv = [sys.executable, str(BENCHMARKS / "bench.py"), "--quick", "--only", "command"]
    options = ["--json", str(tmp_path / "bench.json"), "--folder", str(tmp_path)]
    earlier = Report("2026-01-01", "before", {}, {}).with_values("redone", "torchrun", [Value(7.0, 0.0)])
    earlier.with_values("command", "clustertrain --help", [Value(9e9, 0.0)]).write(tmp_path / "bench.json")
    done = ran([*argv, *options], code=0, cwd=tmp_path)
    assert "| clustertrain --help | " in done.stdout
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    kept, *measured = rows
    assert (kept["figure"], kept["values"][0]["value"]) == ("redone", 7.0)
    assert len(measured) == 6 and all(0 < row["values"][0]["value"] < 9e9 for row in measured)


@pytest.mark.run
@pytest.mark.nightly
def test_every_program_trains_and_a_killed_rank_makes_new_steps(tmp_path):
    argv = [sys.executable, str(BENCHMARKS / "bench.py"), "--quick", "--only", "start", "recovery"]
    options = ["--json", str(tmp_path / "bench.json"), "--folder", str(tmp_path)]
    done = ran([*argv, *options], code=0, cwd=tmp_path)
    report = Report.read(tmp_path / "bench.json")
    assert [row for row in report.rows if row.missing] == [], done.stderr
    planned = [each.rows for each in plan(QUICK, tmp_path) if each.section in ("start", "recovery")]
    assert [(row.figure, row.program) for row in report.rows] == [row for rows in planned for row in rows]


REPORT = Path(__file__).with_name("report.json")
SVG = "{http://www.w3.org/2000/svg}"


OURS = "| ≤ 0.4 × Ray TorchTrainer | **missed by 25%**: 0.50 × † |"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The text of the page and of the picture."""
    (tmp_path / "pictures").mkdir()
    page = tmp_path / "performance.md"
    monkeypatch.setattr("sys.argv", ["bench.py", "--page", str(page), "--json", str(REPORT)])
    main()
    return page.read_text(), (tmp_path / "pictures" / "performance.svg").read_text()


@pytest.mark.parametrize(
    "line",
    [
        "| measured | 2026-11-25 |",
        "| processor | a processor |",
        "| torch | 2.13.0 |",
        "| command | `python benchmarks/bench.py --rounds 3` |",
        "| Ray TorchTrainer | 16 | 15.5 | 17 |  |  |",
        f"| clustertrain run | 8 † | 7.50 | 9 {OURS}",
        f"| The first step: clustertrain run {OURS}",
        "| clustertrain | 60 | 60 | 60 | ≤ 0.05 × torch.save, fsynced; ≤ 0.5 × dcp.async_save | ",
        "| Lightning Trainer | not installed |  |  |  |  |",
        "| Accelerate | 5 ‡ | 5 | 5 |",
        "‡ Accelerate, one of the values is missing: code 1: OSError: full",
        "† 1 of 10 values: other processes used more than 0.2 processors",
        "| Recovery from a SIGKILL: clustertrain run | ≤ 1 s | not measured |",
    ],
)
def test_the_page_shows_each_row_with_its_goal_and_what_is_missing(written, line):
    page, _ = written
    assert line in page
    assert "## Recovery from a SIGKILL" not in page  # a goal without values


def test_the_picture_has_a_bar_for_each_median_in_both_modes(written):
    _, picture = written
    root = ElementTree.fromstring(picture)
    bars = {each.get("class"): float(each.get("width")) for each in root.iter(f"{SVG}rect")}
    assert bars["ours"] == pytest.approx(8.0 / 16.0 * (960 - 250 - 120))
    assert [each.get("class") for each in root.iter(f"{SVG}rect")] == ["ground", "peer", "peer", "ours"]
    assert "prefers-color-scheme: dark" in picture
