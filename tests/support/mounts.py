"""Commands that see other file systems than this machine has."""

import pytest

from support.commands import ran


def apart(line: str) -> list[str]:
    """The beginning of a command that runs after this line of shell, in a mount namespace of its own; skips
    the test where the line fails."""
    within = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{line} && exec "$@"', "sh"]
    tried = ran([*within, "true"])
    if tried.returncode:
        pytest.skip(f"this user may not mount: {tried.stderr.strip()}")
    return within
