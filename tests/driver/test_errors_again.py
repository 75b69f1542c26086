"""Which errors are certain to occur again, which may be transient, and when two are the same."""

import socket
from dataclasses import replace
from types import SimpleNamespace
from urllib.error import URLError

import pytest

from clustertrain.driver.cause.rank_failure import RankFailures
from clustertrain.driver.cause.signature import signature, signature_of
from clustertrain.worker.code.error_report import ErrorReport, Frame
from clustertrain.worker.code.printed_traceback import base_names
from clustertrain.worker.code.user_error import UserCodeFailed, report_of
from clustertrain.worker.scripts.script import ScriptFailed


class Judge(RankFailures):
    """The failures of a group without processes, of one rank of which no limits are known."""

    def __init__(self, *, at_start=False, is_untried=False):
        workers = {0: SimpleNamespace(metadata=SimpleNamespace(hostname="node1", pid=7))}
        super().__init__(SimpleNamespace(workers=workers, limits={}))
        self._has_just_begun, self._is_untried = lambda: at_start, lambda: is_untried

    def _where_whole(self, rank):
        return "its log"


def is_certain(report, *, at_start=False, is_untried=False):
    judge = Judge(at_start=at_start, is_untried=is_untried)
    if at_start:
        return judge._of_script(0, ScriptFailed("it ended with exit code 1.", 1, "", report)).fatal
    return judge._of_user_code(0, UserCodeFailed(report)).fatal


def is_transient(report):
    return Judge()._of_user_code(0, UserCodeFailed(report)).transient


def is_certain_of_script(code, output):
    lines = "\n".join(f"  | {line}" for line in output.split("\n"))
    text = f"train.py ended with exit code {code} on rank 0.\nIts last lines:\n{lines}"
    return Judge()._of_script(0, ScriptFailed(text, code, output.rpartition("\n")[2])).fatal


class DistBackendError(RuntimeError):
    """As torch's."""


class DistNetworkError(DistBackendError):
    """As torch's."""


def chained(error, cause):
    error.__cause__ = cause
    return error


CERTAIN = [
    ModuleNotFoundError("No module named 'cv2'"),
    SyntaxError("invalid syntax"),
    chained(RuntimeError("install cv2"), ImportError("cv2")),
    RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
    RuntimeError("The NVIDIA driver on your system is too old (found version 11040)."),
    AssertionError("Torch not compiled with CUDA enabled"),
    RuntimeError("No CUDA GPUs are available"),
    ValueError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
    RuntimeError(
        "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If"
    ),
    RuntimeError("Distributed package doesn't have NCCL built in"),
]
TRANSIENT = [
    OSError(5, "Input/output error"),
    ConnectionResetError(104, "Connection reset by peer"),
    TimeoutError("timed out"),
    DistBackendError("NCCL error: unhandled system error"),
    RuntimeError(
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:1"
    ),
    RuntimeError("DataLoader worker (pid 10374) is killed by signal: Killed."),
    chained(RuntimeError("cannot load"), ConnectionError("refused")),
]
NEITHER = [
    ValueError("the sensor is upside down"),
    FileNotFoundError(2, "No such file or directory"),
    PermissionError(13, "Permission denied"),
    OSError("image file is truncated"),
    TypeError("f() takes 1 argument"),
]


@pytest.mark.parametrize("error", CERTAIN + TRANSIENT + NEITHER, ids=repr)
def test_what_is_tried_again(error):
    report = report_of(error, "/code")
    assert is_certain(report) == (error in CERTAIN)
    assert is_transient(report) == (error in TRANSIENT)


# As urllib, requests, huggingface_hub, transformers and datasets raise them.
WITHOUT_A_NETWORK = [
    URLError(socket.gaierror(-3, "Temporary failure in name resolution")),
    OSError(101, "Network is unreachable"),
    chained(
        OSError("We couldn't connect to 'https://huggingface.co' to load the files"),
        FileNotFoundError(
            "An error happened while trying to locate the file on the Hub and we cannot find the requested "
            "files in the local cache. Please check your connection"
        ),
    ),
    ConnectionError("Couldn't reach 'imdb' on the Hub (LocalEntryNotFoundError)"),
]


@pytest.mark.parametrize("error", WITHOUT_A_NETWORK, ids=repr)
def test_a_network_that_was_never_there_does_not_come(error):
    report = report_of(error, "/code")
    assert is_certain(report, at_start=True)
    assert not is_certain(report), "a network that was there comes back"


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        TimeoutError("timed out"),
        DistNetworkError("cannot be retrieved (gai error: -2 - Name or service not known)"),
        OSError(98, "Address already in use"),
    ],
    ids=repr,
)
def test_a_server_or_a_rank_may_come_later(error):
    assert not is_certain(report_of(error, "/code"), at_start=True)


MISTAKES = [
    AttributeError("'Net' object has no attribute 'fc3'"),
    KeyError("labels"),
    TypeError("f() takes 1 argument"),
    UnboundLocalError("local variable 'x' referenced before assignment"),
    NotImplementedError("forward"),
    chained(KeyError("labels"), ValueError("x")),
]
NO_MISTAKES = [
    ValueError("the sensor is upside down"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    chained(KeyError("data"), ConnectionError("refused")),
    chained(TypeError("None"), TimeoutError("timed out")),
]


@pytest.mark.parametrize("error", MISTAKES + NO_MISTAKES, ids=repr)
def test_a_line_of_code_that_never_worked_does_not_work_at_another_start(error):
    report = replace(report_of(error, "/code"), frames=(Frame("train.py", 3, "main"),))
    assert is_certain(report, is_untried=True) == (error in MISTAKES)
    assert not is_certain(report), "after a step it may be a sample that has it raised"
    assert not is_certain(replace(report, frames=()), is_untried=True), "no line of the user's code"


def test_an_error_that_was_only_handled_has_no_effect():
    try:
        try:
            raise ImportError("optional")
        except ImportError:
            raise ValueError("x")  # noqa: B904
    except ValueError as error:
        report = report_of(error, __file__.rpartition("/")[0])
    assert report.cause is None
    assert not is_certain(report)


def test_a_printed_name_is_known_by_pythons_own_classes():
    assert is_certain(ErrorReport("ModuleNotFoundError", "x", base_names("ModuleNotFoundError")))
    assert is_transient(ErrorReport("ReadTimeout", "x", base_names("ReadTimeout")))
    assert base_names("print") == ("print",)


CLICK = "Usage: train.py [OPTIONS]"


@pytest.mark.parametrize(
    ("code", "output", "certain"),
    [
        (2, "python: can't open file '/code/train.py': [Errno 2] No such file or directory", True),
        (2, "train.py: error: unrecognized arguments: --lrr", True),
        (2, "python -m pkg.train: error: unrecognized arguments: --lrr", True),
        (2, "the error: is elsewhere", False),
        (1, "train.py: error: no", False),
        (1, "/usr/bin/python3: No module named package.trian", True),
        (1, "python: No module named a.__main__; 'a' is a package and cannot be directly executed", True),
        (1, "ModuleNotFoundError: No module named 'a'", True),
        (126, "", True),
        (127, "sh: 1: trian: not found", True),
        (7, "", False),
        (2, f"{CLICK}\nError: No such option '--lrr'.", True),
        (1, f"{CLICK}\nError: No such option '--lrr'.", False),
        (2, "it ended with exit code 2; memory usage: 3 GB\nno", False),
    ],
)
def test_a_script_that_did_not_start_is_not_started_again(code, output, certain):
    assert is_certain_of_script(code, output) == certain


SAME = [
    ("<Net object at 0x7f2b83de8960>", "<Net object at 0x7f2750cf4dc0>"),
    ("rank 0 got no batch", "rank 1 got no batch"),
    ("[Rank 3] local_rank=1", "[Rank 12] local_rank=0"),
    ("worker (pid(s) 12, 13) exited unexpectedly", "worker (pid(s) 4711) exited unexpectedly"),
    ("no '/tmp/tmpab_12xyz/a.bin'", "no '/tmp/tmpq9_77abc/a.bin'"),
    ("no /tmp/tmp.Ab3dEf9h1K/a", "no /tmp/tmp.Zz3dEf9h1K/a"),
    ("file </torch_10374_42_6>", "file </torch_10391_7_0>"),
    ("found cuda:0 and cpu", "found cuda:3 and cpu"),
    ("peer [127.0.0.1]:51234", "peer [10.0.0.7]:4000"),
    ("at 2026-11-22 21:14:32,665", "at 2026-11-23 01:00:00"),
    ("job 0e7ee1a2-08a6-4a4b-9f0e-3f0e7ee1a208", "job 1e7ee1a2-08a6-4a4b-9f0e-3f0e7ee1a208"),
    ("thread 139637976737600", "thread 139637976731111"),
    ("same\nand 1", "same\nand 2"),
]
DIFFERENT = [
    ("sample 17 is damaged", "sample 18 is damaged"),
    ("shapes (4, 3) and (4, 5)", "shapes (4, 3) and (4, 6)"),
    ("CUDA error 0x1f", "CUDA error 0x2f"),
    ("no /tmp/data/a.bin", "no /tmp/data/b.bin"),
    ("no '/tmp/tmpab_12xyz/a.bin'", "no '/tmp/tmpab_12xyz/b.bin'"),
    ("step 7", "step 8"),
    ("ValueError: no", "KeyError: no"),
]


@pytest.mark.parametrize(("one", "other"), SAME + DIFFERENT)
def test_a_signature_leaves_out_only_what_differs_between_ranks_and_starts(one, other):
    assert (signature(one) == signature(other)) == ((one, other) in SAME)


def test_the_line_is_part_of_the_signature_and_the_rank_is_not():
    report = ErrorReport("ValueError", "no\nmore", frames=(Frame("task.py", 7, "loss"),))
    assert signature_of(report) == "ValueError at task.py:7 in loss: no"
    other = ErrorReport("ValueError", "no", frames=(Frame("task.py", 8, "loss"),))
    assert signature_of(other) != signature_of(report)
