"""Rules for a RayJob's deletionStrategy: what is deleted, when, and after which end of the job."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from clustertrain.launchers.kubernetes.rules.finding import By, Field, Finding
from clustertrain.launchers.kubernetes.rules.raycluster import is_autoscaling

# Sorted by how much they delete. A policy that deletes more may not come before one that deletes less.
_ORDER = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")
_POLICIES = (*_ORDER, "DeleteNone")
_STATES = {"jobStatus": ("SUCCEEDED", "FAILED"), "jobDeploymentStatus": ("Failed",)}
_EITHER = "Give the policies under onSuccess and onFailure, or a list of deletionRules."


def deletion(spec: Field) -> Iterator[Finding]:
    """All rules for the deletionStrategy. `spec` is that of a RayJob."""
    strategy = spec.at("deletionStrategy")
    success, failure, rules = (strategy.at(key) for key in ("onSuccess", "onFailure", "deletionRules"))
    if not strategy.is_set:
        return
    if (success.is_set or failure.is_set) and rules.is_set:
        message = "has both deletionRules and onSuccess or onFailure"
        yield strategy.finding(message, "Leave one of the two out.", "api")
    elif not rules.is_set and not (success.is_set and failure.is_set):
        yield strategy.finding("must have onSuccess and onFailure, or deletionRules", _EITHER, "api")
    elif rules.is_set and not rules.items():
        yield rules.finding("has no rule, and must have one", _EITHER, "api")
    if rules.items() and spec.at("shutdownAfterJobFinishes").is_true:
        message = "are given while shutdownAfterJobFinishes is true"
        yield rules.finding(message, "Take shutdownAfterJobFinishes and its TTL out, or the rules.")
    for end in (success, failure):
        if end.is_set:
            yield from _policy(end.at("policy"), spec)
    for rule in rules.items():
        yield from _policy(rule.at("policy"), spec)
        yield from _condition(rule.at("condition"))
    yield from _order(rules)


def _policy(policy: Field, spec: Field) -> Iterator[Finding]:
    selector = spec.at("clusterSelector").entries()
    is_a_rule = "deletionRules" in policy.path
    if policy.text not in _POLICIES:
        message = f"is {policy.shown}, and must be one of {', '.join(_POLICIES)}"
        by: By = "api" if policy.is_set or is_a_rule else "operator"
        yield policy.finding(message, "Name one of them.", by)
    elif selector and policy.text in ("DeleteWorkers", "DeleteCluster"):
        message = f"is {policy.text}, and the cluster of a clusterSelector is not deleted with the job"
        yield policy.finding(message, "Use DeleteSelf or DeleteNone.")
    elif policy.text == "DeleteWorkers" and is_autoscaling(spec.at("rayClusterSpec")):
        yield policy.finding("is DeleteWorkers while the autoscaler is on", "Use DeleteCluster.")
    elif policy.text == "DeleteNone" and spec.at("shutdownAfterJobFinishes").is_true and not is_a_rule:
        message = "is DeleteNone while shutdownAfterJobFinishes is true"
        yield policy.finding(message, "Take shutdownAfterJobFinishes out, or use DeleteCluster.")


def _condition(condition: Field) -> Iterator[Finding]:
    given = [key for key in _STATES if condition.at(key).is_set]
    if len(given) != 1:
        message = (
            f"has {' and '.join(given) or 'neither jobStatus nor jobDeploymentStatus'}, and must have one"
        )
        yield condition.finding(message, "Give jobStatus: SUCCEEDED, for example.", "api")
    for key in given:
        state = condition.at(key)
        if state.text not in _STATES[key]:
            rule = " or ".join(_STATES[key])
            yield state.finding(f"is {state.shown}, and must be {rule}", "Change it.", "api")
    ttl = condition.at("ttlSeconds")
    if (ttl.number or 0) < 0:
        yield ttl.finding(f"is {ttl.number}, and must not be negative", "Give seconds.", "api")


def _order(rules: Field) -> Iterator[Finding]:
    """For each end of the job: every policy at most once, and sorted by how much they delete."""
    found: dict[tuple[str, str], dict[str, Field]] = {}
    for rule in rules.items():
        condition, policy = rule.at("condition"), rule.at("policy").text
        key = next((key for key in _STATES if condition.at(key).is_set), "")
        of_end = found.setdefault((key, condition.at(key).text), {})
        if policy in of_end:
            message = f"is a second {policy} for {condition.at(key).text}"
            yield rule.finding(message, "Take one of them out.")
        of_end.setdefault(policy, condition.at("ttlSeconds"))
    for (_, end), ttls in found.items():
        steps = [(policy, ttls[policy]) for policy in _ORDER if policy in ttls]
        for (less, first), (more, then) in pairwise(steps):
            if (then.number or 0) < (first.number or 0):
                message = (
                    f"is {then.number or 0} for {more} after {end}, less than {first.number or 0} for {less}"
                )
                yield then.finding(message, f"Give {first.number} or more.")
