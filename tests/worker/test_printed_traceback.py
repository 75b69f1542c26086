"""The exception at the end of a script's output, from output that Python itself printed."""

import subprocess
import sys
import textwrap

import pytest

from clustertrain.worker.code.printed_traceback import last_exception

pytestmark = pytest.mark.slow


@pytest.fixture
def shown(tmp_path):
    """Runs a text as train.py; what is shown of the exception that its output ends with, or None."""

    def run(text, prefix=""):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        command = [sys.executable, str(tmp_path / "train.py")]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        lines = [prefix + line for line in done.stdout.decode().split("\n") if line]
        if prefix:
            lines += ["[rank1]:[W1122 ProcessGroupNCCL.cpp:1] Warning: it was not destroyed"]
        report = last_exception(lines, str(tmp_path), lines_after=3)
        return report.text("rank 1") if report is not None else None

    return run


FAILS = """
def main():
    check(5)

def check(x):
    raise ValueError(f"{x} is wrong:\\n  why\\nand more")

"""


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_a_traceback_names_the_line(shown, prefix):
    text = shown(FAILS + "print('step 1')\nmain()\n", prefix)
    more = "\n    and more" if prefix else ""  # without the prefix it may be any output
    assert text == (
        f"rank 1, train.py:6 in check: ValueError: 5 is wrong:\n      why{more}\n"
        "  called from train.py:3 in main\n"
        "  called from train.py:9"
    )


SPAWNS = """
import torch.multiprocessing as mp

def train(rank):
    if rank == 1:
        raise ValueError("rank 1 is wrong")

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""


def test_an_exception_of_a_spawned_rank_names_its_line(shown):
    assert shown(SPAWNS) == "rank 1, train.py:6 in train: ValueError: rank 1 is wrong"


IGNORED = """
import atexit

class Loader:
    def __del__(self):
        assert False, "can only test a child process"

loader = Loader()
atexit.register(lambda: [][0])
"""


def test_exceptions_that_python_ignores_at_its_end_are_not_its_cause(shown):
    assert shown(IGNORED + "1 / 0\n") == "rank 1, train.py:10: ZeroDivisionError: division by zero"
    assert shown(IGNORED + "raise SystemExit(1)\n") is None


def test_the_summary_of_wandb_is_not_output_of_the_script(shown):
    text = "import atexit\natexit.register(print, *['wandb: loss 0.5'] * 20, sep='\\n')\n1 / 0\n"
    assert shown(text) == "rank 1, train.py:3: ZeroDivisionError: division by zero"


PLAIN = [
    "Traceback (most recent call last):",
    '  File "/code/train.py", line 4, in <module>',
    "    1 / 0",
    "ZeroDivisionError: division by zero",
]
COLORED = [  # as Python 3.13 prints it with FORCE_COLOR
    PLAIN[0],
    '  File \x1b[35m"/code/train.py"\x1b[0m, line \x1b[35m4\x1b[0m, in \x1b[35m<module>\x1b[0m',
    "    \x1b[31m1\x1b[0m\x1b[1;31m/\x1b[0m\x1b[31m0\x1b[0m",
    "\x1b[1;35mZeroDivisionError\x1b[0m: \x1b[35mdivision by zero\x1b[0m",
]
PREFIXED = [f"[rank1]: {line}" for line in PLAIN]


@pytest.mark.parametrize(
    "lines",
    [
        COLORED,
        ["step 1", *PREFIXED],
        ["step 1", f"....{PREFIXED[0]}", *PREFIXED[1:]],
        ["step 1", f"\r99%|##  | 9/10{PREFIXED[0]}", *PREFIXED[1:]],
    ],
    ids=["colors", "torch's prefix", "after dots", "after a progress bar"],
)
def test_a_traceback_may_have_colors_or_torchs_prefix_after_other_output(lines):
    report = last_exception(lines, "/code", lines_after=3)
    assert report.text("rank 1") == "rank 1, train.py:4: ZeroDivisionError: division by zero"


def test_the_last_of_a_chain_is_read_and_groups_are_not(shown):
    raised = FAILS + "try:\n    main()\nexcept ValueError as e:\n    raise OSError('no') from e\n"
    assert shown(raised) == "rank 1, train.py:11: OSError: no"
    group = "ExceptionGroup('many', [error, TypeError('bare'), ExceptionGroup('inner', [KeyError(1)])])"
    assert shown(FAILS + f"try:\n    main()\nexcept ValueError as error:\n    raise {group}\n") is None


def test_the_class_of_an_exception_may_be_defined_in_a_function(shown):
    text = "def main():\n    class NoData(Exception): ...\n    raise NoData('at 3')\n\nmain()\n"
    assert shown(text) == "rank 1, train.py:3 in main: NoData: at 3\n  called from train.py:5"


def test_a_traceback_that_is_not_the_end_is_no_cause(shown):
    logged = "import traceback\ntry:\n    main()\nexcept ValueError:\n    traceback.print_exc(limit=1)\n"
    after = "import sys\nfor n in range(9):\n    print('step', n)\nsys.exit('out of eels')\n"
    assert shown(FAILS + logged + after) is None
    assert shown("print('ValueError: x')\n") is None
