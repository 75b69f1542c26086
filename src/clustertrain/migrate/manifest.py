"""A manifest of Kubernetes: PyTorchJob, TrainJob or RayJob."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clustertrain.errors import JobError
from clustertrain.job.file import positions_in
from clustertrain.job.yaml_reader import Document, Keys, Reader
from clustertrain.migrate.finding import Finding, Kind, kept, lost, variable
from clustertrain.migrate.launch_line import launch_in
from clustertrain.migrate.options import Option, table
from clustertrain.migrate.python_program import with_trainer
from clustertrain.migrate.shell_script import ShellScript

_NO_KEY = "clustertrain has no key for it: kubernetes.patches changes any field of the RayJob"


@dataclass(frozen=True)
class _Kind:
    """A kind of manifest: its fields, and where its pods and its container are."""

    name: str
    pod: Keys
    container: Keys

    def rows(self) -> Iterator[Option]:
        yield from table("metadata", self.name)
        for row in table("pod"):
            prefix = ".".join(map(str, self.pod))
            yield replace(row, names=" ".join(f"{prefix}.spec.{name}" for name in row.names.split()))


def _kind_of(name: str, data: Any) -> _Kind | None:
    match name:
        case "PyTorchJob":
            replicas = _at(data, ("spec", "pytorchReplicaSpecs"))
            first = next(iter(replicas), "Master") if isinstance(replicas, dict) else "Master"
            pod: Keys = ("spec", "pytorchReplicaSpecs", str(first), "template")
            return _Kind(name, pod, (*pod, "spec", "containers", 0))
        case "TrainJob":
            return _Kind(name, ("spec", "template"), ("spec", "trainer"))
        case "RayJob":
            pod = ("spec", "rayClusterSpec", "workerGroupSpecs", 0, "template")
            return _Kind(name, pod, (*pod, "spec", "containers", 0))
    return None


def manifest_findings(text: str, source: str) -> list[Finding] | None:
    """The findings of a manifest; None if its kind is another.

    Raises:
        JobError: it is not one YAML document.
    """
    if len(re.findall(r"(?m)^kind:", text)) > 1:
        raise JobError(
            f"{source}: has several documents\nimport reads one job: write it into a file of its own"
        )
    reader = Reader(text, positions_in(source), lambda path: "typed" if "affinity" in path else "text")
    document = reader.document(())
    name = document.data.get("kind") if isinstance(document.data, dict) else None
    kind = _kind_of(str(name), document.data)
    if kind is None:
        return None
    findings = [*_Fields(document, kind).findings(document.data, ()), *_containers(document, kind)]
    found: dict[str, Any] = {"@cluster": True}
    found |= {"@launcher": True, "@default": "gpu"} if name == "TrainJob" else {}
    return [kept(0, "", found | _pods(findings)), *findings, *_command(document, kind, str(name), findings)]


def _pods(findings: Sequence[Finding]) -> dict[str, Any]:
    """The number of pods with workers: those of all replicas, or the range of an elastic policy."""
    settings = [setting for finding in findings for setting in finding.settings]
    total = sum(int(str(value)) for key, value in settings if key == "@replicas")
    bounds = [value for wanted in ("@min_nodes", "@max_nodes") for key, value in settings if key == wanted]
    nodes = bounds if len({*bounds}) > 1 else bounds[-1] if bounds else total
    return {"@nodes": nodes} if nodes else {}


class _Fields:
    """Looks up each field in the tables."""

    def __init__(self, document: Document, kind: _Kind) -> None:
        self.document, self.kind = document, kind
        self.rows = [
            (re.compile(re.escape(name).replace(r"\*", r"[^.]+")), row)
            for row in kind.rows()
            for name in row.names.split()
        ]

    def findings(self, value: Any, path: Keys) -> Iterator[Finding]:
        """The findings of a field and of those below it."""
        name, line = ".".join(map(str, path)), _line(self.document, path)
        if path in self._read_elsewhere():
            return
        if path[-1:] == ("template",) and path[:2] == self.kind.pod[:2] and path != self.kind.pod:
            is_same = value == _at(self.document.data, self.kind.pod)
            why = "all workers are the same: " + ("those of the first replica" if is_same else "compare both")
            yield Finding(line, name, Kind.DONE if is_same else Kind.LOST, why)
            return
        row = self._row(path)
        inner = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        has_own = any(pattern.pattern.startswith(re.escape(name) + r"\.") for pattern, _ in self.rows)
        if row is not None and not (row.kind is not Kind.KEPT and has_own and inner):
            yield _found(row, line, name, value)
        elif inner:
            for key, each in inner:
                yield from self.findings(each, (*path, key))
        elif value not in (None, {}, []):
            above = next((each for end in range(len(path), 0, -1) if (each := self._row(path[:end]))), None)
            kind, why = (above.kind, above.done or above.lost) if above is not None else (Kind.LOST, _NO_KEY)
            yield Finding(line, name, kind, why)

    def _row(self, path: Keys) -> Option | None:
        name = ".".join(map(str, path))
        return next((row for pattern, row in self.rows if pattern.fullmatch(name)), None)

    def _read_elsewhere(self) -> list[Keys]:
        container, spec = self.kind.container, (*self.kind.pod, "spec")
        own = [(*container, key) for key in ("command", "args", "env", "envFrom", "volumeMounts")]
        return [*own, (*spec, "volumes"), ("spec", "entrypoint")]


def _found(row: Option, line: int, name: str, value: Any) -> Finding:
    if isinstance(value, dict | list) and row.kind is Kind.KEPT:
        return kept(line, name, {row.key: value})
    shown = f"{name}: {value}" if row.kind is Kind.KEPT else name
    return row.found(line, shown, name, str(value))


def _containers(document: Document, kind: _Kind) -> Iterator[Finding]:
    """The variables and the volumes of the container, and the pods of other replicas."""
    container, spec = _at(document.data, kind.container), _at(document.data, (*kind.pod, "spec"))
    for index, entry in enumerate(_list(container, "env")):
        line, name = _line(document, (*kind.container, "env", index)), str(_get(entry, "name"))
        secret = _at(entry, ("valueFrom", "secretKeyRef"))
        if isinstance(secret, dict):
            settings = {"kubernetes.secrets[]": str(secret.get("name"))}
            is_same = secret.get("key") == name
            meaning = "" if is_same else f"kubernetes.secrets; its key has to be named {name}"
            yield kept(line, f"{name} from a Secret", settings, meaning)
        elif _get(entry, "value") is None:
            yield lost(line, name, "write its value as env")
        else:
            yield variable(line, name, str(_get(entry, "value")))
    for index, entry in enumerate(_list(container, "envFrom")):
        line, name = _line(document, (*kind.container, "envFrom", index)), _at(entry, ("secretRef", "name"))
        if name:
            yield kept(line, f"envFrom: {name}", {"kubernetes.secrets[]": str(name)})
        else:
            yield lost(line, "envFrom", "write its values as env")
    mounts = {str(_get(mount, "name")): mount for mount in _list(container, "volumeMounts")}
    for index, volume in enumerate(_list(spec, "volumes")):
        yield _volume(_line(document, (*kind.pod, "spec", "volumes", index)), volume, mounts)


def _volume(line: int, volume: Any, mounts: dict[str, Any]) -> Finding:
    name = str(_get(volume, "name"))
    mount = mounts.get(name)
    folder = str(_get(mount, "mountPath")).rstrip("/")
    sources: dict[str, Keys] = {
        "claim": ("persistentVolumeClaim", "claimName"),
        "secret": ("secret", "secretName"),
        "config_map": ("configMap", "name"),
    }
    if isinstance(volume, dict) and "emptyDir" in volume:
        return Finding(line, f"volume {name}", Kind.DONE, "each pod has its own /dev/shm and /tmp")
    for key, path in sources.items():
        if (found := _at(volume, path)) and mount is not None and not _get(mount, "subPath"):
            entry: dict[str, object] = {"mount": folder, key: str(found)}
            entry |= {"read_only": True} if str(_get(mount, "readOnly")).lower() == "true" else {}
            return kept(line, f"volume {name} at {folder}", {"kubernetes.volumes[]": entry})
    return lost(line, f"volume {name}", "`kubernetes.volumes` mounts claims, Secrets and ConfigMaps")


def _command(document: Document, kind: _Kind, name: str, findings: Sequence[Finding]) -> list[Finding]:
    """The findings of the command of the container, or of the entrypoint of a RayJob."""
    container = _at(document.data, kind.container)
    key = next((each for each in ("command", "args") if _list(container, each)), "command")
    at: Keys = ("spec", "entrypoint") if name == "RayJob" else (*kind.container, key)
    line = _line(document, at)
    script = ShellScript(setup=False, cluster=True)
    script.findings += findings
    if name == "RayJob":
        return with_trainer(script.read(str(_at(document.data, at) or ""), line))
    words = [str(word) for each in ("command", "args") for word in _list(container, each)]
    command = launch_in(words, line, script.read)
    if command is None:
        why = "the program is in the image: write command: [python, train.py] into the manifest"
        return [Finding(line, " ".join(words) or "no command", Kind.UNKNOWN, why)]
    # Kubeflow sets PET_NPROC_PER_NODE to auto if no field says it: torchrun starts one process per GPU.
    is_default = any(("@default", 1) in finding.settings for finding in command)
    return [*command, *([kept(0, "", {"@default": "gpu"})] if is_default else [])]


def _at(data: Any, path: Keys) -> Any:
    for key in path:
        data = _get(data, key)
    return data


def _get(data: Any, key: str | int) -> Any:
    if isinstance(data, list) and isinstance(key, int) and key < len(data):
        return data[key]
    return data.get(key) if isinstance(data, dict) else None


def _list(data: Any, key: str) -> list[Any]:
    found = _get(data, key)
    return found if isinstance(found, list) else []


def _line(document: Document, path: Keys) -> int:
    return document.positions[document.nearest(path)][1].order[0]
