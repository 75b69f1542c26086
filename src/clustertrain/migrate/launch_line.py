"""One command that starts a training: its wrappers, its launcher, the script and the arguments."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from clustertrain import variables
from clustertrain.errors import JobError
from clustertrain.job.values import is_secret_text
from clustertrain.job.yaml_reader import JobLoader, text_of
from clustertrain.migrate.finding import SECRET, Finding, Kind, contains_secret, kept, lost, variable
from clustertrain.migrate.options import hosts, split_options, table

Shell = Callable[[str, int], list[Finding]]
"""Reads the text of `bash -c`, which begins at a line."""

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_STARTS = {"torchrun": 1, "torch.distributed.launch": 1, "accelerate launch": "gpu", "deepspeed": "gpu"}
"""The processes of a node that a launcher starts if no option says it."""
_ALSO = {"torch.distributed.launch": ["torchrun"]}
_PLUG_INS = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA", "TPU")
"""Of Accelerate: values of `distributed_type`."""
_LOCAL_RANK = "the script gets no --local_rank: give the argument the default int(os.environ['LOCAL_RANK'])"
_OF_MPI = (
    "a program for Horovod needs a Task (docs/migrate.md#horovod); others read RANK, LOCAL_RANK and "
    "WORLD_SIZE in place of MPI's variables"
)
_WRAPPERS = {  # with their tables
    "srun": ("srun", "size"),
    "mpirun": ("mpirun",),
    "mpiexec": ("mpirun",),
    "horovodrun": ("horovodrun",),
    "conda run": ("conda run",),
    "mamba run": ("conda run",),
    "uv run": ("conda run",),
    **dict.fromkeys(
        ("apptainer exec", "apptainer run", "singularity exec", "singularity run"), ("container",)
    ),
}
_VARIABLE = re.compile(r"\$[\w{@*#?(]|`")
_ON_CPUS = re.compile(
    r" (--(use[-_])?cpu|--no[-_](cuda|accel)|(--)?([\w.]+\.)?(device|accelerator)[ =]cpu|(\S*backend=)?gloo) "
)
_OF_EACH = re.compile(r"(?i)\$\{\w*(rank|procid|localid|nodeid|master|port|addr)")
_OF_RANKS = (
    "each start or process has another: let the script read RANK, LOCAL_RANK, MASTER_ADDR and MASTER_PORT"
)


def launch_in(words: Sequence[str], line: int, shell: Shell) -> list[Finding] | None:
    """The findings of a command that starts a training; None if the command does something else."""
    findings: list[Finding] = []
    command = list(words)
    while (peeled := _peeled(command, line)) is not None:
        found, command = peeled
        findings += found
        if any(finding.kind is Kind.UNKNOWN for finding in found):
            return findings
    inner = _started(command, line, shell) if command else None
    return None if inner is None else [*findings, *inner]


def _peeled(words: list[str], line: int) -> tuple[list[Finding], list[str]] | None:
    """The findings of a wrapper, such as srun, and the command in it; None if the command is none."""
    name, rest = posixpath.basename(words[0]) if words else "", words[1:]
    if name in ("exec", "time", "nohup"):
        return [], rest
    if name == "env":
        names = [word.split("=", 1) for word in takewhile(re.compile(r"\w+=").match, rest)]
        return [variable(line, *each) for each in names], rest[len(names) :]
    if rest and f"{name} {rest[0]}" in _WRAPPERS:
        name, rest = f"{name} {rest[0]}", rest[1:]
    if name not in _WRAPPERS:
        return None
    findings, rest = split_options(rest, table(*_WRAPPERS[name]), line)
    if name in ("mpirun", "mpiexec", "horovodrun"):
        start = Finding(line, name, Kind.LOST, _OF_MPI, (("@launcher", True),))
        return [start, *_files_of(findings)], rest
    if name == "uv run":
        findings.append(kept(line, name, {"interpreter": ".venv"}))
    if _WRAPPERS[name] == ("container",) and rest:
        image = {"image": rest[0], "slurm.container": "apptainer"}
        return [*findings, kept(line, f"{name} {rest[0]}", image)], rest[1:]
    return findings, rest


def _started(words: list[str], line: int, shell: Shell) -> list[Finding] | None:
    """The findings of a command without wrappers; None if it starts no training."""
    name, rest = posixpath.basename(words[0]), words[1:]
    if name in ("bash", "sh", "zsh", "dash"):
        return _in_shell(rest, line, shell)
    if name == "accelerate" and rest[:1] == ["launch"]:
        found: list[Finding] | None = _launched("accelerate launch", rest[1:], line)
    elif name in ("torchrun", "deepspeed"):
        found = _launched(name, rest, line)
    else:
        found = _python(rest, line) if re.fullmatch(r"python[\d.]*", name) else None
    return found and [*_interpreter(words[0], line), *found]


def _in_shell(rest: list[str], line: int, shell: Shell) -> list[Finding] | None:
    option = next((index for index, word in enumerate(rest) if re.fullmatch(r"-\w*c", word)), None)
    if option is not None and rest[option + 1 :]:
        return shell(rest[option + 1], line)
    script = next((word for word in rest if not word.startswith("-")), None)
    if script is None:
        return None
    return [Finding(line, script, Kind.UNKNOWN, "the command is in another file: import that file")]


def _interpreter(program: str, line: int) -> list[Finding]:
    """`/envs/a/bin/torchrun` runs with the Python of its folder."""
    folder, name = posixpath.split(program)
    if not folder or folder == "/usr/bin":
        return []
    python = name if name.startswith("python") else "python"
    return [kept(line, program, {"interpreter": posixpath.join(folder, python)})]


def _python(rest: list[str], line: int) -> list[Finding] | None:
    if rest[:1] in ([], ["-"], ["-c"], ["-V"], ["--version"]):
        return None
    findings, rest = split_options(rest, table("python"), line)
    is_module = any(("@module", True) in finding.settings for finding in findings)
    findings = [finding for finding in findings if ("@module", True) not in finding.settings]
    if not rest or rest[0] in ("pip", "venv"):
        return None
    if is_module and rest[0] in _MODULES:
        return [*findings, *_launched(_MODULES[rest[0]], rest[1:], line)]
    return [*findings, *_program(rest, line, is_module=is_module)]


def _launched(launcher: str, words: list[str], line: int) -> list[Finding]:
    settings = (("@launcher", True), ("@default", _STARTS[launcher]))
    start = "clustertrain starts one process per worker"
    findings = [Finding(line, launcher, Kind.DONE, start, settings)]
    options, rest = split_options(words, table(launcher, *_ALSO.get(launcher, [])), line)
    is_module = any(("@module", True) in option.settings for option in options)
    if launcher == "accelerate launch" and not any("@config_file" in dict(each.settings) for each in options):
        options = [*_default_config(line), *options]
    findings += _files_of(option for option in options if ("@module", True) not in option.settings)
    has_own = any(option.text.replace("_", "-") in ("--use-env", "--no-local-rank") for option in options)
    if launcher in ("torch.distributed.launch", "deepspeed") and not has_own:
        findings.append(lost(line, launcher, _LOCAL_RANK))
    return [*findings, *_program(rest, line, is_module=is_module)]


def _program(words: list[str], line: int, *, is_module: bool) -> list[Finding]:
    if not words or not words[0].strip() or _VARIABLE.search(words[0]) or words[0].startswith("-"):
        what = " ".join(words[:1]) or "the end of the command"
        return [Finding(line, what, Kind.UNKNOWN, "the name of the script is not in the file")]
    findings, args = [], []
    rest = words[1:]
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        has_value = bool(rest) and name.startswith("-") and not equals and not rest[0].startswith("-")
        value = rest[0] if has_value else value
        is_secret = is_secret_text(name.lstrip("-"), value) and value.lower() not in ("", "true", "false")
        if is_secret or contains_secret(f"{word} {value}"):
            rest = rest[has_value:]
            findings.append(lost(line, f"{name} …", SECRET))
        elif word in ("$@", "$*", "${@}"):
            findings.append(lost(line, word, 'more arguments for one start: --set "args=[…]"'))
        else:
            args.append(word)
            if _VARIABLE.search(re.sub(rf"\$\{{{variables.PREFIX}\w+\}}", "", word)):
                why = "nothing replaces it in args: write its value there"
                findings.append(lost(line, word, _OF_RANKS if _OF_EACH.search(word) else why))
    what = "module" if is_module else "script"
    settings = {what: words[0], "args": args}
    if _ON_CPUS.search(" ".join(["", *args, ""])):
        settings["@cpu"] = True  # type: ignore[assignment]
    return [kept(line, " ".join([words[0], *args]), settings, f"{what} and args"), *findings]


def _default_config(line: int) -> list[Finding]:
    """The file of `accelerate config`, which accelerate launch reads if no option names one."""
    cache = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    file = Path(cache).expanduser() / "accelerate" / "default_config.yaml"
    found = kept(
        line, str(file), {"@config_file": file}, "accelerate launch reads it: its values count as options"
    )
    return [found] if file.is_file() else []


def _files_of(options: Any) -> list[Finding]:
    """The options, and before them those of the files that they name: the command line counts more."""
    of_files, others = [], []
    for option in options:
        others.append(option)
        for key, path in option.settings:
            if key in ("@config_file", "@hostfile"):
                of_files += _read_file(option, key, str(path))
    return [*of_files, *others]


def _read_file(option: Finding, key: str, path: str) -> list[Finding]:
    try:
        text = text_of(Path(path))
        if key == "@hostfile":
            return [kept(option.line, path, hosts(re.sub("(?m)#.*$", "", text)))]
        values = yaml.load(text, JobLoader)
    except (JobError, ValueError, OverflowError, yaml.YAMLError, RecursionError):
        why = "it cannot be read here: write what it says about nodes and processes into resources"
        return [lost(option.line, path, why)]
    by_name = {name: each for each in table("accelerate launch") for name in each.names.split()}
    found = []
    for name, value in values.items() if isinstance(values, dict) else ():
        row = by_name.get(str(name).replace("_", "-"))
        each = lost(option.line, str(name), "clustertrain does not know this key of the file")
        if row is not None:
            each = row.found(option.line, f"{name}: {value}", str(name), str(value))
        if name == "distributed_type" and str(value) in _PLUG_INS:
            each = lost(option.line, each.text, "a plug-in of Accelerate: write it into the code")
        if each.kind is not Kind.LOST or value not in (None, False, "no", "all", [], {}):
            found.append(each)
    return found
