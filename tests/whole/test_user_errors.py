"""A mistake has its exit code and no traceback; an exception of the user's code is shown with its line."""

from click.testing import CliRunner

from clustertrain.cli.main import main
from support.whole_run import CODE


def shown_by(*command):
    return CliRunner().invoke(main, command).output


def line_of(text):
    lines = (CODE / "faulty.py").read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


def test_an_exception_on_rank_1_is_shown_once_with_its_line(make_run):
    run = make_run(
        "raises",
        task="faulty:Faulty",
        args={"fault": "raise", "rank": 1, "at_call": 5},
        train={"epochs": 2, "batch_size": 4},
        failures={"retries": 0},
    )
    output = run.start().end(1)
    text = (
        f"rank 1, faulty.py:{line_of('raise ValueError')} in strike: ValueError: the sensor is upside down\n"
        f"  called from faulty.py:{line_of('self.strike(loss)')} in loss\n"
        f"The whole traceback: clustertrain logs {run.attempt.uri} --rank 1"
    )
    assert f"error: {text}\n" in output
    assert output.count("the sensor is upside down") == 1
    for word in ("Traceback", "ray.", "direct cause", "site-packages", "loop.py"):
        assert word not in output
    assert run.result.text == text
    job_file = str(run.job_file)
    for command in ("status", "logs"):
        assert text in shown_by(command, job_file)
        assert shown_by(command, job_file).count("the sensor is upside down") == 1
    log = shown_by("logs", job_file, "--rank", "1")
    assert log.count("Traceback (most recent call last):") == 1
    assert log.count("ValueError: the sensor is upside down\n") == 1
    assert "loop.py" in log
    assert "ValueError" not in shown_by("logs", job_file, "--rank", "0")


TRAIN = {"epochs": 1, "batch_size": 4}


def test_a_mistake_before_the_first_step_ends_the_run_as_check_says_and_is_then_corrected(make_run):
    run = make_run("mistaken", task="faulty:Faulty", args={"fault": "raise", "rank": 1}, train=TRAIN)
    output = run.start("--no-ray").end(2)
    line = line_of("raise ValueError")
    assert f"Faulty.loss() raised ValueError: the sensor is upside down\nAt {CODE}/faulty.py:{line}" in output
    assert "Traceback" not in output and "restarting" not in output
    assert (run.result.state, run.result.cause, run.result.restarts) == ("failed", "job", 0)
    assert "At " not in run.start("--no-ray", "--set", "args.fault=", "--set", "train.seed=3").end(0)
