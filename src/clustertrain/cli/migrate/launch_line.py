"""The command that starts a training: srun, a launcher, the script and its arguments."""

from __future__ import annotations

import posixpath
import re
import shlex

from clustertrain.cli.migrate.found import Found, contains_secret
from clustertrain.cli.migrate.options import ACCELERATE, PYTHON, SIZES, TORCHRUN, read_options
from clustertrain.errors import JobError
from clustertrain.node import variables
from clustertrain.node.units import shortened

OWN_VARIABLES = re.compile(  # of clustertrain
    r"CUDA_VISIBLE_DEVICES|MASTER_(ADDR|PORT)|(LOCAL_|NODE_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|PET_\w+|RDZV_\w+",
    re.IGNORECASE,
)
_INNER = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`")  # a command whose output is a word
_LOCAL_RANK = "the script gets no --local_rank: give the argument the default int(os.environ['LOCAL_RANK'])"


def launch_of(words: list[str], line: int) -> Found | None:
    """Return what a command that starts a training says, or None if it starts none.

    Raises:
        JobError: the name of the script is not there.
    """
    found, command = Found(line=line), [*words]
    while command and (assigned := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", command[0], re.DOTALL)):
        _set_variable(assigned[1], assigned[2], found)
        del command[0]
    is_step = command[:1] == ["srun"]
    if is_step:
        command = read_options(command[1:], SIZES, found)
    return _started(command, found, is_step=is_step) if command else None


def _started(command: list[str], found: Found, *, is_step: bool) -> Found | None:
    folder, name = posixpath.split(command[0])
    if folder not in ("", "/usr/bin", "/bin"):
        found.set("interpreter", posixpath.join(folder, name if name.startswith("python") else "python"))
    if name == "torchrun" or (name == "accelerate" and command[1:2] == ["launch"]):
        return _launched(name, command[1 + (name == "accelerate") :], found)
    rest = read_options(command[1:], PYTHON, found) if re.fullmatch(r"python[\d.]*", name) else []
    is_module = found.sizes.pop("is_module", False)
    if is_module and rest and rest[0] in ("torch.distributed.run", "torch.distributed.launch"):
        return _launched(rest[0], rest[1:], found)
    if not rest or not is_step:
        return None
    return _program(rest, found, is_module=is_module)


def _launched(name: str, words: list[str], found: Found) -> Found:
    is_accelerate = name == "accelerate"
    found.sizes["launcher"] = "gpu" if is_accelerate else 1  # processes of a node without an option
    rest = read_options(words, ACCELERATE if is_accelerate else TORCHRUN, found)
    options = " ".join(words[: -len(rest)]).replace("_", "-")
    if name == "torch.distributed.launch" and "--use-env" not in options:
        found.leave_out(name, _LOCAL_RANK)
    return _program(rest, found, is_module=found.sizes.pop("is_module", False))


def _program(words: list[str], found: Found, *, is_module: bool) -> Found:
    if not words or "$" in words[0]:
        what = shortened(words[0] if words else "the end of the command")
        raise JobError(f"line {found.line or 1}: the name of the script is not there: {what}\nwrite it there")
    found.set("module" if is_module else "script", words[0])
    args: list[str] = []
    rest = words[1:]
    while rest:
        word = rest.pop(0)
        value = rest[0] if rest and word.startswith("-") and "=" not in word else ""
        if contains_secret(f"{word} {value}"):
            found.leave_out(f"{word} {value}")
            rest = rest[bool(value) :]
            continue
        args.append(word)
        if re.search(rf"\$(?!\{{{variables.PREFIX})|`", word):
            found.leave_out(word, "nothing replaces it in args: write its value there")
    found.set("args", args)
    return found


def commands_of(text: str) -> list[list[str]]:
    """Return the words of each command of a line of shell, without redirections.

    There are none if a quote is not closed.
    """
    reader = shlex.shlex(_INNER.sub("$(…)", text), posix=True, punctuation_chars="|&;<>")
    reader.whitespace_split, reader.commenters = True, ""
    commands: list[list[str]] = [[]]
    try:
        words = iter([*reader])
    except ValueError:
        return []
    for word in words:
        if word.startswith("#"):
            break
        if not set(word) <= set("|&;<>"):
            commands[-1].append(word)
        elif "<" in word or ">" in word:  # 2>&1, > log
            next(words, None)
            if commands[-1][-1:] in (["1"], ["2"]):
                commands[-1].pop()
        else:
            commands.append([])
    return [command for command in commands if command]


def _set_variable(name: str, value: str, found: Found) -> None:
    """Set a variable of the command alone as a key of `env`, or leave it out."""
    if OWN_VARIABLES.fullmatch(name) or "$" in value or contains_secret(f"{name}={value}"):
        found.leave_out(f"{name}={value}")
    else:
        found.set(f"env.{name}", value)
