import io
import os
import pty
import subprocess
import sys

import pytest

from clustertrain.observe.screen import Bar, Lines


def record(kind, **fields):
    return {"kind": kind, "time": 0.0, **fields}


def test_plain_lines_show_figures_and_the_time_left():
    out = io.StringIO()
    screen = Lines(out)
    screen.show([record("train", step=10, total_steps=100, loss=0.5, samples_per_s=1234.5)])
    assert out.getvalue() == "step 10/100  loss 0.5  1,234 samples/s\n"
    screen._last_figures = 0.0
    screen.show([{**record("train", step=20, total_steps=100, loss=0.25), "time": 5.0}])
    assert out.getvalue().splitlines()[1] == "step 20/100  loss 0.25  0:40 left"


def test_text_that_a_function_logs_is_no_figure():
    out, bar = io.StringIO(), Bar()
    texts = {"loss": "0.5", "samples_per_s": "12/s", "total_steps": "100"}
    for screen in (Lines(out), bar):
        screen.show([record("train", step=step, **texts) for step in (1, 2)])
    bar.close()
    assert out.getvalue() == "step 1\n"


def test_plain_lines_of_figures_are_printed_from_time_to_time():
    out = io.StringIO()
    Lines(out).show([record("train", step=step, loss=1.0) for step in range(50)])
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize("is_full", [True, False], ids=["a full disk", "a reader that went away"])
def test_an_output_that_takes_no_more_does_not_end_the_run(is_full):
    code = (
        "import sys; from clustertrain.observe.screen import Lines; screen = Lines(sys.stdout)\n"
        "for text in ('one', 'two'): screen.echo(text)\n"
        "print('the table of the result')\n"
        "sys.exit(75)"
    )
    read, gone = os.pipe()
    os.close(read)
    full = os.open("/dev/full", os.O_WRONLY)
    out = full if is_full else gone
    assert subprocess.run([sys.executable, "-c", code], stdout=out, check=False).returncode == 75
    os.close(gone)
    os.close(full)


def test_a_reader_that_is_slow_for_a_moment_loses_nothing():
    read, write = os.pipe()
    os.set_blocking(write, False)  # as ssh and node do with a terminal that they share
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "w") as stream:
        filled = 0
        with pytest.raises(BlockingIOError):
            while True:
                filled += os.write(write, b"-" * 4096)
        screen = Lines(stream)
        screen.echo("one")
        reader.read(filled)
        screen.echo("two")
        assert reader.read(8) == b"one\ntwo\n"


def test_a_terminal_that_is_closed_does_not_end_the_run():
    code = (
        "import sys; from clustertrain.observe.screen import Bar, open_screen; screen = open_screen()\n"
        "assert isinstance(screen, Bar)\n"
        "print('ready', file=sys.__stderr__, flush=True)\n"
        "sys.stdin.readline()\n"
        "for text in ('stopping', 'saved'): screen.echo(text), screen.output([text], ['half'])\n"
        "screen.close()\n"
        "print('the table of the result')\n"
        "sys.exit(75)"
    )
    terminal, there = pty.openpty()
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=there, stderr=pipe, text=True) as run:
        os.close(there)
        assert run.stderr.readline() == "ready\n"
        os.close(terminal)
        printed = run.communicate("\n", timeout=60)[1]
    assert run.returncode == 75, printed


def test_the_bar_takes_every_kind(capsys):
    bar = Bar()
    bar.show(
        [
            record("stage", name="d", phase="download", bytes=5, total_bytes=10),
            record("group_started", world_size=2, restart=0),
            record("train", step=10, total_steps=100, loss=0.5, samples_per_s=12.0),
            record("eval", step=10, loss=0.4, accuracy=0.9),
        ]
    )
    bar.echo("[not markup]")
    bar.echo("train.py:100: not an emoji")
    bar.close()
    out = capsys.readouterr().out
    assert "evaluated at step 10: loss 0.4, accuracy 0.9" in out
    assert "[not markup]" in out
    assert "train.py:100: not an emoji" in out
