"""Programs that replace two of Ray's own in a mount namespace: one is late, the other one fails."""

import shlex
from importlib.util import find_spec
from pathlib import Path

_RAY = Path(find_spec("ray").origin).parent
_RAYLET = _RAY / "core/src/ray/raylet/raylet"
_AGENT = _RAY / "dashboard/agent.py"


def late_raylet(folder: Path, delay_s: float) -> str:
    """A line of shell: from then on the first start of a raylet fails, as on a busy machine, and the others
    take this long. It is longer than Ray waits."""
    program, real = folder / "late", folder / "raylet"
    real.touch()
    program.write_text(
        "#!/bin/sh\n"
        f"if mkdir {shlex.quote(str(folder / 'first'))} 2> /dev/null; then\n"
        "  echo '[2026-01-01 00:00:00,000 C 1 1] (raylet) main.cc:1: Timed out waiting for file x' >&2\n"
        "  exit 1\n"
        "fi\n"
        f"sleep {delay_s:g}\n"
        f'exec {shlex.quote(str(real))} "$@"\n'
    )
    program.chmod(0o755)
    return f"{_mount(_RAYLET, real)} && {_mount(program, _RAYLET)}"


def broken_agent(folder: Path) -> str:
    """A line of shell: from then on an agent of Ray does not import."""
    program = folder / "broken.py"
    program.write_text("import a_package_that_ray_needs\n")
    return _mount(program, _AGENT)


def _mount(source: Path, target: Path) -> str:
    return shlex.join(["mount", "--bind", str(source), str(target)])
