"""Cause one failure: `python tests/observe/explain/causes NAME`. Without a name, write all fixtures again."""

import importlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
LIMIT_S = 120


def module_of(name: str) -> str:
    """The file that has the function of this name."""
    return next(p.stem for p in sorted(HERE.glob("[a-z]*.py")) if f"\ndef {name}()" in p.read_text())


def names() -> list[str]:
    """The failures that this machine can cause."""
    return [
        n
        for p in sorted(HERE.glob("[a-z]*.py"))
        for n in re.findall(r"^def ([a-z]\w*)\(\)", p.read_text(), re.M)
    ]


def output_of(name: str) -> str:
    """What a process prints that fails in this way, without the paths of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, str(HERE), name],
            cwd=folder,
            env={**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
        text = done.stdout.decode(errors="replace").replace(folder, "/work")
    text = re.sub(r"/\S+/(?=site-packages/|lib/python3|causes/)", ".../", text)
    return re.sub(r"/\S*/tests/observe/explain/causes", ".../causes", text)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.path.insert(0, str(HERE))
        module = importlib.import_module(module_of(sys.argv[1]))
        getattr(module, sys.argv[1])()
    else:
        FIXTURES.mkdir(exist_ok=True)
        for each in names():
            (FIXTURES / f"{each}.log").write_text(output_of(each))
            print(each, flush=True)
