"""A Python program that starts its ranks itself: mp.spawn, or Ray Train's TorchTrainer."""

from __future__ import annotations

import ast
from pathlib import Path, PurePath
from typing import cast

from clustertrain.migrate.finding import Finding, Kind, kept, lost
from clustertrain.regular_file import read_file


def program_findings(source: str, path: str, line: int = 0) -> list[Finding] | None:
    """What a program says about its ranks; None if it starts none, or is not Python.

    Args:
        path: below the folder of the code.
        line: of the command that names the program, if a file has such a command.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = _name(call.func)
        if name in ("spawn", "mp.spawn", "multiprocessing.spawn"):
            return _spawn(tree, call, source, path, line or call.lineno)
        if name.rpartition(".")[2] == "TorchTrainer":
            return _trainer(tree, call, path, line or call.lineno)
    return None


def _name(function: ast.expr) -> str:
    """The last two parts of what is called: `multiprocessing.spawn`."""
    match function:
        case ast.Name(id=name) | ast.Attribute(value=ast.Call(), attr=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name):
            return f"{owner}.{name}"
    return ""


def _spawn(tree: ast.Module, call: ast.Call, source: str, path: str, line: int) -> list[Finding]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    nprocs = given.get("nprocs", call.args[2] if len(call.args) > 2 else None)
    number = _literal(tree, nprocs)
    on_gpus = "cuda" in source or "nccl" in source
    size = {"@gpus_per_node" if on_gpus else "@cpus_per_node": number if isinstance(number, int) else 1}
    settings = {"script": path, "args": [], **size}
    found = [kept(line, "mp.spawn", settings, "one worker, which starts its ranks itself")]
    if not isinstance(number, int):
        key = "gpus_per_worker" if on_gpus else "cpus_per_worker"
        shown = (nprocs and ast.get_source_segment(source, nprocs)) or "missing"
        what = f"the number of ranks is known only where it runs: write it as resources.{key}"
        found.append(lost(line, f"nprocs is {shown}", what))
    return found


def _trainer(tree: ast.Module, call: ast.Call, path: str, line: int) -> list[Finding]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    function = given.get("train_loop_per_worker", call.args[0] if call.args else None)
    if not isinstance(function, ast.Name):
        return [Finding(line, "TorchTrainer", Kind.UNKNOWN, "its function is not named: name it in the file")]
    module = ".".join(PurePath(path).with_suffix("").parts)
    config = _literal(tree, given.get("train_loop_config"))
    settings: dict[str, object] = {
        "function": f"{module}:{function.id}",
        "args": config if isinstance(config, dict) else {},
    }
    scaling = _assigned(tree, given.get("scaling_config"))
    shape = {each.arg: _literal(tree, each.value) for each in getattr(scaling, "keywords", ())}
    workers = shape.get("num_workers")
    settings |= {"@launcher": True, "@processes": workers if isinstance(workers, int) else 1, "@cpu": True}
    settings |= {"@cpu": False} if shape.get("use_gpu") else {}
    advice = "clustertrain.session in place of ray.train: report, checkpoints, rank and device"
    found = [
        kept(line, f"TorchTrainer({function.id})", settings, "function, args and resources"),
        lost(line, "ray.train", advice),
    ]
    if not isinstance(workers, int):
        found.append(lost(line, "num_workers", "write the number as resources.workers"))
    if "train_loop_config" in given and not isinstance(config, dict):
        found.append(lost(line, "train_loop_config", "write its values as args"))
    rest = [name for name in given if name in ("run_config", "torch_config", "datasets", "dataset_config")]
    return [
        *found,
        *(lost(line, name, "storage, failures and checkpoint, or the code") for name in rest),
    ]


def _assigned(tree: ast.Module, node: ast.expr | None) -> ast.expr | None:
    """The expression that a name stands for, if the program assigns it once."""
    if not isinstance(node, ast.Name):
        return node
    values = [
        each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign)
        and [getattr(target, "id", "") for target in each.targets] == [node.id]
    ]
    return values[0] if len(values) == 1 else None


def _literal(tree: ast.Module, node: ast.expr | None) -> object:
    """The value of a literal, or of a name for one; None if it is neither."""
    try:
        found = _assigned(tree, node)
        return None if found is None else ast.literal_eval(found)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def with_trainer(findings: list[Finding]) -> list[Finding]:
    """The findings of a RayJob: its program calls TorchTrainer, whose function is the job's entry point."""
    found = []
    for finding in findings:
        script = str(dict(finding.settings).get("script", ""))
        inner = program_findings(_source(Path(script)), script, finding.line) if script else [finding]
        if inner is None:
            function = f"{PurePath(script).stem}:train_func"
            what = "the function that TorchTrainer runs; its name is a guess, because the program is not here"
            settings = {"function": function, "args": {}}
            inner = [kept(finding.line, script, settings), lost(finding.line, function, what)]
        if own := dict(finding.settings).get("args"):
            what = "the program reads these; its function reads the job's args: write them there"
            inner = [*inner, lost(finding.line, " ".join(map(str, cast(list[object], own))), what)]
        found += inner
    return found


def _source(path: Path) -> str:
    try:
        return read_file(path).decode()
    except (OSError, ValueError):
        return ""
