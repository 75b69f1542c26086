"""Reading and writing job files: every error names file, line and column, the rule and the remedy.

    text ──Reader──▶ Document ──overrides, ${NAME}──▶ Document ──model──▶ Job ──dump_job──▶ text

A Document is plain data and, for every path of keys, the place in the text where it was written.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from clustertrain.errors import JobError
from clustertrain.job.error_messages import dotted, shown, validated
from clustertrain.job.launcher_plugins import LauncherSection, launcher_sections
from clustertrain.job.model import Job
from clustertrain.job.references import VARIABLE, check_dollars
from clustertrain.job.values import Refused, without_credentials
from clustertrain.job.yaml_reader import (
    LARGEST_FILE_BYTES,
    Document,
    Expected,
    JobDumper,
    Keys,
    Reader,
    TextPosition,
    refuse,
    text_of,
)
from clustertrain.node import variables
from clustertrain.node.units import shortened
from clustertrain.node.version import __version__

JobSource = str | Path | Mapping[str, Any]
"""The path of a job file, or its contents."""
Overrides = Mapping[str, Any]
"""The values of keys of a job file, by dotted keys: `{"train.epochs": 3}`."""


def load_job(job: JobSource, sets: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Job:
    """Read a job, apply `--set` overrides and ${NAME}, and make its paths absolute.

    The paths of a file start at its folder, the paths of a mapping at the current one.

    Args:
        sets: texts such as `train.epochs=3`; the last one of a key wins.
        environ: the environment for ${NAME}.

    Raises:
        JobError: `FILE:LINE:COLUMN: what`, then the rule and the remedy.
    """
    document = _document(job, sets)
    document.data = expanded(document, environ, (), document.data)
    folder = Path.cwd() if isinstance(job, Mapping) else Path(job).absolute().parent

    def absolute(uri: str) -> str:
        return uri if "://" in uri else os.path.normpath(folder / uri)

    read = validated(document, Job)
    data = read.data.items()
    return read.model_copy(
        update={
            "code": tuple(map(absolute, read.code)),
            "interpreter": absolute(read.interpreter) if read.interpreter else None,
            "storage": read.storage.model_copy(update={"uri": absolute(read.storage.uri)}),
            "data": {name: entry.model_copy(update={"uri": absolute(entry.uri)}) for name, entry in data},
        }
    )


def place_of_key(path: str | Path, sets: Sequence[str], keys: Keys) -> str:
    """Return `FILE:LINE:COLUMN` of a key's value, or its `--set` option; "" if the file cannot be read."""
    try:
        document = _document(path, sets)
    except JobError:
        return ""
    return document.positions[document.nearest(keys)][1].label


def _document(job: JobSource, sets: Sequence[str]) -> Document:
    """Read the text of a job and apply the `--set` overrides."""
    if isinstance(job, Mapping):
        document = _read_job(_as_yaml(job), lambda line, column: TextPosition((line, column), "the job"))
    elif not (path := str(Path(job).absolute())).isprintable():
        raise JobError(
            f"{path!r}: a path with characters that are not printable, shown with \\\n"
            "rename the file or its folder"
        )
    else:
        document = _read_job(text_of(Path(job)), positions_in(str(job)))
    for number, override in enumerate(sets):
        _override(document, override, number)
    return document


def parse_job(text: str, name: str) -> Job:
    """Read a job that dump_job wrote; it depends neither on a folder nor on the environment.

    Raises:
        JobError: as load_job, with `name` in the file's place.
    """
    document = _read_job(text, positions_in(name))
    document.data = expanded(document, None, (), document.data)
    return validated(document, Job)


def dump_job(job: Job, *, defaults: bool = False) -> str:
    """Return the job as YAML in the order of the reference, with every default or none; for parse_job."""
    return _text_of(_values(job, exclude_defaults=not defaults))


def record_of(job: Job) -> str:
    """Return the job for the folder of its run: the version, and what differs from its defaults.

    `train` identifies the run and has all its values, so that a version with other defaults finds the same
    changes in it.
    """
    values = {"version": job.version, **_values(job, exclude_defaults=True)}
    if "train" in values:
        values["train"] = _values(job, exclude_none=True)["train"]
    return f"# clustertrain {__version__}: a key that is missing here has its default\n{_text_of(values)}"


def _values(job: Job, **omitted: bool) -> dict[str, Any]:
    unusable = {"checkpoint"} if job.is_script else {"resume_args"}
    return job.model_dump(mode="json", by_alias=True, exclude=unusable, **omitted)  # type: ignore[arg-type]


def _text_of(values: dict[str, Any]) -> str:
    return str(
        yaml.dump(
            _escaped((), values),
            Dumper=JobDumper,
            sort_keys=False,
            allow_unicode=True,
            default_flow_style=False,
            width=1000,
        )
    )


def job_schema() -> dict[str, Any]:
    """Return the JSON schema of a job file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Job.model_json_schema(by_alias=True),
        "title": "clustertrain job file",
    }


# ------------------------------------------------------------------------------------------ reading


def positions_in(source: str) -> Callable[[int, int], TextPosition]:
    """Return the function that names a line and a column of a file in errors."""
    return lambda line, column: TextPosition((line, column), f"{source}:{line}:{column}")


def _read_job(text: str, position: Callable[[int, int], TextPosition]) -> Document:
    """Return the document of a whole job file, which must be a mapping."""
    document = Reader(text, position, expected_at).document(())
    if not isinstance(document.data, dict):
        found = "empty" if document.data is None else shown(document.data)
        remedy = "it must be a mapping of keys, such as name: my-run; clustertrain init writes an example"
        refuse(document.positions[()][1], f"the job file is {found}", remedy)
    return document


def _section(name: str) -> type[LauncherSection]:
    """Return the section of the launcher `name`, or one without keys if there is none."""
    return launcher_sections().get(name, LauncherSection)


def _names_with_paths() -> str:
    return " and ".join(name for name, section in launcher_sections().items() if section.expanded_keys)


def expected_at(path: Keys) -> Expected:
    """Return the kind of value that a path may have.

    Values of env, arguments of a script and checksums are text exactly as written: 1.10 stays 1.10.
    """
    match path:
        case ("env", _) | ("args" | "resume_args", int()) | ("data", _, "sha256"):
            return "text"
        case (str(name), str(key), *_) if key in _section(name).text_keys:
            return "text"
        case ("args", *_):
            return "any"
    return "typed"


# ---------------------------------------------------------------------------------- values of Python


def _as_yaml(value: Any, **style: Any) -> str:
    """Return a value of Python as the text of a job file.

    Raises:
        JobError: it contains what no YAML text can express.
    """
    try:
        plain = json.loads(json.dumps(value, default=_plain))  # of a subclass, such as numpy's float64, too
    except (TypeError, ValueError) as error:
        raise JobError(f"the job: {error}\na job contains text, numbers, lists and mappings") from None
    style |= {"sort_keys": False, "allow_unicode": True, "width": math.inf}
    return str(yaml.dump(plain, Dumper=JobDumper, **style))


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):  # a number of numpy or torch
        return value.item()
    raise TypeError(f"{shortened(repr(value))} is a {type(value).__name__}")


def sets_of(overrides: Overrides) -> tuple[str, ...]:
    """Return the `--set` options with these values: {"train.epochs": 3} is `train.epochs=3`."""
    texts = {key: _as_yaml(value, default_flow_style=True) for key, value in overrides.items()}
    return tuple(key + "=" + text.removesuffix("...\n").rstrip() for key, text in texts.items())


# ---------------------------------------------------------------------- overrides and the environment


def _override(document: Document, override: str, number: int) -> None:
    """Apply one `--set a.b=value`; errors give its text as the place."""
    keys, separator, value = override.partition("=")
    here = TextPosition((LARGEST_FILE_BYTES, number), f"--set {shortened(without_credentials(override))}")
    path = tuple(keys.split("."))
    if not separator or not all(re.fullmatch(r"[\w-]+", key) for key in path):
        refuse(here, "is not KEY=VALUE", "name a key of the job file, such as --set train.epochs=3")
    part = Reader(value, lambda line, column: here, expected_at).document(path)
    section = document.data
    for depth, key in enumerate(path[:-1], 1):
        if section.get(key) is None:
            section[key] = {}
            document.positions[path[:depth]] = (here, here)
        section = section[key]
        if not isinstance(section, dict):
            whole = ".".join(path[:depth])
            refuse(
                here,
                f"{whole} is {shown(section)}, which has no keys",
                f"replace the whole value: --set {whole}=…",
            )
    section[path[-1]] = part.data
    kept = {keys: positions for keys, positions in document.positions.items() if keys[: len(path)] != path}
    document.positions = kept | part.positions


def _may_expand(path: Keys) -> bool:
    match path:
        case ("code" | "interpreter" | "storage" | "image" | "scratch",) | ("code", int()):
            return True
        case ("storage", _) | ("data", _, "uri"):
            return True
        case (str(name), str(key), *_) if key in _section(name).expanded_keys:
            return True
    return False


def _is_expanded_later(path: Keys) -> bool:
    """Return whether ${…} at this path is replaced later.

    The process that starts the driver, the shell on the node, the worker or the script itself replaces it.
    """
    match path:
        case ("env", _) | ("args" | "resume_args", int()):
            return True
        case (str(name), str(key), *_) if key in _section(name).shell_keys:
            return True
    return False


def expanded(document: Document, environ: Mapping[str, str] | None, path: Keys, value: Any) -> Any:
    """Replace ${NAME}, ${NAME:-default} and $$ in the keys that allow them; refuse them in other keys.

    Without `environ` the text is from dump_job and contains no variables.
    """
    if isinstance(value, dict):
        return {key: expanded(document, environ, (*path, key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [expanded(document, environ, (*path, index), inner) for index, inner in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value
    position = document.positions[path][1]

    def replacement(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name is None:
            return "$"
        found = (environ or {}).get(name) or default
        if found is None and name not in (environ or {}):
            what = f"{dotted(path)}: needs the environment variable {name}, which is not set"
            refuse(position, what, f"export {name}=…, or give a default: ${{{name}:-default}}")
        return found or ""

    if _may_expand(path):
        try:
            check_dollars(value)
        except Refused as error:
            refuse(position, f"{dotted(path)}: {error}")
        return VARIABLE.sub(replacement, value)
    if "${" in value and environ is not None and not _is_expanded_later(path):
        refuse(
            position,
            f"{dotted(path)}: {shown(value)} is not accepted",
            "${NAME} is replaced only in storage, scratch, data.*.uri, env, code, interpreter, image "
            f"and the paths of {_names_with_paths()}, and ${{{variables.PREFIX}…}} in the args of a script",
            "set another key on the command line: --set KEY=VALUE",
        )
    return value


def _escaped(path: Keys, value: Any) -> Any:
    """Return the value with each `$` written as `$$` where `expanded` replaces variables."""
    if isinstance(value, dict):
        return {key: _escaped((*path, key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_escaped((*path, index), inner) for index, inner in enumerate(value)]
    return value.replace("$", "$$") if isinstance(value, str) and _may_expand(path) else value
