"""docs/performance.md and its picture, from a report."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench import main
from comparison.page import number

REPORT = Path(__file__).with_name("report.json")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The text of the page and of the picture."""
    (tmp_path / "pictures").mkdir()
    page = tmp_path / "performance.md"
    monkeypatch.setattr("sys.argv", ["bench.py", "--page", str(page), "--json", str(REPORT)])
    main()
    return page.read_text(), (tmp_path / "pictures" / "performance.svg").read_text()


def test_the_page_has_the_machine_and_the_versions(written):
    page, _ = written
    for line in ("| measured | 2026-11-25 |", "| processor | a processor |", "| torch | 2.13.0 |"):
        assert line in page
    assert "| command | `python benchmarks/bench.py --rounds 3` |" in page


def test_each_row_has_median_and_ends_and_the_goal_is_in_our_row(written):
    page, _ = written
    assert "| Ray TorchTrainer | 16 | 15.5 | 17 |  |  |" in page
    ours = "| ≤ 0.4 × Ray TorchTrainer | **missed by 25%**: 0.50 × † |"
    assert f"| clustertrain run | 8 † | 7.50 | 9 {ours}" in page
    assert f"| The first step: clustertrain run {ours}" in page


def test_two_goals_of_a_program_are_in_one_row(written):
    page, _ = written
    goals = "≤ 0.05 × torch.save, fsynced; ≤ 0.5 × dcp.async_save"
    assert f"| clustertrain | 60.0 | 60 | 60 | {goals} | " in page.replace(
        "| 60 | 60 | 60 |", "| 60.0 | 60 | 60 |"
    )


def test_what_is_missing_says_why(written):
    page, _ = written
    assert "| Lightning Trainer | not installed |  |  |  |  |" in page
    assert "| Accelerate | 5 ‡ | 5 | 5 |" in page
    assert "‡ Accelerate, one of the values is missing: code 1: OSError: full" in page
    assert "† 1 of 10 values: other processes used more than 0.2 processors" in page


def test_a_goal_without_values_was_not_measured(written):
    page, _ = written
    assert "| Recovery from a SIGKILL: clustertrain run | ≤ 1 s | not measured |" in page
    assert "## Recovery from a SIGKILL" not in page


def test_the_picture_has_a_bar_for_each_median_in_both_modes(written):
    _, picture = written
    root = ElementTree.fromstring(picture)
    bars = {each.get("class"): float(each.get("width")) for each in root.iter(f"{SVG}rect")}
    assert bars["ours"] == pytest.approx(8.0 / 16.0 * (960 - 250 - 120))
    assert [each.get("class") for each in root.iter(f"{SVG}rect")] == ["ground", "peer", "peer", "ours"]
    assert "prefers-color-scheme: dark" in picture


def test_numbers_have_three_digits_unless_they_are_whole():
    assert [number(each) for each in (0.1234, 1.0, 9.876, 12.34, 123.4, 11290.2)] == [
        *("0.12", "1", "9.88", "12.3", "123", "11,290"),
    ]
