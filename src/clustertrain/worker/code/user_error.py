"""An exception of the user's code, as a worker reports it to the driver."""

from __future__ import annotations

from traceback import walk_tb

from clustertrain.worker.code.error_report import ErrorReport, user_frames
from clustertrain.worker.code.printed_traceback import inner_report

_CAUSES = 3
_MESSAGE_CHARACTERS = 10_000  # of what the driver reads; a message for people has fewer


class UserCodeFailed(Exception):
    """The user's code raised an exception.

    It carries a report instead of the exception, which the driver may be unable to unpickle.

    Args:
        refusal: what to say if it is a mistake of the code: its line and the remedy.
    """

    def __init__(self, report: ErrorReport, refusal: str = "") -> None:
        super().__init__(f"{report.name}: {report.message}")
        self.report, self.refusal = report, refusal

    def __reduce__(self) -> tuple[type[UserCodeFailed], tuple[ErrorReport, str]]:
        return UserCodeFailed, (self.report, self.refusal)


def report_of(error: BaseException, code: str, causes: int = _CAUSES) -> ErrorReport:
    """Return the report of an exception and of up to `causes` causes.

    `code`: the folder of the user's code.
    """
    message = "\n".join([str(error), *map(str, getattr(error, "__notes__", ()))])
    if (inner := inner_report(message, code)) is not None:
        return inner
    frames = walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames]
    if isinstance(error, SyntaxError):
        message = error.msg or ""
        places.append((error.filename or "?", error.lineno or 0, ""))
    return ErrorReport(
        name=type(error).__name__,
        message=message[:_MESSAGE_CHARACTERS],
        classes=tuple(cls.__name__ for cls in type(error).__mro__),
        frames=user_frames(places, code),
        cause=report_of(error.__cause__, code, causes - 1)
        if causes and error.__cause__ is not None
        else None,
    )
