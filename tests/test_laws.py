"""The laws of the house (docs/design.md), each held to by a test."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "clustertrain"
SUBMIT_SIDE = [
    "cli.main",
    "job.model",
    "job.file",
    "launchers.local.run",
    "launchers.slurm.submit",
    "launchers.slurm.stop",
    "observe.logs",
    "observe.status",
    "observe.tables",
    "observe.wait",
    "run.begin",
    "supervise.guardian",
    "supervise.process",
    "cli.init",
]


def modules_after(code: str) -> set[str]:
    """The top-level modules that are loaded once `code` has run in a fresh interpreter."""
    code += "\nimport sys; print(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", SUBMIT_SIDE)
def test_the_submit_side_imports_neither_torch_nor_ray(module):
    assert not {"torch", "ray", "numpy"} & modules_after(f"import clustertrain.{module}")


def test_validating_a_job_imports_neither_torch_nor_ray(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("name: a\nfunction: m:f\n")
    loaded = modules_after(
        f"import clustertrain; clustertrain.load_job(__import__('pathlib').Path({str(job)!r}))"
    )
    assert not {"torch", "ray", "numpy"} & loaded


def test_training_imports_neither_ray_nor_pydantic():
    names = [
        f"clustertrain.training.{path.stem}"
        for path in (SRC / "training").glob("*.py")
        if path.stem != "__init__"
    ]
    assert len(names) >= 7
    assert not {"ray", "pydantic", "click", "yaml"} & modules_after(
        "\n".join(f"import {name}" for name in names)
    )


def test_help_answers_at_once():
    """0.3 s is the law; the least of ten, since whatever else the machine does only adds to it."""
    seconds = []
    for _ in range(10):
        started = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "clustertrain.cli", "--help"], check=True, stdout=subprocess.DEVNULL
        )
        seconds.append(time.monotonic() - started)
    assert min(seconds) < 0.3


def test_help_imports_only_what_it_shows():
    loaded = modules_after("import clustertrain.cli")
    assert not {"pydantic", "yaml", "rich"} & loaded


def test_errors_is_a_leaf():
    tree = ast.parse((SRC / "errors.py").read_text())
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [line for line in imports if "clustertrain" in line]


def test_there_is_one_door_to_commands():
    """The others supervise processes of a run for as long as they live."""
    tree = {path: ast.parse(path.read_text()) for path in SRC.rglob("*.py")}
    through = {
        str(path.relative_to(SRC))
        for path, parsed in tree.items()
        for node in ast.walk(parsed)
        if isinstance(node, ast.Import | ast.ImportFrom) and "subprocess" in ast.unparse(node)
    }
    assert through == {
        "launchers/shell.py",
        "supervise/guardian.py",
        "supervise/process.py",
        "worker/script.py",
    }


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda path: str(path.relative_to(SRC)))
def test_a_file_has_one_idea(path):
    assert len(path.read_text().splitlines()) <= 450


def test_nothing_stops_a_ray_that_is_not_ours():
    for path in SRC.rglob("*.py"):
        assert "ray stop" not in path.read_text(), path


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda path: str(path.relative_to(SRC)))
def test_weights_are_never_unpickled(path):
    for call in [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]:
        if ast.unparse(call.func) == "torch.load":
            arguments = {k.arg: ast.unparse(k.value) for k in call.keywords}
            assert arguments.get("weights_only") == "True", f"{path}:{call.lineno}"


def test_the_console_script_is_installed():
    script = Path(sys.executable).parent / "clustertrain"
    assert os.access(script, os.X_OK)
