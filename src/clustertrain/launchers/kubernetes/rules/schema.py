"""A manifest against the schema of its CRD: as much of OpenAPI as CRDs use.

Types, required and unknown keys, enum, pattern, least and most, lengths, keys of lists. Rules in CEL
(x-kubernetes-validations) are among the others, by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from clustertrain.launchers.kubernetes.rules.finding import Finding, Place
from clustertrain.units import shortened

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (Mapping,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
}
# Of every object, and checked by the API server itself.
_OF_ALL = ("apiVersion", "kind", "metadata")
_LARGEST = {"int32": 2**31 - 1, "int64": 2**63 - 1}


def schema_of(manifest: Mapping[str, Any], crds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The schema of the manifest's kind and version, where one of the CRDs has it."""
    group, _, version = str(manifest.get("apiVersion", "")).rpartition("/")
    for crd in crds:
        spec = crd["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, manifest.get("kind")):
            for each in spec["versions"]:
                if each["name"] == version:
                    found: Mapping[str, Any] = each["schema"]["openAPIV3Schema"]
                    return found
    return None


def against_schema(manifest: Place, schema: Mapping[str, Any]) -> Iterator[Finding]:
    """What the API server would refuse of a whole object, or kubectl: unknown keys.

    The API server alone drops those silently.
    """
    for name, inner in schema.get("properties", {}).items():
        if name not in (*_OF_ALL, "status") and manifest.at(name).given:
            yield from _against(manifest.at(name), inner)
    yield from _unknown_keys(manifest, [*schema.get("properties", {}), *_OF_ALL])
    yield from _missing_keys(manifest, schema)


def _against(place: Place, schema: Mapping[str, Any]) -> Iterator[Finding]:
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(place.value, bool) or not isinstance(place.value, int | str):
            yield place.finding(f"is {place.shown}, and must be text or a whole number", _IN_QUOTES, "api")
        else:
            yield from _limits(place, {"pattern": schema["pattern"]} if "pattern" in schema else {})
    elif not _is_of(place.value, schema.get("type")):
        words = _WORDS[schema["type"]]
        remedy = _IN_QUOTES if schema["type"] == "string" else f"Write {words}."
        yield place.finding(f"is {place.shown}, and must be {words}", remedy, "api")
    else:
        yield from _limits(place, schema)
        yield from _below(place, schema)


_IN_QUOTES = "Write it in quotes."


def _is_of(value: object, name: str | None) -> bool:
    if name is None:
        return True
    if isinstance(value, bool) and name != "boolean":
        return False
    if name == "integer" and isinstance(value, float):  # JSON knows no difference between 1 and 1.0
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _below(place: Place, schema: Mapping[str, Any]) -> Iterator[Finding]:
    if isinstance(place.value, Mapping):
        known, more = schema.get("properties", {}), schema.get("additionalProperties")
        for key, inner in place.entries().items():
            if not inner.given:
                continue
            if key in known:
                yield from _against(inner, known[key])
            elif isinstance(more, Mapping):
                yield from _against(inner, more)
        if known and not more and not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield from _unknown_keys(place, known)
        yield from _missing_keys(place, schema)
    elif isinstance(place.value, list) and isinstance(inner_schema := schema.get("items"), Mapping):
        for item in place.items():
            yield from _against(item, inner_schema)
        yield from _same_twice(place, schema)


def _limits(place: Place, schema: Mapping[str, Any]) -> Iterator[Finding]:
    value = place.value
    if "enum" in schema and value not in schema["enum"]:
        near = get_close_matches(str(value), [str(each) for each in schema["enum"]], n=1)
        remedy = f"Did you mean '{near[0]}'?" if near else "Name one of them."
        yield place.finding(f"is {place.shown}, and must be {_listed(schema['enum'])}", remedy, "api")
    if "pattern" in schema and not re.search(schema["pattern"], str(value)):
        yield place.finding(f"is {place.shown}, which is {_not_of(schema['pattern'])}", _EXAMPLE, "api")
    if isinstance(value, int | float) and not isinstance(value, bool):
        least = schema.get("minimum")
        most = schema.get("maximum", _LARGEST.get(schema.get("format", "")))
        if least is not None and value < least:
            yield place.finding(f"is {value}, and must be at least {least}", f"Give {least} or more.", "api")
        if most is not None and value > most:
            yield place.finding(f"is {value}, and must be at most {most}", f"Give {most} or less.", "api")
    if isinstance(value, str | list):
        kind = "Length" if isinstance(value, str) else "Items"
        least, most = schema.get(f"min{kind}", 0), schema.get(f"max{kind}", len(value))
        if not least <= len(value) <= most:
            rule = f"at least {least}" if len(value) < least else f"at most {most}"
            yield place.finding(f"has {len(value)} of them, and needs {rule}", "Change their number.", "api")


_EXAMPLE = "Quantities are written as 4, 500m, 16Gi or 500M."


def _not_of(pattern: str) -> str:
    return "no quantity" if "[KMGTPE]i" in pattern else f"not of the form {shortened(pattern)}"


def _unknown_keys(place: Place, known: Mapping[str, Any] | Sequence[str]) -> Iterator[Finding]:
    for key, inner in place.entries().items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            yield inner.finding(
                "is a key that its CRD does not know: kubectl refuses it, the API server drops it",
                f"Did you mean '{near[0]}'?" if near else "Take it out, or update the operator and its CRDs.",
                "api",
            )


def _missing_keys(place: Place, schema: Mapping[str, Any]) -> Iterator[Finding]:
    for key in schema.get("required", []):
        has_default = "default" in schema.get("properties", {}).get(key, {})
        if not place.at(key).given and not has_default:
            yield place.at(key).finding("is missing", "It has no default: give it.", "api")


def _same_twice(place: Place, schema: Mapping[str, Any]) -> Iterator[Finding]:
    """The items of a list of type map are distinguished by some of their keys."""
    keys: list[str] = schema.get("x-kubernetes-list-map-keys", [])
    if schema.get("x-kubernetes-list-type") != "map":
        return
    known = schema["items"].get("properties", {})
    seen: list[list[Any]] = []
    for item in (each for each in place.items() if isinstance(each.value, Mapping)):
        mark = [item.value.get(key, known.get(key, {}).get("default")) for key in keys]
        if mark in seen:
            yield item.finding(
                f"has the same {' and '.join(keys)} as one before it", "Take one of them out.", "api"
            )
        seen.append(mark)


def _listed(values: Sequence[Any]) -> str:
    *first, last = (str(value) for value in values)
    return f"{', '.join(first)} or {last}" if first else last
