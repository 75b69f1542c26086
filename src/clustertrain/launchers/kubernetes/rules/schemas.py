"""The published schemas of Kubernetes' own kinds: misspelt fields, missing fields and wrong types.

The optional package kubernetes-validate contains them, by version (the extra `kubernetes`; 111 MB). Pod
templates in Ray's kinds have the same schema. Values, such as names and quantities, are not in a schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from clustertrain.launchers.kubernetes.rules.finding import Field, Finding

VERSION = "1.34"
_POD_TEMPLATE, _METADATA = ("", "v1", "PodTemplateSpec"), ("", "v1", "ObjectMeta")
# Fields that the schema requires, and to which the API server gives a default.
_DEFAULTS = {"roleRef": ("apiGroup",)}
_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}


@dataclass(frozen=True)
class Schemas:
    """The schemas of one version of Kubernetes. `places`: the one of each group, version and kind."""

    version: str
    registry: Any
    places: Mapping[tuple[str, str, str], str]

    def validator(self, group: str, version: str, kind: str) -> Any:
        """The validator of a kind; None if this version of Kubernetes does not have it."""
        from jsonschema import Draft202012Validator

        place = self.places.get((group, version, kind))
        return None if place is None else Draft202012Validator({"$ref": place}, registry=self.registry)


def versions() -> list[str]:
    """The versions of which the package has the schemas; none if it is not installed."""
    try:
        folder = files("kubernetes_validate").joinpath("kubernetes-json-schema")
    except ModuleNotFoundError:
        return []
    found = (re.fullmatch(r"v(\d+\.\d+)\.0-local-strict", each.name) for each in folder.iterdir())
    return sorted((each[1] for each in found if each), key=lambda text: int(text.partition(".")[2]))


@cache
def schemas_of(version: str = VERSION) -> Schemas | None:
    """The schemas of a version such as 1.34; None if the package does not have them, or is not installed."""
    try:
        folder = files("kubernetes_validate").joinpath("kubernetes-json-schema")
    except ModuleNotFoundError:
        return None
    file = folder.joinpath(f"v{version}.0-local-strict", "_definitions.json")
    if not file.is_file():
        return None
    from referencing import Registry, Resource

    content = json.loads(file.read_text())
    registry: Any = Resource.from_contents(content) @ Registry()
    start = f"{content['$id']}#/$defs"
    places = {
        _POD_TEMPLATE: f"{start}/io.k8s.api.core.v1.PodTemplateSpec",
        _METADATA: f"{start}/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
    }
    for name, definition in content["$defs"].items():
        for each in definition.get("x-kubernetes-group-version-kind", ()):
            places[each["group"], each["version"], each["kind"]] = f"{start}/{name}"
    return Schemas(version, registry, places)


def built_in(field: Field, schemas: Schemas) -> Iterator[Finding]:
    """The findings in an object of Kubernetes' own kinds; none in an object of another group."""
    group, _, version = field.at("apiVersion").text.rpartition("/")
    kind = field.at("kind")
    validator = schemas.validator(group, version, kind.text)
    if validator is not None:
        yield from _findings(field, validator)
    elif kind.text and version and group in {of for of, _, _ in schemas.places}:
        there = sorted({name for of, at, name in schemas.places if (of, at) == (group, version)})
        where = f"{field.at('apiVersion').text} of Kubernetes {schemas.version}"
        message = f"is {kind.shown}, and {where} has no such kind"
        elsewhere = [f"{of}/{at}".strip("/") for of, at, name in schemas.places if name == kind.text]
        near = get_close_matches(kind.text, there, n=1)
        remedy = (
            f"It is in {', '.join(elsewhere)}." if elsewhere else "`kubectl api-resources` lists the kinds."
        )
        yield kind.finding(message, f"Did you mean '{near[0]}'?" if near else remedy, "api")


def of_ray(manifest: Field, schemas: Schemas) -> Iterator[Finding]:
    """The findings in the metadata and the pod templates of a RayJob or a RayCluster."""
    yield from _findings(manifest.at("metadata"), schemas.validator(*_METADATA))
    spec = manifest.at("spec")
    cluster = spec.at("rayClusterSpec") if spec.at("rayClusterSpec").is_set else spec
    groups = (cluster.at("headGroupSpec"), *cluster.at("workerGroupSpecs").items())
    for template in (*(group.at("template") for group in groups), spec.at("submitterPodTemplate")):
        if template.is_set:
            yield from _findings(template, schemas.validator(*_POD_TEMPLATE))


def _findings(field: Field, validator: Any) -> Iterator[Finding]:
    for error in validator.iter_errors(field.value):
        yield from _of_error(field.along(error.absolute_path), error)


def _of_error(field: Field, error: Any) -> Iterator[Finding]:
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        for key in sorted({*field.entries()} - {*known}):
            near = get_close_matches(key, known, n=1)
            remedy = f"Did you mean '{near[0]}'?" if near else "Correct its name, or take it out."
            yield field.at(key).finding("is not a field of Kubernetes", remedy, "api")
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in (*field.entries(), *_DEFAULTS.get(field.path, ())):
                yield field.at(key).finding("is missing", "Give it.", "api")
    elif error.validator in ("type", "oneOf"):
        expected = _expected(error.schema)
        remedy = "Write it in quotes." if expected.startswith("text") and _is_scalar(field) else "Correct it."
        yield field.finding(f"is {field.shown}, and must be {expected}", remedy, "api")
    else:
        yield field.finding(f"is {field.shown}, which the schema does not allow", "Correct it.", "api")


def _expected(schema: Mapping[str, Any]) -> str:
    types: list[str] = []
    for each in (schema, *schema.get("oneOf", ())):
        named = each.get("type", ())
        types += [named] if isinstance(named, str) else named
    return " or ".join(_TYPES[each] for each in dict.fromkeys(types) if each in _TYPES) or "of another type"


def _is_scalar(field: Field) -> bool:
    return isinstance(field.value, bool | int | float)
