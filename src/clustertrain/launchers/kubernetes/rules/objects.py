"""Rules of the API server for the other objects of a run: ConfigMap, NetworkPolicy, claim, budget."""

from __future__ import annotations

import binascii
import ipaddress
import re
from base64 import b64decode
from collections.abc import Iterator

from clustertrain.launchers.kubernetes.rules.finding import Field, Finding, texts
from clustertrain.launchers.kubernetes.rules.names import (
    LONGEST_SUBDOMAIN,
    port_name,
    quantity,
    selector,
    subdomain,
)

LARGEST_CONFIG_MAP_BYTES = 1024 * 1024
_ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_DIRECTIONS = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}


def config_map(field: Field) -> Iterator[Finding]:
    """A ConfigMap or a Secret. A Secret has text in `stringData` and base64 in `data`."""
    is_secret = field.what.startswith("Secret")
    plain, coded = (
        (field.at("stringData"), field.at("data"))
        if is_secret
        else (
            field.at("data"),
            field.at("binaryData"),
        )
    )
    yield from texts(plain)
    yield from texts(coded)
    size = 0
    for key, entry in [*plain.entries().items(), *coded.entries().items()]:
        if not re.fullmatch(r"[-._a-zA-Z0-9]+", key) or len(key) > LONGEST_SUBDOMAIN or key in (".", ".."):
            rule = f"1 to {LONGEST_SUBDOMAIN} letters, digits, '-', '_' and '.'"
            yield entry.finding(f"is not a valid key: it must have {rule}", "Rename it.", "api")
        size += len(key)
    for entry in coded.entries().values():
        try:
            size += len(b64decode(entry.text.replace("\n", "").encode(), validate=True))
        except (binascii.Error, ValueError):
            yield entry.finding("is not base64", f"Encode it, or use {plain.path} for text.", "api")
    size += sum(len(entry.text.encode()) for entry in plain.entries().values())
    if size > LARGEST_CONFIG_MAP_BYTES:
        message = f"has {size} bytes, and at most {LARGEST_CONFIG_MAP_BYTES} = 1 MiB are allowed"
        yield field.finding(message, "Put the bytes on the storage, or into the image.", "api")
    for key in () if is_secret else sorted({*plain.entries()} & {*coded.entries()}):
        yield coded.at(key).finding("is also a key of data", "Rename one of them.", "api")


def network_policy(field: Field) -> Iterator[Finding]:
    """A NetworkPolicy: its selectors, directions, ports and peers."""
    spec = field.at("spec")
    yield from selector(spec.at("podSelector"))
    types = [each.text for each in spec.at("policyTypes").items()]
    for each in spec.at("policyTypes").items():
        if each.text not in _DIRECTIONS:
            yield each.finding(f"is {each.shown}, and must be Ingress or Egress", "Name one of them.", "api")
    if len(types) > len(_DIRECTIONS):
        yield spec.at("policyTypes").finding("has more than two items", "Name each once.", "api")
    for name, (rules, peers) in _DIRECTIONS.items():
        if types and {*types} <= {*_DIRECTIONS} and name not in types and spec.at(rules).items():
            message = f"is given while policyTypes has no {name}: its rules have no effect"
            yield spec.at(rules).finding(message, f"Add {name} to policyTypes.", "nobody")
        for rule in spec.at(rules).items():
            for port in rule.at("ports").items():
                yield from _port(port)
            for peer in rule.at(peers).items():
                yield from _peer(peer)


def _port(field: Field) -> Iterator[Finding]:
    protocol, port, end = field.at("protocol"), field.at("port"), field.at("endPort")
    if protocol.is_set and protocol.text not in _PROTOCOLS:
        message = f"is {protocol.shown}, and must be {', '.join(_PROTOCOLS)}"
        yield protocol.finding(message, "Name one of them.", "api")
    if port.text and (problem := port_name(port.text)):
        remedy = "A number is written without quotes." if port.text.isdigit() else "Name a port of the pods."
        yield port.finding(f"is {port.shown}, and the name of a port {problem}", remedy, "api")
    for number in (port, end):
        if number.number is not None and not 1 <= number.number <= 65535:
            yield number.finding(f"is {number.number}, and a port is 1 to 65535", "Change it.", "api")
    if end.number is not None and port.number is None:
        yield end.finding("is given without a number in port", "Give the first port of the range.", "api")
    elif end.number is not None and port.number is not None and end.number < port.number:
        message = f"is {end.number}, less than port, which is {port.number}"
        yield end.finding(message, "Give the last port of the range.", "api")


def _peer(peer: Field) -> Iterator[Finding]:
    block = peer.at("ipBlock")
    given = [key for key in ("podSelector", "namespaceSelector", "ipBlock") if peer.at(key).is_set]
    if not given:
        yield peer.finding("names no peer", "Give podSelector: {} for all pods of the namespace.", "api")
    elif block.is_set and len(given) > 1:
        yield peer.finding(f"has {' and '.join(given)}", "Give ipBlock a separate entry.", "api")
    yield from selector(peer.at("podSelector"))
    yield from selector(peer.at("namespaceSelector"))
    if not block.is_set:
        return
    whole = _network(block.at("cidr"))
    if whole is None:
        yield block.at("cidr").finding(f"is {block.at('cidr').shown}, and {_CIDR}", "Correct it.", "api")
    for each in block.at("except").items():
        inner = _network(each)
        if inner is None:
            yield each.finding(f"is {each.shown}, and {_CIDR}", "Correct it.", "api")
        elif whole and not (inner.version == whole.version and _is_inside(inner, whole)):
            message = f"is {each.shown}, which is not a part of {block.at('cidr').shown}"
            yield each.finding(message, "Name a part of it.", "api")


_CIDR = "must be a network such as 10.0.0.0/8 or fd00::/8"
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(field: Field) -> _Network | None:
    if not re.fullmatch(r"[0-9a-fA-F.:]+/\d{1,3}", field.text):
        return None
    try:
        return ipaddress.ip_network(field.text, strict=False)
    except ValueError:
        return None


def _is_inside(inner: _Network, whole: _Network) -> bool:
    return inner.prefixlen > whole.prefixlen and inner.network_address in whole


def volume_claim(field: Field) -> Iterator[Finding]:
    spec = field.at("spec")
    modes, size, name = (
        spec.at("accessModes"),
        spec.at("resources", "requests", "storage"),
        "storageClassName",
    )
    if not modes.items():
        yield modes.finding("is missing", "Give [ReadWriteMany]: pods on several nodes write to it.", "api")
    for mode in modes.items():
        if mode.text not in _ACCESS_MODES:
            message = f"is {mode.shown}, and must be one of {', '.join(_ACCESS_MODES)}"
            yield mode.finding(message, "Name one of them.", "api")
    # Other than in a CRD, a quantity may be a number with a fraction.
    requested = quantity(str(size.value) if isinstance(size.value, float) else size.value)
    if requested is None or requested <= 0:
        message = f"is {size.shown if size.is_set else 'missing'}, and must be a size above 0"
        yield size.finding(message, "Give a size such as 100Gi.", "api")
    if spec.at(name).text and (problem := subdomain(spec.at(name).text)):
        message = f"is {spec.at(name).shown}, and the name of a class {problem}"
        yield spec.at(name).finding(message, "`kubectl get storageclasses` lists them.", "api")


def disruption_budget(field: Field) -> Iterator[Finding]:
    spec = field.at("spec")
    yield from selector(spec.at("selector"))
    if spec.at("minAvailable").is_set and spec.at("maxUnavailable").is_set:
        yield spec.finding("has both minAvailable and maxUnavailable", "Leave one of them out.", "api")
    for key in ("minAvailable", "maxUnavailable"):
        amount = spec.at(key)
        if (amount.number or 0) < 0 or (amount.text and not re.fullmatch(r"\d+%", amount.text)):
            message = f"is {amount.shown}, and must be a number from 0 or a percentage"
            yield amount.finding(message, "Give a value such as 1 or '50%'.", "api")
