"""What is shown of an exception of the user's code: its line, its causes, no frame of torch or Ray."""

import importlib
import pickle
import sys
import textwrap

import pytest
from torch.utils.data import DataLoader

from clustertrain.worker.code.error_report import ErrorReport, first_lines, printable, user_frames
from clustertrain.worker.code.user_error import UserCodeFailed, report_of


@pytest.fixture
def raised(tmp_path, monkeypatch):
    """Imports the text as pkg/mine.py of the code's folder, calls its f, and reports what that raised."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(text, *args):
        (tmp_path / "pkg").mkdir(exist_ok=True)
        (tmp_path / "pkg" / "mine.py").write_text(textwrap.dedent(text))
        for name in ("pkg", "pkg.mine"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        try:
            importlib.import_module("pkg.mine").f(*args)
        except BaseException as error:  # noqa: BLE001
            return report_of(error.with_traceback(error.__traceback__.tb_next), str(tmp_path))
        raise AssertionError("it raised nothing")

    yield run
    for name in ("pkg", "pkg.mine"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_an_exception_of_a_loader_process_names_the_line_of_the_data_set(raised):
    report = raised(
        """
        def f(DataLoader):
            list(DataLoader(Samples(), num_workers=1))

        class Samples:
            def __len__(self):
                return 3

            def __getitem__(self, i):
                return read(i)

        def read(i):
            raise KeyError("label")
        """,
        DataLoader,
    )
    assert report.text("rank 0") == (
        "rank 0, pkg/mine.py:13 in read: KeyError: 'label'\n  called from pkg/mine.py:10 in __getitem__"
    )
    assert "LookupError" in report.classes


def test_causes_are_named_and_three_at_most(raised):
    report = raised(
        """
        def f(n=6):
            try:
                g(n)
            except ValueError as error:
                raise RuntimeError("outer") from error

        def g(n):
            try:
                {}["x"]
            except KeyError:
                h(n)

        def h(n):
            if n == 0:
                raise ValueError("inner")
            try:
                h(n - 1)
            except ValueError as error:
                raise ValueError(f"at {n}") from error
        """
    )
    lines = report.text("rank 0").splitlines()
    assert lines[0] == "rank 0, pkg/mine.py:6 in f: RuntimeError: outer"
    assert lines[1] == "  raised from pkg/mine.py:20 in h: ValueError: at 6"
    assert len(lines) == 4


def test_deep_recursion_is_short(raised):
    report = raised("def f(n=300):\n    return n and g(n)\n\ndef g(n):\n    return f(n - 1) or 1 / 0\n")
    lines = report.text("rank 0").splitlines()
    assert len(lines) == 6
    assert lines[-1] == "  called from 595 more lines of your code"


def test_a_message_is_bounded_and_printable():
    report = ErrorReport(
        "ValueError", "\x1b[31mred\x1b[0m\r\n\n" + "\ud800\x07\u202e" + "x" * 9999 + "\nmore"
    )
    first, second = report.text("rank 0").split("\n")
    assert first == "rank 0: ValueError: red"
    assert second.startswith("    \\ud800\\x07\\u202exxx")
    assert second.endswith("x …")
    assert len(second) < 700
    assert len(ErrorReport("E", "\n".join(map(str, range(99)))).text("rank 0").splitlines()) == 5
    assert ErrorReport("AssertionError", "").text("rank 0") == "rank 0: AssertionError"
    assert first_lines("a\nb\n", 2, 9) == "a\nb"
    assert printable("\tä\n") == "    ä\n"


class Unreadable(Exception):
    """Raises when it is unpickled."""

    def __init__(self, one, two):
        super().__init__(one)


def test_an_exception_that_cannot_be_unpickled_is_reported():
    error = Unreadable(1, 2)
    error.add_note("a note")
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(error))
    failed = pickle.loads(pickle.dumps(UserCodeFailed(report_of(error, "/code"))))
    assert failed.report.text("rank 0") == "rank 0: Unreadable: 1\n    a note"


def test_installed_packages_are_the_users_code_if_there_is_no_other():
    places = [
        ("/venv/lib/python3.11/site-packages/ray/train/x.py", 1, "run"),
        ("/venv/lib/python3.11/site-packages/mypkg/task.py", 2, "loss"),
        ("/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", 3, "_call_impl"),
        ("<frozen importlib._bootstrap>", 4, "_find"),
        (importlib.__file__, 5, "import_module"),
    ]
    assert list(map(str, user_frames(places, "/code"))) == ["mypkg/task.py:2 in loss"]
    places.insert(1, ("/code/.venv/lib/python3.11/site-packages/mypkg/a.py", 6, "a"))
    places.append(("task.py", 7, "<module>"))
    assert list(map(str, user_frames(places, "/code"))) == ["task.py:7"]
    assert list(map(str, user_frames([("/elsewhere/a.py", 8, "f")], "/code"))) == ["/elsewhere/a.py:8 in f"]


def test_code_that_is_installed_is_the_users_as_well():
    installed = "/venv/lib/python3.11/site-packages"
    places = [(f"{installed}/{name}.py", 1, "f") for name in ("mypkg/task", "numpy/core", "torch/nn")]
    assert list(map(str, user_frames(places, f"{installed}/mypkg"))) == ["task.py:1 in f"]
    assert list(map(str, user_frames(places, "/code"))) == ["numpy/core.py:1 in f", "mypkg/task.py:1 in f"]


def test_paths_are_relative_to_code_through_links(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for folder, code in (("real", "link"), ("link", "real")):
        frames = user_frames([(str(tmp_path / folder / "task.py"), 1, "f")], str(tmp_path / code))
        assert str(frames[0]) == "task.py:1 in f"
