"""The blocks of docs/guides/sweeps-and-python.md in one program; this machine takes the place of SLURM."""

import re
import shutil
from pathlib import Path

import pytest

from clustertrain.errors import EXIT_DONE
from clustertrain.launchers.launcher import Launcher
from clustertrain.launchers.local.run import run_local
from clustertrain.observe.screen import Screen

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "sweeps-and-python.md").read_text()
GRID = "[0.001, 0.003, 0.01], [16, 32, 64]"


def trained_here(launcher, job, options, echo):
    _, result = run_local(job, options, Screen(echo), owns_process=False)
    assert result.exit_code == EXIT_DONE, result.text


@pytest.mark.timeout(900)
@pytest.mark.parametrize("grid", ["[0.003], [64]", pytest.param(GRID, marks=pytest.mark.nightly)])
def test_every_block_runs_as_it_is_shown(grid, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("clustertrain.api.POLL_S", 0.1)
    monkeypatch.setattr(Launcher, "submit", trained_here)
    ignored = shutil.ignore_patterns("runs", "__pycache__")
    shutil.copytree(ROOT / "examples" / "digits", "examples/digits", ignore=ignored)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    assert GRID in PAGE
    names, printed = {}, []
    for block in blocks:
        exec(block.replace(GRID, grid), names)
        printed.append(capsys.readouterr().out)
    assert "done BestCheckpoint(" in printed[0]
    assert " at step 45: loss " in printed[1]
    assert len(names["runs"]) == (1 if grid != GRID else 9)
    assert all(run.status().state == "done" for run in names["runs"])
    assert printed[3].strip().isdigit()
    assert "did you mean 'epochs'?" in printed[4]
