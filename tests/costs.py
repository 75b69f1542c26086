"""Where the time of the tests goes: `python -m pytest --costs` ends with a table of folders and dear tests.

CPU seconds are those of the test process and of all its descendants, dead or alive. What a cluster does
in the background counts for the test that runs then: the sum is right, a single number may be off.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from clustertrain.supervise.guardian import descendants

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_DEAR = 40
_WORTH_ASKING_S = 0.1  # a shorter test is counted with the next one: looking takes some milliseconds


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", action="store_true", help="show wall and CPU seconds by folder and by test")


class Costs:
    """One in each process. Reports carry the numbers from the processes of xdist to the one that prints."""

    def __init__(self) -> None:
        self._seen_s = _cpu_s_of_tree()
        self._wall_s: dict[str, float] = defaultdict(float)
        self._cpu_s: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo) -> Iterator:
        report = yield
        if call.when == "teardown" or call.duration > _WORTH_ASKING_S:
            now_s = _cpu_s_of_tree() if call.duration > _WORTH_ASKING_S else self._seen_s
            report.user_properties.append(("cpu_s", round(now_s - self._seen_s, 2)))
            self._seen_s = now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._wall_s[report.nodeid] += report.duration
        self._cpu_s[report.nodeid] += sum(value for name, value in report.user_properties if name == "cpu_s")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._wall_s:
            return
        terminalreporter.section("costs")
        folders: dict[str, list[str]] = defaultdict(list)
        for test in self._wall_s:
            folders[str(Path(test.partition("::")[0]).parent)].append(test)
        rows = [(name, self._row(tests)) for name, tests in [*folders.items(), ("all", [*self._wall_s])]]
        dear = sorted(self._wall_s, key=self._cpu_s.__getitem__, reverse=True)[:_DEAR]
        rows += [(test, self._row([test])) for test in dear if self._cpu_s[test] >= 1]
        terminalreporter.line("  wall s    CPU s   tests")
        for name, (wall_s, cpu_s, number) in rows:
            terminalreporter.line(f"{wall_s:8.0f} {cpu_s:8.0f} {number:7}  {name}")

    def _row(self, tests: list[str]) -> tuple[float, float, int]:
        wall_s, cpu_s = (sum(of[test] for test in tests) for of in (self._wall_s, self._cpu_s))
        return wall_s, cpu_s, len(tests)


def _cpu_s_of_tree() -> float:
    """The CPU seconds of this process and its descendants. Those of an ended process count for the process
    that reaped it."""
    ticks = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        with suppress(OSError):  # it ended
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_PER_S
