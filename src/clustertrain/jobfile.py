"""Reading and writing job files: every error names file, line and column, the rule and the remedy.

    text ──Reader──▶ Document ──overrides, ${NAME}──▶ Document ──model──▶ Job ──dump_job──▶ text

A Document is plain data and, for every path of keys in it, the place where it was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from clustertrain.errors import JobError
from clustertrain.job import Job, sections
from clustertrain.job_sections import Section
from clustertrain.job_values import Refused, is_secret_key
from clustertrain.quantities import shortened
from clustertrain.yaml_places import (
    LARGEST_FILE_BYTES,
    Document,
    Expected,
    JobDumper,
    Keys,
    Place,
    Reader,
    refuse,
    text_of,
)

SectionT = TypeVar("SectionT", bound=Section)

# Keys of train that change how long a run is or what it prints, but no number it computes.
FREE_TRAIN_KEYS = {"epochs", "steps", "log_every", "eval_every", "loader_workers"}


def load_job(path: str | Path, sets: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Job:
    """The job of a file, with `--set` overrides and ${NAME} applied, and its paths made absolute.

    Args:
        sets: texts such as `train.epochs=3`; a later one wins.
        environ: where ${NAME} is looked up.

    Raises:
        JobError: `FILE:LINE:COLUMN: what`, then the rule and the remedy.
    """
    path = Path(path)
    if not str(path.absolute()).isprintable():
        raise JobError(f"{str(path)!r}: a path with control characters\nrename the file or its folder")
    document = _read_file(text_of(path), str(path))
    for number, override in enumerate(sets):
        _override(document, override, number)
    document.data = expanded(document, environ, (), document.data)
    return _absolute(validated(document, Job), path.absolute().parent)


def parse_job(text: str, name: str) -> Job:
    """The job that dump_job wrote: nothing in it depends on a folder or on the environment.

    Raises:
        JobError: as load_job, with `name` in the file's place.
    """
    document = _read_file(text, name)
    document.data = expanded(document, None, (), document.data)
    return validated(document, Job)


def dump_job(job: Job) -> str:
    """The job as YAML, every default written out, in the order of the reference; parse_job reads it back."""
    unusable = {"checkpoint"} if job.script else set()
    return yaml.dump(
        _escaped((), job.model_dump(mode="json", by_alias=True, exclude=unusable)),
        Dumper=JobDumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=1000,
    )


def identity(job: Job) -> dict[str, Any]:
    """What makes it the same run, as flat dotted keys: what runs, its data, and the arithmetic of train.

    A data set with a checksum is that checksum, wherever it lies.
    """
    dumped = job.model_dump(mode="json", by_alias=True)
    parts = {
        key: dumped[key] for key in ("task", "function", "script", "args", "data", "train") if dumped[key]
    }
    for name, entry in dumped["data"].items():
        where = "sha256" if entry["sha256"] else "uri"
        parts["data"][name] = {where: entry[where], "extract": entry["extract"]}
    if job.train:
        parts["train"] = {key: value for key, value in dumped["train"].items() if key not in FREE_TRAIN_KEYS}
    return dict(_flat(parts))


def identity_difference(old: Job, new: Job) -> list[str]:
    """What keeps `new` from being the same run as `old`, as lines such as `train.seed: 0 → 1`."""
    before, after = ({key: _json(value) for key, value in identity(job).items()} for job in (old, new))
    return [
        f"{key}: {before.get(key, 'absent')} → {after.get(key, 'absent')}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]


def job_hash(job: Job) -> str:
    """sha256, in hex, of the identity as canonical JSON: equal exactly when identity_difference is empty."""
    return hashlib.sha256(_json(identity(job)).encode("utf-8", "surrogatepass")).hexdigest()


def job_schema() -> dict[str, Any]:
    """The JSON schema of a job file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Job.model_json_schema(by_alias=True),
        "title": "clustertrain job file",
    }


# ------------------------------------------------------------------------------------------ reading


def _read_file(text: str, source: str) -> Document:
    """The document of a whole job file, which must be a mapping."""

    def place(line: int, column: int) -> Place:
        return Place((line, column), f"{source}:{line}:{column}")

    document = Reader(text, place, expected_at).document(())
    if document.data is None:
        refuse(
            place(1, 1),
            "the job file is empty",
            "it needs at least a name and what to run: clustertrain init",
        )
    if not isinstance(document.data, dict):
        what = f"the job file is {_shown(document.data)}"
        refuse(document.places[()][1], what, "it must be a mapping of keys, such as name: my-run")
    return document


def expected_at(path: Keys) -> Expected:
    """Values of env, arguments of a script and checksums are text as written: 1.10 stays 1.10."""
    match path:
        case ("env", _) | ("args", int()) | ("data", _, "sha256"):
            return "text"
        case ("slurm", "partition" | "account" | "qos" | "reservation" | "job_name" | "gpu_type"):
            return "text"
        case ("args", *_):
            return "any"
    return "typed"


# ---------------------------------------------------------------------- overrides and the environment


def _override(document: Document, override: str, number: int) -> None:
    """Applies one `--set a.b=value`; its text is the place that errors name."""
    keys, separator, value = override.partition("=")
    here = Place((LARGEST_FILE_BYTES, number), f"--set {shortened(_without_credentials(override))}")
    path = tuple(keys.split("."))
    if not separator or not all(re.fullmatch(r"[\w-]+", key) for key in path):
        refuse(here, "is not KEY=VALUE", "name a key of the job file, such as --set train.epochs=3")
    part = Reader(value, lambda line, column: here, expected_at).document(path)
    section = document.data
    for depth, key in enumerate(path[:-1], 1):
        if section.get(key) is None:
            section[key] = {}
            document.places[path[:depth]] = (here, here)
        section = section[key]
        if not isinstance(section, dict):
            whole = ".".join(path[:depth])
            refuse(
                here,
                f"{whole} is {_shown(section)}, which has no keys",
                f"set the whole of it: --set {whole}=…",
            )
    section[path[-1]] = part.data
    kept = {keys: places for keys, places in document.places.items() if keys[: len(path)] != path}
    document.places = kept | part.places


def _without_credentials(text: str) -> str:
    keys, _, _ = text.partition("=")
    if is_secret_key(keys.rpartition(".")[2]):
        return f"{keys}=…"
    return re.sub(r"(?<==|/)[^/=@\s]*@|\?.*", "…", text)


_VARIABLE = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")


def _may_expand(path: Keys) -> bool:
    match path:
        case ("code" | "storage" | "image",) | ("storage" | "env", _) | ("data", _, "uri"):
            return True
        case ("slurm", "python" | "output") | ("slurm", "mounts", _):
            return True
    return False


def expanded(document: Document, environ: Mapping[str, str] | None, path: Keys, value: Any) -> Any:
    """The value with ${NAME}, ${NAME:-default} and $$ replaced where they may stand, refused elsewhere.

    Without `environ` the text is that of dump_job, which holds no variable.
    """
    if isinstance(value, dict):
        return {key: expanded(document, environ, (*path, key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [expanded(document, environ, (*path, index), inner) for index, inner in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value
    place = document.places[path][1]

    def replacement(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if match[0] == "$$":
            return "$"
        if name is None:
            what = f"{_dotted(path)}: a '$' that begins no ${{NAME}}"
            refuse(place, what, "write ${NAME}, or $$ for a '$'")
        found = (environ or {}).get(name) or default
        if found is None and name not in (environ or {}):
            what = f"{_dotted(path)}: needs the environment variable {name}, which is not set"
            refuse(place, what, f"export {name}=…, or give a default: ${{{name}:-default}}")
        return found or ""

    if _may_expand(path):
        return _VARIABLE.sub(replacement, value)
    if "${" in value and environ is not None and path[:2] != ("slurm", "setup"):  # shell, as it stands
        refuse(
            place,
            f"{_dotted(path)}: {_shown(value)} is not accepted",
            "${NAME} is replaced in storage, data.*.uri, env, code, image and the paths of slurm alone",
            "for another key, set it on the command line: --set KEY=VALUE",
        )
    return value


def _escaped(path: Keys, value: Any) -> Any:
    """The inverse of expanded, for writing."""
    if isinstance(value, dict):
        return {key: _escaped((*path, key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_escaped((*path, index), inner) for index, inner in enumerate(value)]
    return value.replace("$", "$$") if isinstance(value, str) and _may_expand(path) else value


def _absolute(job: Job, folder: Path) -> Job:
    """The job with the paths that are relative to its file made absolute."""

    def absolute(uri: str) -> str:
        return uri if "://" in uri else os.path.normpath(folder / uri)

    return job.model_copy(
        update={
            "code": absolute(job.code),
            "storage": job.storage.model_copy(update={"uri": absolute(job.storage.uri)}),
            "data": {
                name: entry.model_copy(update={"uri": absolute(entry.uri)})
                for name, entry in job.data.items()
            },
        }
    )


# ----------------------------------------------------------------------------------- wording of errors


def validated(document: Document, model: type[SectionT]) -> SectionT:
    """The document as this model.

    Raises:
        JobError: the first problem in the text, with its place, the rule and the remedy.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        problems = sorted(_problem(document, detail) for detail in error.errors(include_url=False))
        place, text = problems[0]
        what, *lines = text.split("\n")
        more = f" (the first of {len(problems)} problems)" if len(problems) > 1 else ""
        raise JobError("\n".join([f"{place.label}: {what}{more}", *lines])) from None


def _problem(document: Document, error: ErrorDetails) -> tuple[Place, str]:
    """One error of the model: where to point, and what to say."""
    kind, loc, cause = error["type"], error["loc"], error.get("ctx", {}).get("error")
    if isinstance(cause, Refused):
        path = document.nearest((*loc, *cause.at))
        return document.places[path][0], _within(path, str(cause))
    path = document.nearest(loc)
    key_place, value_place = document.places[path]
    if kind == "extra_forbidden":
        return key_place, _unknown_key(path)
    if kind == "missing":
        return key_place, _within(path, f"the key '{loc[-1]}' is missing\nit has no default: add it")
    if loc[-1] == "[key]":
        name, section = shortened(str(path[-1])), _dotted(path[:-1])
        return key_place, f"{section}: '{name}' cannot be a name here\n{_rule(error, path)}"
    return value_place, f"{_dotted(path)}: {_shown(error['input'])} is not accepted\n{_rule(error, path)}"


def _unknown_key(path: Keys) -> str:
    valid = _keys_of(path[:-1])
    near = get_close_matches(str(path[-1]), valid, n=1)
    homes = [known for known, _ in sections() if path[-1] in _keys_of(known)]
    if homes:
        where = "" if homes[0] else " at the top level"
        hint = f"did you mean '{_dotted((*homes[0], path[-1]))}'{where}?"
    else:
        hint = f"did you mean '{near[0]}'?" if near else f"the keys here are {', '.join(valid)}"
    return _within(path[:-1], f"unknown key '{shortened(str(path[-1]))}'\n{hint}")


def _rule(error: ErrorDetails, path: Keys) -> str:
    """What the value must be, and how to write it."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    rule = _RULES[kind].format(**context) if kind in _RULES else error["msg"]
    if kind == "string_type" and isinstance(value, bool):
        rule += ", and YAML reads on, yes, off and no as true and false\nwrite it in quotes"
    elif kind == "string_type" and isinstance(value, int | float):
        rule += f'\nwrite it in quotes: "{value}"'
    elif kind == "literal_error":
        near = get_close_matches(str(value), re.findall(r"'([^']*)'", context["expected"]), n=1)
        rule += f"\ndid you mean '{near[0]}'?" if near else ""
    elif kind in ("model_type", "dict_type"):
        keys = _keys_of(path)
        rule += f" with keys such as {', '.join(keys)}" if keys else " of names to values"
    return rule


_RULES = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "finite_number": "must be finite",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge}",
    "literal_error": "must be {expected}",
    "model_type": "must be a mapping",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "value_error": "{error}",
}


def _keys_of(path: Keys) -> list[str]:
    """The keys that the section at this path may have."""
    for known, model in sections():
        if len(known) == len(path) and all(want in ("*", key) for want, key in zip(known, path, strict=True)):
            return [info.alias or name for name, info in model.model_fields.items()]
    return []


def _within(path: Keys, text: str) -> str:
    return f"{_dotted(path)}: {text}" if path else text


def _dotted(path: Keys) -> str:
    return shortened(".".join(str(key) for key in path))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return shortened(repr(value) if isinstance(value, str) else _json(value))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and (value or not prefix):
        for key, inner in value.items():
            name = key if re.fullmatch(r"[\w-]+", key) else _json(key)
            yield from _flat(inner, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, value
