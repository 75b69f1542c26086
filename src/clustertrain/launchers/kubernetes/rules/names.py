"""The syntax of names, labels and quantities in Kubernetes. A rule returns what is wrong, or None.

In the API server the rules are Go code. No Python library has them: Kubernetes' Python client does not check
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from clustertrain.launchers.kubernetes.rules.finding import By, Field, Finding, texts

LONGEST_LABEL = 63
LONGEST_SUBDOMAIN = 253
ANNOTATIONS_BYTES = 256 * 1024

_LABEL_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30}))"
    r"((?P<unit>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d{1,3}))?",
    re.ASCII,
)
_UNITS = {
    **{unit: Decimal(10) ** power for power, unit in zip((-9, -6, -3), "num", strict=True)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}

LOWER_CASE = "use lower-case letters, digits and '-'"


def label_1123(name: str) -> str | None:
    """The rule for names of namespaces, containers and volumes."""
    if len(name) > LONGEST_LABEL:
        return f"has {len(name)} characters, and at most {LONGEST_LABEL} are allowed"
    if not _LABEL_1123.fullmatch(name):
        return "must be lower-case letters, digits and '-', with a letter or digit at both ends"
    return None


def label_1035(name: str) -> str | None:
    """The rule for names of RayJobs and RayClusters, since services are named after them."""
    if not _LABEL_1035.fullmatch(name):
        return "must be lower-case letters, digits and '-', with a letter first and no '-' at the end"
    return None


def subdomain(name: str) -> str | None:
    """The rule for names of most objects."""
    if len(name) > LONGEST_SUBDOMAIN:
        return f"has {len(name)} characters, and at most {LONGEST_SUBDOMAIN} are allowed"
    if not _SUBDOMAIN.fullmatch(name):
        return "must be lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
    return None


def qualified(key: str) -> str | None:
    """The rule for keys of labels: a name, or a domain, '/' and a name."""
    domain, slash, name = key.rpartition("/")
    if slash and (subdomain(domain) or len(domain) > LONGEST_SUBDOMAIN):
        return "must have a lower-case domain before the '/'"
    if not name or len(name) > LONGEST_LABEL:
        return f"has {len(name)} characters in its name, and 1 to {LONGEST_LABEL} are allowed"
    if not _QUALIFIED.fullmatch(name):
        return "must be letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    return None


def label_value(value: str) -> str | None:
    if len(value) > LONGEST_LABEL:
        return f"has {len(value)} characters, and at most {LONGEST_LABEL} are allowed"
    if value and not _QUALIFIED.fullmatch(value):
        return "must be letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    return None


def port_name(name: str) -> str | None:
    if len(name) > 15 or not _PORT_NAME.fullmatch(name):
        return "must be at most 15 lower-case letters, digits and single '-', with a letter among them"
    return None


def quantity(value: object) -> Decimal | None:
    """The number of a quantity such as 500m, 16Gi or 4; None if the value is not a quantity."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if not match:
        return None
    if match["exponent"]:
        return Decimal(match["number"]).scaleb(int(match["exponent"]))
    return Decimal(match["number"]) * _UNITS.get(match["unit"], Decimal(1))


def metadata(field: Field, by: By = "api") -> Iterator[Finding]:
    """Labels and annotations of an object or a pod template."""
    yield from labels(field.at("labels"), by)
    annotations = field.at("annotations")
    yield from texts(annotations)
    for key, entry in annotations.entries().items():
        if problem := qualified(key.lower()):
            yield entry.finding(f"is an annotation whose key {problem}", "Change the key.", by)
    size = sum(len(key) + len(entry.text.encode()) for key, entry in annotations.entries().items())
    if size > ANNOTATIONS_BYTES:
        yield annotations.finding(
            f"have {size} bytes together, and at most {ANNOTATIONS_BYTES} are allowed",
            "Put long values into a ConfigMap.",
            by,
        )


def labels(field: Field, by: By = "api") -> Iterator[Finding]:
    yield from texts(field)
    for key, entry in field.entries().items():
        if problem := qualified(key):
            yield entry.finding(f"is a label whose key {problem}", "Change the key.", by)
        if problem := label_value(entry.text):
            yield entry.finding(f"is {entry.shown}, and a label {problem}", "Change the value.", by)


def selector(field: Field) -> Iterator[Finding]:
    """The label selector of a policy or a budget."""
    yield from labels(field.at("matchLabels"))
    for each in field.at("matchExpressions").items():
        operator, values = each.at("operator"), each.at("values")
        if problem := qualified(each.at("key").text):
            yield each.at("key").finding(
                f"is {each.at('key').shown}, and a key {problem}", "Name one.", "api"
            )
        if operator.text not in ("In", "NotIn", "Exists", "DoesNotExist"):
            yield operator.finding(
                f"is {operator.shown}, and must be In, NotIn, Exists or DoesNotExist", "Name one.", "api"
            )
        elif operator.text in ("In", "NotIn") and not values.items():
            yield values.finding(f"are missing, and {operator.text} needs them", "Give at least one.", "api")
        elif operator.text.endswith(("Exists", "Exist")) and values.items():
            yield values.finding(f"are given, and {operator.text} takes no values", "Leave them out.", "api")
        for value in values.items():
            if problem := label_value(value.text):
                yield value.finding(f"is {value.shown}, and a label {problem}", "Change the value.", "api")
