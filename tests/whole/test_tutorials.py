"""The commands of docs/get-started and of a guide, as they are shown, each page in an empty folder."""

import os
import re
import sys
from pathlib import Path

import pytest

from support.commands import ran

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs/get-started").glob("*.md")), ROOT / "docs/guides/large-models.md"]
BLOCK = re.compile(r"^```console\n(.*?)^```\n(?:<!-- not run: ([^\n]+) -->\n)?", re.MULTILINE | re.DOTALL)
END = "--- end of command"


def commands_of(page):
    """The commands of the blocks that run, each with the output that the page shows."""
    for block, why_not in BLOCK.findall(page.read_text()):
        if why_not:
            continue
        for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            first, *others = text.splitlines()
            typed = [first, *(line[2:] for line in others if line.startswith("> ") or line == ">")]
            yield "\n".join(typed), [line for line in others if not line.startswith(">")]


@pytest.mark.run
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        "first-run",
        # These differ in what they train, which the tests of examples/ and of training/ have in CI.
        pytest.param("your-model", marks=pytest.mark.nightly),
        pytest.param("your-script", marks=pytest.mark.nightly),
        pytest.param("large-models", marks=pytest.mark.nightly),
    ],
)
def test_the_commands_of_a_tutorial_work_as_they_are_shown(name, tmp_path):
    commands = list(commands_of(next(page for page in PAGES if page.stem == name)))
    assert len(commands) >= 5
    script = "set -euo pipefail\n" + "".join(f"{typed}\necho '{END}'\n" for typed, _ in commands)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = ran(
        ["bash", "-c", script],
        code=0,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PATH": path},
    )
    printed = done.stdout.split(f"{END}\n")
    for (typed, shown), output in zip(commands, printed, strict=False):
        assert not shown or output.splitlines() == shown, typed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_block_that_no_test_runs_says_why(page):
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    is_run = f'"{page.stem}"' in Path(__file__).read_text()
    assert is_run or all(why_not for _, why_not in blocks)
