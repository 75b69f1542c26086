"""The user's code as text: the module, the class or function, its parameters, without an import.

It needs no torch and takes milliseconds, so it comes before every other check of the code. What the text does
not show (a base class in another module, `from x import *`, an installed package) is left to the import in
worker/check.py.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from clustertrain.errors import JobError
from clustertrain.job.arguments import EMPTY, Parameter, Parameters
from clustertrain.job.model import Job
from clustertrain.regular_file import read_file

_MOST_FILES = 2000  # in the search for a similar name: `code` may contain a whole environment
_OWN_BASES = ("Task", "clustertrain.Task")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_source(job: Job) -> None:
    """Check the code of a job as far as its text shows it.

    Raises:
        JobError: the file is missing or is not Python; it does not define the name; the class does not take
            the args, or the function does not take one argument. Names file and line, and the nearest name.
    """
    folders = [Path(folder) for folder in job.code]
    for folder in folders:
        if not folder.is_dir():
            remedy = "Give the folder of your code, relative to the job file."
            raise JobError(f"code: {folder} is not a folder.\n{remedy}")
    if job.script:
        script = script_file(folders, job.script)
        if job.interpreter is None:  # a newer Python has syntax that this one does not know
            parsed(script, f"script: {job.script}")
        return
    if job.module:
        check_module(folders, job)
        return
    kind, spec = ("task", job.task or "") if job.task else ("function", job.function or "")
    _check_parts(folders, job)
    what, (module_name, _, attribute) = f"{kind}: {spec}", spec.partition(":")
    path = module_file(folders, module_name)
    if path is None:
        _check_installed(folders, job, what, module_name)
        return
    tree = parsed(path, what)
    definition = _definition(tree, attribute, what, path)
    if isinstance(definition, ast.ClassDef) and isinstance(job.args, dict):
        parameters = _parameters_of_class(definition, tree, path)
        if parameters is not None:
            parameters.check(job.args)
    elif isinstance(definition, Function) and job.function and not definition.decorator_list:
        _check_one_argument(definition, what, path)


def _check_parts(folders: Sequence[Path], job: Job) -> None:
    """Check that the loss and the metrics of the job file exist, if they are of the user's own code."""
    for keys, part in job.train.parts if job.train is not None else ():
        what, (module, _, name) = f"{'.'.join(keys)}: {part.class_}", part.class_.rpartition(".")
        try:
            if (path := module_file(folders, module)) is None:
                _check_installed(folders, job, what, module)
            else:
                _definition(parsed(path, what), name, what, path)
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
    path, main = module_file(folders, module), module_file(folders, f"{module}.__main__")
    file = path if path is not None and path.name != "__init__.py" else main
    if file is not None:
        if job.interpreter is None:
            parsed(file, what)
    elif path is not None:
        modules = sorted(f"{module}.{each.stem}" for each in path.parent.glob("*.py") if each != path)
        has = f"Name one of its modules: {', '.join(modules[:8])}." if modules else "Name a module."
        raise JobError(f"{what} is a package without __main__.py, which `python -m` cannot run.\n{has}")
    else:
        _check_installed(folders, job, what, module)


def module_file(folders: Sequence[Path], module_name: str) -> Path | None:
    """The file of a module below the first folder of the code that has it; None if none has."""
    for folder in folders:
        stem = folder.joinpath(*module_name.split("."))
        for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
            if path.is_file():
                return path
    return None


def parsed(path: Path, what: str) -> ast.Module:
    """The syntax tree of a file.

    Raises:
        JobError: it is not Python; names line and column.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's code, such as an invalid escape sequence
            tree = ast.parse(read_file(path), str(path))
            compile(tree, str(path), "exec", dont_inherit=True)  # `return` outside a function, for example
    except SyntaxError as error:
        place = f"{path}:{error.lineno or 1}:{error.offset or 1}"
        raise JobError(f"{what} is not valid Python: {error.msg}\nAt {place}{_quoted(error.text)}") from None
    except (ValueError, OSError) as error:
        raise JobError(f"{what} cannot be read: {error}\nAt {path}.") from None
    return tree


def _quoted(line: str | None) -> str:
    return f": {line.strip()}" if line and line.strip() else "."


def _near(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"Did you mean '{near[0]}'? " if near else ""


def _check_installed(folders: Sequence[Path], job: Job, what: str, module_name: str) -> None:
    """A module that is not below `code` may be installed, here or where the job runs."""
    top = module_name.partition(".")[0]
    is_below = any((folder / top).is_dir() or (folder / f"{top}.py").is_file() for folder in folders)
    has_own_packages = any(section.has_own_packages for section in job.launcher_sections.values())
    if not is_below and (_is_installed(top) or job.image or has_own_packages or job.interpreter):
        return
    modules = [
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for folder in folders
        for path in islice(_python_files(folder), _MOST_FILES)
    ]
    have = "has" if len(folders) == 1 else "have"
    where = f"{' and '.join(map(str, folders))} {have} no {module_name.replace('.', '/')}.py"
    raise JobError(
        f"{what}: there is no module {module_name}.\n"
        f"{where}, and no installed package has this name.\n"
        f"{_near(module_name, modules)}A module is named by its path below `code`, with dots, without .py."
    )


def _python_files(folder: Path) -> Iterator[Path]:
    """Those of the first folders; a folder that cannot be listed, such as those of /proc, is left out."""
    for parent, _, files in islice(os.walk(folder), _MOST_FILES):
        yield from (Path(parent, file) for file in files if file.endswith(".py"))


def _is_installed(top: str) -> bool:
    try:
        return find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _definition(tree: ast.Module, name: str, what: str, path: Path) -> ast.AST | None:
    """The class or function of that name; None if the name is there, but its definition is not.

    Raises:
        JobError: the module does not have the name; names the nearest one.
    """
    names: dict[str, ast.AST | None] = {}
    for node in _top_level(tree.body):
        if isinstance(node, ast.ClassDef | Function):
            names[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if any(alias.name == "*" for alias in node.names):
                return None
            names |= {(alias.asname or alias.name).partition(".")[0]: None for alias in node.names}
        else:
            stored = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            names |= {each.id: None for each in stored}
    if name in names or "__getattr__" in names:
        return names.get(name)
    defined = [each for each, node in names.items() if node is not None and not each.startswith("_")]
    has = f"It has: {', '.join(defined[:8])}." if defined else "It defines no class and no function."
    raise JobError(f"{what} names {name!r}, which {path} does not have.\n{_near(name, defined)}{has}")


def _top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a module, with those inside `if`, `try`, `with` and loops."""
    found: list[ast.stmt] = []
    for node in body:
        found.append(node)
        if not isinstance(node, ast.ClassDef | Function):
            for field in ("body", "orelse", "finalbody"):
                found += _top_level(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                found += _top_level(handler.body)
    return found


def _parameters_of_class(cls: ast.ClassDef, tree: ast.Module, path: Path) -> Parameters | None:
    """What the `__init__` of a class takes; None if this file does not show it."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    owner, seen = cls.name, set()
    while cls.name not in seen:
        seen.add(cls.name)
        if cls.decorator_list or cls.keywords or len(cls.bases) != 1:
            return None  # a dataclass, a metaclass, several bases
        methods = {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}
        if "__new__" in methods:
            return None
        if (init := methods.get("__init__")) is not None:
            return None if init.decorator_list else _parameters(owner, init, path)
        base = ast.unparse(cls.bases[0])
        if base in classes:
            cls = classes[base]
        else:
            place = f"{path}:{cls.lineno}"
            return Parameters(owner, place, ()) if base in _OWN_BASES and _is_kits(base, tree) else None
    return None


def _is_kits(base: str, tree: ast.Module) -> bool:
    """Whether this name is imported from clustertrain."""
    return any(
        (isinstance(node, ast.ImportFrom) and node.module == "clustertrain" and base == "Task")
        or (isinstance(node, ast.Import) and base.startswith("clustertrain."))
        for node in tree.body
    )


def _parameters(owner: str, init: ast.FunctionDef, path: Path) -> Parameters:
    spec = init.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = [*[None] * (len(positional) - len(spec.defaults)), *spec.defaults]
    pairs = list(zip(positional, defaults, strict=True))[max(1, len(spec.posonlyargs)) :]  # without self
    pairs += list(zip(spec.kwonlyargs, spec.kw_defaults, strict=True))
    by_name = [
        Parameter(
            argument.arg,
            EMPTY if argument.annotation is None else _annotation_text(argument.annotation),
            _default(default),
        )
        for argument, default in pairs
    ]
    return Parameters(owner, f"{path}:{init.lineno}", by_name, takes_any=spec.kwarg is not None)


def _annotation_text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value  # an annotation in quotes
    return ast.unparse(node)


def _default(node: ast.expr | None) -> object:
    if node is None:
        return EMPTY
    return None if isinstance(node, ast.Constant) and node.value is None else ...


def _check_one_argument(function: Function, what: str, path: Path) -> None:
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    needed = len(positional) - len(spec.defaults)
    needs_names = any(default is None for default in spec.kw_defaults)
    if needs_names or needed > 1 or not (positional or spec.vararg):
        raise JobError(takes_one_argument(what, ast.unparse(spec), f"{path}:{function.lineno}"))


def takes_one_argument(what: str, parameters: str, where: str) -> str:
    """The message for a function that cannot be called with `args` as its one argument."""
    return (
        f"{what} takes ({parameters}), but it is called with one argument, the job's `args`.\n"
        f"Write it as: def train(config)\nAt {where}."
    )
