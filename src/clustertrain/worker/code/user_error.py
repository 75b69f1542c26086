"""An exception of the user's code, as a worker reports it to the driver."""

from __future__ import annotations

from dataclasses import replace
from traceback import walk_tb

from clustertrain.training.user_frames import SourceLine
from clustertrain.worker.code.error_report import MEMBERS, ErrorReport, user_frames
from clustertrain.worker.code.printed_traceback import inner_report

_CAUSES = 3
_MESSAGE_CHARACTERS = 10_000  # of what the driver reads; a message for people has fewer


class UserCodeFailed(Exception):
    """The user's code raised an exception. It carries a report instead of the exception, which the driver may
    be unable to unpickle."""

    def __init__(self, report: ErrorReport) -> None:
        super().__init__(f"{report.name}: {report.message}")
        self.report = report

    def __reduce__(self) -> tuple[type[UserCodeFailed], tuple[ErrorReport]]:
        return UserCodeFailed, (self.report,)


def report_of(error: BaseException, code: str, causes: int = _CAUSES) -> ErrorReport:
    """The report of an exception and of up to `causes` causes. `code`: the folder of the user's code."""
    name, message = type(error).__name__, _message(error)
    classes = tuple(cls.__name__ for cls in type(error).__mro__)
    if (inner := inner_report(message, code)) is not None:
        return replace(inner, classes=classes) if inner.name == name else inner
    places = _places(error)
    if isinstance(error, SyntaxError):
        message = error.msg or ""
        places.append((error.filename or "?", error.lineno or 0, ""))
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return ErrorReport(
        name=name,
        message=message[:_MESSAGE_CHARACTERS],
        classes=classes,
        frames=user_frames(places, code),
        cause=_cause(error, code, causes),
        is_raised_from=error.__cause__ is not None,
        members=tuple(report_of(member, code, causes=0) for member in members[:MEMBERS]),
    )


def _cause(error: BaseException, code: str, causes: int) -> ErrorReport | None:
    """The exception that it was raised from. One that was only handled is left out if no line of the user's
    code raised it: libraries handle many."""
    if causes == 0:
        return None
    if error.__cause__ is not None:
        return report_of(error.__cause__, code, causes - 1)
    if error.__context__ is None or error.__suppress_context__:
        return None
    handled = report_of(error.__context__, code, causes - 1)
    return handled if handled.frames else None


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as failed:  # noqa: BLE001  a __str__ of the user's code
        text = f"(its text is unknown: {type(error).__name__}.__str__ raised {type(failed).__name__})"
    return "\n".join([text, *map(str, getattr(error, "__notes__", ()))])


def _places(error: BaseException) -> list[SourceLine]:
    frames = walk_tb(error.__traceback__)
    return [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames]
