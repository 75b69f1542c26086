"""The check of the code as a fork of a real fork server finds what a process of its own finds."""

import os
import textwrap
from functools import partial
from types import SimpleNamespace

import pytest
import yaml

from clustertrain.driver.fork.forked_check import start_check
from clustertrain.supervise.check_process import CheckReport, CheckRequest, run_check
from fork_servers import fork_server
from leftovers import left_after, living_descendants

pytestmark = pytest.mark.slow

LONG_S = 120.0
NOTE = "import os, sys\n" + textwrap.dedent("""
    with open("noted", "a") as file:
        kind = "fork" if "torch" in sys.modules else "new"
        print(kind, os.getpid(), *sys.modules.get("kept", ()), file=file)
    def train(config): pass
""")


def driver_beside(socket):
    """A driver with this fork server."""
    return SimpleNamespace(fork_server=lambda is_over: socket)


@pytest.fixture(scope="module")
def driver():
    with fork_server() as (_, socket):
        yield driver_beside(socket)


@pytest.fixture
def check(driver, tmp_path, monkeypatch):
    """Checks a function that is defined by this text; nothing of the check may be left."""

    def run(text, *, within_s=LONG_S, driver=driver, forked=True, **environment) -> CheckReport:
        (tmp_path / "mine.py").write_text(NOTE + textwrap.dedent(text))
        job = {
            "name": "a",
            "function": "mine:train",
            "code": str(tmp_path),
            "storage": str(tmp_path / "runs"),
        }
        request = CheckRequest(yaml.safe_dump(job), 1, elsewhere=False)
        fork = partial(start_check, driver) if forked else None
        before = set(living_descendants())
        try:
            return run_check(request, {**os.environ, **environment}, within_s, fork)
        finally:
            assert left_after(10, before) == {}

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return run


def noted(tmp_path) -> list[list[str]]:
    return [line.split() for line in (tmp_path / "noted").read_text().splitlines()]


def test_the_code_finds_torch_imported_and_leaves_nothing_to_the_next_check(check, tmp_path):
    check("sys.modules['kept'] = ('changed',); os.environ['OF_CHECK'] = '1'", OF_CHECK="")
    assert check("if os.environ['OF_CHECK']: raise SystemExit('changed')", OF_CHECK="").error == ""
    first, second = noted(tmp_path)
    assert (first[0], second[0]) == ("fork", "fork")
    assert first[1] != second[1]
    assert first[2:] == second[2:] == []


@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), 11)",
        "os.kill(os.getpid(), 9)",
        "os._exit(3)",
        "raise ValueError('no')",
        "raise SystemExit('no')",
        "import threading; threading.Thread(target=threading.Event().wait).start(); 1 / 0",
        "import atexit; atexit.register(os._exit, 7)",
        "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); os._exit(4)",
    ],
)
def test_an_end_is_reported_as_that_of_a_process_of_its_own(check, tmp_path, end):
    text = f"print('last words', flush=True)\n{end}"
    found, expected = check(text), check(text, forked=False)
    assert found == expected
    assert found.ended
    assert [kind for kind, *_ in noted(tmp_path)] == ["fork", "new"]
    assert check("").error == "", "the server lives on"


def test_at_the_deadline_and_at_a_signal_nothing_goes_on(check, tmp_path):
    check("")
    report = check("import time; time.sleep(600)", within_s=5.0)
    assert (report.ended, report.error, report.phase) == (False, "", "import of the code")
    assert [kind for kind, *_ in noted(tmp_path)] == ["fork", "fork"]


def test_what_a_process_reads_only_at_its_start_needs_one_of_its_own(check, tmp_path):
    assert check("", LD_LIBRARY_PATH="/nowhere").error == ""
    assert [kind for kind, *_ in noted(tmp_path)] == ["new"]


@pytest.mark.parametrize("path", ["", "/nowhere"])
def test_without_a_server_a_new_process_checks_the_code(check, tmp_path, path):
    assert check("", driver=driver_beside(path)).error == ""
    assert [kind for kind, *_ in noted(tmp_path)] == ["new"]


def test_a_new_process_takes_over_from_a_fork_whose_guardians_are_killed(check, tmp_path):
    """As those of a driver that is killed meanwhile."""
    kills = """
        import time
        def parent(pid): return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        if "torch" in sys.modules:
            second = os.getppid()
            for pid in (parent(second), second):
                os.kill(pid, 9)
            time.sleep(600)
    """
    assert check(kills).error == ""
    assert [kind for kind, *_ in noted(tmp_path)] == ["fork", "new"]
