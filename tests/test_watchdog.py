import subprocess
import sys
import time

from clustertrain.watchdog import EXIT_CODE, Watchdog

STUCK = """
import time
from pathlib import Path
from clustertrain.watchdog import Watchdog

def where_it_hangs():
    time.sleep(600)

with Watchdog({"step": 0.2}, lambda text: Path("expired").write_text(text)) as watchdog:
    watchdog.beat("step")
    where_it_hangs()
"""


def test_a_phase_without_progress_ends_the_process_and_shows_where(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STUCK], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == EXIT_CODE
    assert "no progress in phase 'step' for 0.2 s (failures.watchdog.step)" in done.stderr
    assert "where_it_hangs" in done.stderr
    assert (tmp_path / "expired").read_text().startswith("no progress in phase 'step'")


def test_beats_and_phases_without_a_limit_keep_it_quiet():
    expired = []
    with Watchdog({"step": 1.0}, expired.append) as watchdog:
        for _ in range(6):
            watchdog.beat("step")
            time.sleep(0.25)  # the time that passes is what is tested
        watchdog.beat("idle")
        time.sleep(1.5)
    assert expired == []
