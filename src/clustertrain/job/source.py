"""The user's code as text: the file, its syntax and the name in it, without an import.

It needs no torch and takes milliseconds, so it comes before every other check of the code. What the text does
not show (`from x import *`, an installed package) is left to the import in worker/check.py, and so are the
arguments, except where nothing can be imported (`check_arg_names`).
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import decode_source, find_spec
from itertools import islice
from pathlib import Path
from symtable import symtable

from clustertrain.errors import JobError
from clustertrain.job.model import Job
from clustertrain.regular_file import read_file
from clustertrain.units import shortened

imported_now: list[str] = []
"""The names that this process imports from the user's code now: the start of a run refuses there."""

_TRAINER = re.compile(r"ray\.(?:train|tune)\.(?:\w+\.)*(?:\w*Trainer|Tuner)")
_CHECKPOINT = re.compile(r"ray\.(?:train|tune|air)\.(?:\w+\.)*(?:report|get_checkpoint)")
_MOST_FOLDERS = 2000  # in the search for a similar name: `code` may contain a whole environment


def check_source(job: Job) -> None:
    """Check the code of a job as far as its text shows it.

    Raises:
        JobError: a file is missing or is not Python, or does not define the name. Names file and line, and
            the nearest name.
    """
    folders = [Path(folder) for folder in job.code]
    for folder in folders:
        if not folder.is_dir():
            remedy = "Give the folder of your code, relative to the job file."
            raise JobError(f"code: {folder} is not a folder.\n{remedy}")
    if job.script:
        _check_syntax(script_file(folders, job.script), f"script: {job.script}", job.interpreter)
    elif job.module:
        check_module(folders, job)
    else:
        kind, spec = ("task", job.task or "") if job.task else ("function", job.function or "")
        _check_name(folders, job, f"{kind}: {spec}", *spec.split(":"))
    refuse_ray_train(folders, job)
    for keys, part in job.train.parts if job.train is not None else ():
        module, _, name = part.class_.rpartition(".")
        try:
            _check_name(folders, job, f"{'.'.join(keys)}: {part.class_}", module, name)
        except JobError as error:
            raise JobError(str(error), (*keys, "class")) from None


def script_file(folders: Sequence[Path], script: str) -> Path:
    """The file of a script, which is below the first folder of the code.

    Raises:
        JobError: it does not exist; names the nearest one, or the folder that has it.
    """
    code, *others = folders
    if (code / script).is_file():
        return code / script
    rule = f"The path is relative to {'the first folder of ' if others else ''}`code`."
    if (elsewhere := next((other for other in others if (other / script).is_file()), None)) is not None:
        rule += f" It is in {elsewhere}: name that first."
    else:
        rule = _near(script, [each.name for each in code.glob("*.py")]) + rule
    raise JobError(f"script: {script} does not exist in {code}.\n{rule}")


def check_module(folders: Sequence[Path], job: Job) -> None:
    """Check that `python -m` can run the module of a job, as far as its text shows it.

    Raises:
        JobError: it is neither below `code` nor installed; it is a package; it is not Python.
    """
    module, what = job.module or "", f"module: {job.module}"
    path, main = _module_file(folders, module), _module_file(folders, f"{module}.__main__")
    file = path if path is not None and path.name != "__init__.py" else main
    if file is not None:
        _check_syntax(file, what, job.interpreter)
    elif path is not None:
        modules = sorted(f"{module}.{each.stem}" for each in path.parent.glob("*.py") if each != path)
        has = f"Name one of its modules: {', '.join(modules[:8])}." if modules else "Name a module."
        raise JobError(f"{what} is a package without __main__.py, which `python -m` cannot run.\n{has}")
    else:
        _check_installed(folders, job, what, module)


def refuse_ray_train(folders: Sequence[Path], job: Job) -> None:
    """Refuse code that leaves its checkpoints, or the start of its ranks, to Ray Train, as far as the text of
    the entry file shows it.

    Raises:
        JobError: it does; names the line, and what to write instead.
    """
    module, _, function = (job.function or job.module or "").partition(":")
    path = folders[0] / job.script if job.script else module and _module_file(folders, module)
    try:
        tree = ast.parse(read_file(path) if path else "")
    except (SyntaxError, ValueError, OSError):  # of another Python, or reported where it is imported
        return
    names, nodes = _imported_names(tree), [*_reached(tree, function)]
    calls = [(_full_name(node.func, names), node) for node in nodes if isinstance(node, ast.Call)]
    what = f"{job.entry_point}: {job.function or job.script or job.module}"
    own = "session.save(…) and session.restore() of clustertrain.session.current()"
    fits = any(isinstance(node, ast.Attribute) and node.attr == "fit" for node in nodes)
    if call := next((call for name, call in calls if fits and _TRAINER.fullmatch(name)), None):
        loop = _loop_of(call, names, tree, module or (job.script or "").removesuffix(".py").replace("/", "."))
        raise JobError(
            f"{what} starts a {ast.unparse(call.func)}: each worker would start a Ray of its own and train "
            f"the whole job.\nWrite `function: {loop}`, which each worker then runs, with {own} for its "
            f"checkpoints.\nAt {path}:{call.lineno}."
        )
    kept = (call for name, call in calls if _CHECKPOINT.fullmatch(name) and _has_checkpoint(call, name))
    if function and (call := next(kept, None)):
        raise JobError(
            f"{what} leaves its checkpoints to {ast.unparse(call.func)}: they would be kept nowhere, and the "
            f"next start would begin anew.\nWrite {own} in its place.\nAt {path}:{call.lineno}."
        )


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """The names that a file imports under another name than their full one, with that."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names


def _reached(tree: ast.Module, function: str) -> Iterator[ast.AST]:
    """The nodes of a function, or of what runs with the file if it is "", and of what they name in it."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {each.name: each for each in tree.body if isinstance(each, kinds)}
    left: list[ast.AST] = [each for each in tree.body if not function and not isinstance(each, kinds)]
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


def _loop_of(call: ast.Call, names: Mapping[str, str], tree: ast.Module, module: str) -> str:
    """The function that a trainer runs, as a job file names it."""
    keys = ("train_loop_per_worker", "trainable")
    given = [*(each.value for each in call.keywords if each.arg in keys), *call.args]
    loop = given[0].id if given and isinstance(given[0], ast.Name) else ""
    if loop in names:
        return ":".join(names[loop].rsplit(".", 1))
    is_defined = any(isinstance(each, ast.FunctionDef) and each.name == loop for each in tree.body)
    return f"{module}:{loop}" if is_defined else "module:function"


def _check_name(folders: Sequence[Path], job: Job, what: str, module: str, name: str) -> None:
    """Check that a module exists, and defines or imports the name."""
    path = _module_file(folders, module)
    if path is None:
        _check_installed(folders, job, what, module)
        return
    source = _check_syntax(path, what, job.interpreter)
    symbols = symtable(source, str(path), "exec").get_symbols()
    names = [each.get_name() for each in symbols if each.is_assigned() or each.is_imported()]
    if name in names or "__getattr__" in names or _imports_all(source):
        return
    defined = [each.get_name() for each in symbols if each.is_namespace() and each.get_name()[0] != "_"]
    has = f"It has: {', '.join(defined[:8])}." if defined else "It defines no class and no function."
    raise JobError(f"{what} names {name!r}, which {path} does not have.\n{_near(name, defined)}{has}")


def check_arg_names(job: Job) -> None:
    """Check that the task takes each of the `args`, if its class has an `__init__` that shows it.

    Raises:
        JobError: it does not take one of them; names the nearest one, and the line.
    """
    module, _, name = (job.task or "").partition(":")
    path = _module_file([Path(folder) for folder in job.code], module) if module else None
    if path is None:
        return
    inits = [
        function
        for found in ast.parse(_check_syntax(path, f"task: {job.task}", job.interpreter)).body
        if isinstance(found, ast.ClassDef) and found.name == name and not found.decorator_list
        for function in found.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
    ]
    if len(inits) != 1 or inits[0].decorator_list or inits[0].args.kwarg is not None:
        return
    takes = [each.arg for each in (*inits[0].args.args[1:], *inits[0].args.kwonlyargs)]
    if unknown := [each for each in job.args if each not in takes]:
        has = f"It takes: {', '.join(takes)}." if takes else "It takes no arguments."
        raise JobError(
            f"args: {name} does not take '{shortened(unknown[0])}'.\n{_near(unknown[0], takes)}{has}\n"
            f"At {path}:{inits[0].lineno}."
        )


def _imports_all(source: str) -> bool:
    nodes = ast.walk(ast.parse(source))
    return any(isinstance(node, ast.alias) and node.name == "*" for node in nodes)


def _module_file(folders: Sequence[Path], module: str) -> Path | None:
    """The file of a module below the first folder of the code that has it, or None if none has."""
    stems = [folder.joinpath(*module.split(".")) for folder in folders]
    files = (file for stem in stems for file in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")))
    return next((file for file in files if file.is_file()), None)


def _check_syntax(path: Path, what: str, interpreter: str | None) -> str:
    """The text of a file. One for another interpreter may have a syntax that this Python does not know.

    Raises:
        JobError: it is not Python; names line and column.
    """
    try:
        source = decode_source(read_file(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's code, such as an invalid escape sequence
            if interpreter is None:
                compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f"{path}:{error.lineno or 1}:{error.offset or 1}"
        quoted = f": {error.text.strip()}" if error.text and error.text.strip() else "."
        raise JobError(f"{what} is not valid Python: {error.msg}\nAt {place}{quoted}") from None
    except (ValueError, OSError) as error:
        raise JobError(f"{what} cannot be read: {error}\nAt {path}.") from None
    return source


def _near(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"Did you mean '{near[0]}'? " if near else ""


def _check_installed(folders: Sequence[Path], job: Job, what: str, module: str) -> None:
    """A module that is not below `code` may be installed, here or where the job runs."""
    top = module.partition(".")[0]
    is_below = any((folder / top).is_dir() or (folder / f"{top}.py").is_file() for folder in folders)
    has_own_packages = any(section.has_own_packages for section in job.launcher_sections.values())
    if not is_below and (_is_installed(top) or job.image or has_own_packages or job.interpreter):
        return
    modules = {
        ".".join(Path(parent, file).relative_to(folder).with_suffix("").parts): Path(parent, file)
        for folder in folders
        for parent, _, files in islice(os.walk(folder), _MOST_FOLDERS)
        for file in files
        if file.endswith(".py")
    }
    hint = (
        f"{_near(module, list(modules))}A module is named by its path below `code`, with dots, without .py."
    )
    below = min((each for each in modules if each.endswith(f".{module}")), key=len, default=None)
    if below is not None:  # such as src/package/train.py, whose imports begin at src
        folder = modules[below].parents[module.count(".")]
        if not (folder / "__init__.py").exists():
            hint = f"It is in {folder}: set `code` to this folder, or add it to the list."
    have = "has" if len(folders) == 1 else "have"
    where = f"{' and '.join(map(str, folders))} {have} no {module.replace('.', '/')}.py"
    raise JobError(
        f"{what}: there is no module {module}.\n{where}, and no installed package has this name.\n{hint}"
    )


def _is_installed(top: str) -> bool:
    try:
        return find_spec(top) is not None
    except (ImportError, ValueError):
        return False
