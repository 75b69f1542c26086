"""The text of the entry point's file, without an import: it exists, is Python, and has the name.

It needs no torch and takes milliseconds, so it comes before every other check of the code. What the text does
not show is left to the import in worker/check.py.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from clustertrain.errors import JobError
from clustertrain.job.model import Job
from clustertrain.node.regular_file import read_file

imported_now: list[str] = []
"""The names that this process imports from the user's code now: the start of a run refuses there."""

_TRAINER = re.compile(r"ray\.(?:train|tune)\.(?:\w+\.)*(?:\w*Trainer|Tuner)")
_CHECKPOINT = re.compile(r"ray\.(?:train|tune|air)\.(?:\w+\.)*(?:report|get_checkpoint)")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def check_source(job: Job, folders: Sequence[Path] | None = None) -> None:
    """Check the file of a job's entry point as far as its text shows it.

    Args:
        folders: where the code is; by default the folders of the job file.

    Raises:
        JobError: the file is missing or is not Python, does not have the name, or leaves its checkpoints or
            the start of its ranks to Ray Train. Names file and line.
    """
    folders = [Path(folder) for folder in job.code] if folders is None else folders
    for folder in folders:
        if not folder.is_dir():
            raise JobError(
                f"code: {folder} is not a folder.\nGive the folder of your code, relative to the job file."
            )
    entry = job.task or job.function or job.script or job.module or ""
    what, (module, _, name) = f"{job.entry_point}: {entry}", entry.partition(":")
    if job.script:
        path: Path | None = script_file(folders, job.script)
    else:
        stem = module.replace(".", "/")
        names = (f"{stem}/__main__.py" if job.module else f"{stem}/__init__.py", f"{stem}.py")
        has_own = any(section.has_own_packages for section in job.launcher_sections.values())
        elsewhere = bool(job.image or job.interpreter or has_own)
        path = _module_file(folders, names, what, module.partition(".")[0], elsewhere=elsewhere)
    if path is None:
        return
    tree = _parsed(path, what, job.interpreter)
    seen = {getattr(node, field, None) for node in ast.walk(tree) for field in ("name", "asname", "id")}
    if name and not seen & {name, "*", "__getattr__"}:  # the last two may bring any name
        has = ", ".join(each.name for each in tree.body if isinstance(each, _DEFINITIONS)) or "nothing"
        raise JobError(f"{what} names {name!r}, which {path} does not have.\nIt defines: {has}.")
    if not job.task:
        _refuse_ray_train(job, tree, path)


def script_file(folders: Sequence[Path], script: str) -> Path:
    """Return the file of a script, which is below the first folder of the code.

    Raises:
        JobError: it does not exist.
    """
    if not (file := folders[0] / script).is_file():
        first = "the first folder of " if len(folders) > 1 else ""
        raise JobError(
            f"script: {script} does not exist in {folders[0]}.\nThe path is relative to {first}`code`."
        )
    return file


def _module_file(
    folders: Sequence[Path], names: Sequence[str], what: str, top: str, *, elsewhere: bool
) -> Path | None:
    """Return the file of a module below the code, or None if it is installed, here or where the job runs.

    Args:
        top: the package of the module.
        elsewhere: the job runs with other packages.

    Raises:
        JobError: there is none.
    """
    files = (folder / name for folder in folders for name in names)
    if (file := next((each for each in files if each.is_file()), None)) is not None:
        return file
    if not (elsewhere or top in sys.modules or find_spec(top)):
        code = " or ".join(map(str, folders))
        raise JobError(
            f"{what}: there is neither {' nor '.join(names)} in {code}, and no installed package {top}.\n"
            "A module is named by its path below `code`, with dots, without .py."
        )
    return None


def _parsed(path: Path, what: str, interpreter: str | None) -> ast.Module:
    """Return the tree of a file.

    It is empty if another interpreter may know a syntax that this Python does not.

    Raises:
        JobError: the file is not Python; names line and column.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's code, such as an invalid escape sequence
            return ast.parse(read_file(path), str(path))
    except SyntaxError as error:
        if interpreter is not None:
            return ast.Module([], [])
        place = f"{path}:{error.lineno or 1}:{error.offset or 1}"
        quoted = (error.text or "").strip()
        raise JobError(f"{what} is not valid Python: {error.msg}\nAt {place}: {quoted}") from None
    except (ValueError, OSError) as error:
        raise JobError(f"{what} cannot be read: {error}\nAt {path}.") from None


def _refuse_ray_train(job: Job, tree: ast.Module, path: Path) -> None:
    """Refuse code that leaves its checkpoints, or the start of its ranks, to Ray Train.

    Code is refused only as far as the text of the entry file shows this.

    Raises:
        JobError: it does; names the line, and what to write instead.
    """
    entry, function = job.function or job.script or job.module or "", (job.function or "").partition(":")[2]
    names, nodes = _imported_names(tree), [*_reached(tree, function)]
    calls = [(_full_name(node.func, names), node) for node in nodes if isinstance(node, ast.Call)]
    what = f"{job.entry_point}: {entry}"
    own = "session.save(…) and session.restore() of clustertrain.session.current()"
    fits = any(isinstance(node, ast.Attribute) and node.attr == "fit" for node in nodes)
    if call := next((call for name, call in calls if fits and _TRAINER.fullmatch(name)), None):
        raise JobError(
            f"{what} starts a {ast.unparse(call.func)}: each worker would start a Ray of its own and train "
            "the whole job.\nWrite `function: package.module:name` with the function that it gets, and each "
            f"worker runs that, with {own} for its checkpoints.\nAt {path}:{call.lineno}."
        )
    kept = (call for name, call in calls if _CHECKPOINT.fullmatch(name) and _has_checkpoint(call, name))
    if function and (call := next(kept, None)):
        raise JobError(
            f"{what} leaves its checkpoints to {ast.unparse(call.func)}: they would be kept nowhere, and the "
            f"next start would begin anew.\nWrite {own} in its place.\nAt {path}:{call.lineno}."
        )


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """Return the full names of what a file imports under another name, by that other name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names


def _reached(tree: ast.Module, function: str) -> Iterator[ast.AST]:
    """Yield the nodes of a function, and of the definitions in its file that it names, directly or not.

    If `function` is "", start with the statements that run with the file.
    """
    defined = {each.name: each for each in tree.body if isinstance(each, _DEFINITIONS)}
    left: list[ast.AST] = [each for each in tree.body if not function and not isinstance(each, _DEFINITIONS)]
    left += [defined.pop(function)] if function in defined else []
    while left:
        for node in ast.walk(left.pop()):
            yield node
            if isinstance(node, ast.Name) and node.id in defined:
                left.append(defined.pop(node.id))


def _full_name(node: ast.expr, names: Mapping[str, str]) -> str:
    match node:
        case ast.Name(id=name):
            return names.get(name, name)
        case ast.Attribute(value=owner, attr=name):
            return f"{_full_name(owner, names)}.{name}"
    return ""


def _has_checkpoint(call: ast.Call, name: str) -> bool:
    given = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "checkpoint")]
    is_none = all(isinstance(each, ast.Constant) and each.value is None for each in given)
    return name.endswith("get_checkpoint") or not is_none
