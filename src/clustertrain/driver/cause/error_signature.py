"""Whether a failure would occur again: pure functions over the report of a rank.

certain      another start would fail in the same way: there is none
transient    the cause may be the network, the storage or the machine: failures.retries decides
neither      there is another start; the same error at the same step ends the run
"""

from __future__ import annotations

import re

from clustertrain.worker.code.error_report import ErrorReport

_CERTAIN_CLASSES = {"ImportError", "SyntaxError"}
# Of code that has not finished a step yet. Later it may be a sample, or a file, that has them raised.
_MISTAKES = {"AttributeError", "LookupError", "NameError", "NotImplementedError", "TypeError"}
# No GPU that torch can use. The texts are torch's; a driver that is lost later has others.
_CERTAIN_MESSAGE = re.compile(
    r"Found no NVIDIA driver on your system|The NVIDIA driver on your system is too old|"
    r"Torch not compiled with CUDA enabled|No CUDA GPUs are available|"
    r"no GPUs found|torch\.cuda\.is_available\(\) is False|doesn't have NCCL built in"
)
# A node without a network. The texts are the C library's, huggingface_hub's after five tries, and datasets'.
_NO_NETWORK = re.compile(
    r"Name or service not known|Temporary failure in name resolution|No address associated with hostname|"
    r"Network is unreachable|on the Hub,? and we cannot find the|Couldn't reach .* on the Hub \(LocalEntry"
)
# python found no script, and argparse, click or fire refused the arguments: all end with code 2.
_CERTAIN_OUTPUT = re.compile(r"^\S[^:]*: (?:can't open file|error:) ")
_USAGE = re.compile(r"^\W*usage: ", re.IGNORECASE | re.MULTILINE)
_NO_MODULE = re.compile(r"^\S+: (?:No module named [\w.]|Error while finding module specification for )")
_COMMAND_CANNOT_RUN = (126, 127)

# They are OSErrors that only a change of the files ends.
_OF_FILES = {
    "FileNotFoundError",
    "FileExistsError",
    "IsADirectoryError",
    "NotADirectoryError",
    "PermissionError",
}
_TRANSIENT_CLASSES = re.compile(
    r"Dist(?:Backend|Network|Store)Error|URLError|HTTPClientError|\w*Timeout|"
    r"\w*(?:Connect|Timeout|Transport|Network)\w*Error"
)
_TRANSIENT_MESSAGE = re.compile(
    r"gloo/transport/|closed by peer|is killed by signal: Killed|"
    r"HTTP Error (?:429|5\d\d)|\b(?:429 Client|5\d\d Server) Error"
)


def is_certain(report: ErrorReport, *, at_start: bool = False, is_untried: bool = False) -> bool:
    """Whether the exception shows that the code cannot run.

    Args:
        at_start: it ended a script that has just begun for the first time, so that a missing network has
            never been there.
        is_untried: the run has not finished a step yet.
    """
    return _kind(report, at_start) == "certain" or (is_untried and _is_mistake(report))


def _is_mistake(report: ErrorReport) -> bool:
    """Whether a line of the user's code is wrong, and not what the network, or another process, gave it."""
    is_of_others = any(_kind(each) == "transient" for each in report.all())
    return bool(report.frames and _MISTAKES.intersection(report.classes)) and not is_of_others


def is_transient(report: ErrorReport) -> bool:
    """Whether the exception comes from the network, the storage or another process."""
    return _kind(report) == "transient"


def _kind(report: ErrorReport, at_start: bool = False) -> str | None:
    """The kind of the exception or, if it has none, of the exception that it was raised from."""
    if _CERTAIN_CLASSES.intersection(report.classes) or _CERTAIN_MESSAGE.search(report.message):
        return "certain"
    if at_start and _NO_NETWORK.search(report.message) and not report.name.startswith("Dist"):
        return "certain"
    if _is_of_system(report) or _TRANSIENT_MESSAGE.search(report.message):
        return "transient"
    return _kind(report.cause, at_start) if report.cause is not None else None


def _is_of_system(report: ErrorReport) -> bool:
    """Whether it is a lost connection, or has an error number of the kernel that is not of a missing file.
    Libraries raise an OSError without a number for a damaged image."""
    if any(map(_TRANSIENT_CLASSES.fullmatch, report.classes)):
        return True
    is_of_files = _OF_FILES.intersection(report.classes)
    return "OSError" in report.classes and "[Errno" in report.message and not is_of_files


def is_certain_of_script(exit_code: int, last_line: str, output: str = "") -> bool:
    """Whether the exit code of a script and the end of its output show that it did not start."""
    if exit_code == 1:  # of `python -m`
        return _NO_MODULE.search(last_line) is not None
    if exit_code == 2:
        return bool(_CERTAIN_OUTPUT.search(last_line) or _USAGE.search(output))
    return exit_code in _COMMAND_CANNOT_RUN


# ------------------------------------------------------------------------------------------- signatures

_CHARACTERS = 300
# The parts of a message that differ between starts or ranks although the error is the same.
_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]{7,}"), "0x…"),  # an address in memory; an error code has fewer digits
    (re.compile(r"\[?\b\d{1,3}(?:\.\d{1,3}){3}\]?:\d+"), "…:…"),  # a peer's address and port
    (
        re.compile(
            r"(?i)\b((?:local_|global_|world_)?rank[\s=:#]{0,2}|pid(?:\(s\))?[\s=:#]{0,2})\d+(?:, \d+)*"
        ),
        r"\1…",
    ),
    (re.compile(r"\b(cuda|GPU|device)([ :=]{1,2})\d+"), r"\1\2…"),  # of the rank
    (re.compile(r"\b\d{4}-\d\d-\d\d[T _]\d\d[:-]\d\d[:-]\d\d(?:[.,]\d+)?"), "…"),  # a date and time
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "…"),  # a UUID
    # Names that tempfile, mktemp, multiprocessing and torch generate.
    (re.compile(r"(?<=/)(tmp|pymp-)[a-z0-9_]{8}(?![\w])"), r"\1…"),
    (re.compile(r"(?<=/)(tmp\.)[A-Za-z0-9]{6,12}(?!\w)"), r"\1…"),
    (re.compile(r"(?<=/)(torch_)\d+_\d+(?:_\d+)?"), r"\1…"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{16,}\b|\b\d{12,}\b"), "…"),  # an id of Ray, of a thread
)


def signature_of(report: ErrorReport) -> str:
    """The signature of an exception: its class, the line of the user's code, and its message."""
    at = f" at {report.frames[0]}" if report.frames else ""
    return signature(f"{report.name}{at}: {report.message.strip()}")


def signature(text: str) -> str:
    """Equal for the same error on any rank and in any start: the first line, without the parts that vary.
    Other numbers stay: a shape, a size or an index is part of the error."""
    line = text.partition("\n")[0]
    for pattern, replacement in _VARYING:
        line = pattern.sub(replacement, line)
    return line[:_CHARACTERS]
