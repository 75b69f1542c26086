"""Requests and limits of containers. Devices and huge pages cannot be overcommitted: both must be equal."""

from __future__ import annotations

from collections.abc import Iterator

from clustertrain.launchers.kubernetes.rules.finding import Field, Finding
from clustertrain.launchers.kubernetes.rules.names import quantity

# The resources without a domain that a container may request. Others have one, such as nvidia.com/gpu.
_OWN_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES = "hugepages-"


def resources(field: Field) -> Iterator[Finding]:
    """Requests and limits of a container."""
    limits, requests = field.at("limits").entries(), field.at("requests").entries()
    both = [*limits.items(), *requests.items()]
    for name, amount in both:
        yield from not_negative(amount)
        if "/" not in name and name not in _OWN_RESOURCES and not name.startswith(_HUGE_PAGES):
            yield amount.finding(
                f"is a resource without a domain, and only {', '.join(_OWN_RESOURCES)} have none",
                "GPUs are nvidia.com/gpu or amd.com/gpu: `kubectl describe nodes` lists the resources.",
                "pods",
            )
    for name, requested in requests.items():
        yield from _limited(name, requested, limits.get(name))
    for name, amount in both:
        number = quantity(amount.value)
        if "/" in name and number is not None and number != int(number):
            yield amount.finding(f"is {amount.shown}, and must be a whole number", "Give 1 or more.", "pods")
        if name.startswith(_HUGE_PAGES):
            yield from _whole_pages(name, amount)
    if any(name.startswith(_HUGE_PAGES) for name, _ in both) and not {"cpu", "memory"} & dict(both).keys():
        message = "has huge pages, and neither cpu nor memory"
        yield field.finding(message, "Give a request of cpu or memory as well.", "pods")


def _limited(name: str, requested: Field, limit: Field | None) -> Iterator[Finding]:
    """A request is at most the limit; of what cannot be overcommitted, it is equal."""
    least, most = quantity(requested.value), None if limit is None else quantity(limit.value)
    if least is None:
        return
    is_strict = "/" in name or name.startswith(_HUGE_PAGES)
    kind = "huge pages" if name.startswith(_HUGE_PAGES) else "an extended resource"
    if limit is None:
        if is_strict:
            message = f"is requested without a limit, and {kind} must have both"
            yield requested.finding(message, f"Give limits['{name}'] the same number.", "pods")
    elif most is not None and least > most:
        message = f"is {requested.shown}, more than limits.{name}, which is {limit.shown}"
        yield requested.finding(message, "Raise the limit, or request less.", "pods")
    elif most is not None and least < most and is_strict:
        message = f"is {requested.shown}, and the limit is {limit.shown}: for {kind} they must be equal"
        yield requested.finding(message, "Leave the request out.", "pods")


def _whole_pages(name: str, amount: Field) -> Iterator[Finding]:
    page, size = quantity(name.removeprefix(_HUGE_PAGES)), quantity(amount.value)
    if page is None or page <= 0 or page != int(page):
        message = "names no size of a page"
        yield amount.finding(message, f"Write {_HUGE_PAGES}2Mi or {_HUGE_PAGES}1Gi.", "pods")
    elif size is not None and size % page:
        message = f"is {amount.shown}, which is no multiple of a page of {name.removeprefix(_HUGE_PAGES)}"
        yield amount.finding(message, "Round it up to whole pages.", "pods")


def not_negative(amount: Field) -> Iterator[Finding]:
    number = quantity(amount.value)
    if number is None:
        remedy = "Quantities are written as 4, 500m, 16Gi or 500M; write 0.5 in quotes."
        yield amount.finding(f"is {amount.shown}, which is not a quantity", remedy, "api")
    elif number < 0:
        yield amount.finding(f"is {amount.shown}, and must not be negative", "Give 0 or more.", "pods")
