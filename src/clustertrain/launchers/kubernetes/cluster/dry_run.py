"""A dry run on the API server: it checks the objects of a run and stores none of them.

`kubectl apply` sends the objects of a file one after another. If the server refuses the third, two exist
already. So the same call runs first with --dry-run=server, which checks authorization, schema, admission and
quota for each object, with the schemas of the cluster's CRDs. It checks neither the rules of the operator
(render/rayjob_rules.py) nor the pods that the operator creates later (operator_pods.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from textwrap import shorten

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.cluster.job_keys import keys_sentence
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl, NotFound
from clustertrain.launchers.kubernetes.render.manifests import Manifest, to_json
from clustertrain.launchers.shell import CommandFailed, Unanswered

_APPLY = ("apply", "--server-side", "--dry-run=server", "--filename=-")
CREATE = ("create", "--dry-run=server", "--filename=-")
_TIMEOUT_S = 60.0
_SHOWN = 3
_RULE_LENGTH = 300

_NOISE = re.compile(r"Warning: |[IWE]\d{4} ")
# What kubectl prints before the rules of a refusal, and after conflicts. It has no JSON for errors.
_BEFORE = re.compile(
    r"^(error|Error from server( \(\w+\))?): "
    r'|^The \S+ ".*?" is invalid:|.*?failed to create typed patch object \([^)]*\): (errors:)?'
)
_AFTER_CONFLICTS = "\nPlease review"
_UNKNOWN = re.compile(r'unknown field "([^"]+)"')
_NO_DRY_RUN = re.compile(r'admission webhook "([^"]+)" does not support dry run')
_UNDECLARED = re.compile(r"(\S+): field not declared in schema")
_VALUE_OF_GO = re.compile(r"&(?:value\.valueUnstructured\{Value:|\{)(.*)\}")
_ONLY_A_TYPE = re.compile(r'Invalid value: "(?:object|array|string|boolean|number|integer)": ')
_BY_POLICY = re.compile(r"^.*?\bdenied (?:the )?request: ")
_FIELD_OF_SCHEMA = re.compile(r"^  (\w+)\t<", re.MULTILINE)
# The label of the operator's Deployment: of the Helm chart, and of the kustomization.
_OPERATORS = "app.kubernetes.io/name in (kuberay-operator, kuberay)"
# The newest field that clustertrain writes.
_NEWEST = "spec.preRunningDeadlineSeconds"
_UPDATE = (
    "Update the operator and its CRDs; Helm does not update CRDs: kubectl apply --server-side -k "
    "'https://github.com/ray-project/kuberay/ray-operator/config/crd?ref=VERSION'.\n"
    "Or leave the field out (start_deadline then has no effect): "
    "--set 'kubernetes.patches={spec: {preRunningDeadlineSeconds: null}}'"
)


def check_admission(objects: Sequence[Manifest], kubectl: Kubectl, *, replaced: bool = False) -> list[str]:
    """Have the API server check the objects before they are applied. Returns notes on what it did not check.

    Args:
        replaced: a RayJob of this name exists, and is deleted before the new one is applied. The new one is
            checked as a creation, since updates of a RayJob have other rules.

    Raises:
        Forbidden, Unanswered: as `Kubectl.__call__`.
        ClusterError: the server refuses an object. The message has its name, field, rule and remedy.
    """
    created = [each for each in objects if replaced and each["kind"] == "RayJob"]
    applied = [each for each in objects if each not in created]
    refused = refused_objects(kubectl, _APPLY, applied) + refused_objects(kubectl, CREATE, created)
    return error_or_notes(refused, kubectl)


def error_or_notes(refused: Sequence[tuple[Manifest, str]], kubectl: Kubectl) -> list[str]:
    """Notes on objects that were not checked; with a refusal, ClusterError.

    Args:
        refused: objects, each with kubectl's error message.
    """
    refusals: list[tuple[Manifest, str]] = []
    notes = []
    for manifest, message in refused:
        if webhook := _NO_DRY_RUN.search(message):
            notes.append(
                f"not all of {_named(manifest)} was checked: admission webhook {webhook[1]} does not "
                "support dry run, and decides when the object is applied"
            )
        else:
            refusals += ((manifest, rule) for rule in _broken_rules(message))
    if refusals:
        raise _to_error(refusals, kubectl)
    return notes


def refused_objects(
    kubectl: Kubectl, how: Sequence[str], objects: Sequence[Manifest]
) -> list[tuple[Manifest, str]]:
    """The objects that the server refuses, each with kubectl's error message.

    The message does not always name the object. So after a refusal the objects are sent one by one.
    """
    if not objects:
        return []
    try:
        kubectl(*how, input=to_json(objects), timeout_s=_TIMEOUT_S)
    except Unanswered:
        raise
    except ClusterError as error:
        if len(objects) > 1:
            return [each for one in objects for each in refused_objects(kubectl, how, [one])]
        if isinstance(error, NotFound):  # what the object names: a runtime class, a service account
            return [(objects[0], str(error).partition("\n")[0])]
        if not isinstance(error, CommandFailed):
            raise
        # The server checks last whether an object of this name exists: all other checks have passed.
        return [] if "(AlreadyExists)" in error.stderr else [(objects[0], error.stderr)]
    return []


# ------------------------------------------------------------------------------------- the server's messages


def _broken_rules(message: str) -> list[str]:
    """The rules that kubectl's message names, each with its field if there is one."""
    if unknown := _UNKNOWN.findall(message):
        return [f"{field}: field not declared in schema" for field in unknown]
    text = "\n".join(line for line in message.splitlines() if not _NOISE.match(line)).strip()
    lines = _BEFORE.sub("", text).partition(_AFTER_CONFLICTS)[0].splitlines()
    rules = [line.strip().removeprefix("* ").lstrip(".: ") for line in lines]  # a policy names no field
    found = [_tidied(rule) for rule in rules if rule and not rule.startswith("<nil>")]
    return found or [_tidied(message)]


def _tidied(rule: str) -> str:
    """The rule on one line, without the field's path, Go types, and values that only name a type."""
    field = rule.partition(":")[0]
    rule = _ONLY_A_TYPE.sub("", rule.replace(f"{field} in body ", ""))
    return shorten(_VALUE_OF_GO.sub(r"\1", rule), _RULE_LENGTH, placeholder=" …")


def _to_error(refusals: Sequence[tuple[Manifest, str]], kubectl: Kubectl) -> ClusterError:
    lines = [f"  {_named(manifest)}: {rule}" for manifest, rule in refusals[:_SHOWN]]
    if len(refusals) > _SHOWN:
        lines.append(f"  and {len(refusals) - _SHOWN} more.")
    head = "The API server refuses this, and nothing was applied:"
    return ClusterError("\n".join([head, *lines, _remedy(*refusals[0], kubectl)]))


def _remedy(manifest: Manifest, rule: str, kubectl: Kubectl) -> str:
    # The name of a policy or webhook does not count.
    keys = keys_sentence(f"{manifest['kind']}: {_BY_POLICY.sub('', rule)}")
    if manifest["kind"] == "Pod":
        return f"The operator could not create this pod. {keys}".rstrip()
    if (undeclared := _UNDECLARED.fullmatch(rule)) is None:
        remedy = "Correct it in the job file, or ask the cluster's administrator about the rule."
        return f"{remedy} {keys}".rstrip()
    if undeclared[1] == _NEWEST:
        return f"The field is new in KubeRay 1.6. {_installed(kubectl)}\n{_UPDATE}"
    path, _, name = re.sub(r"\[[^]]*\]", "", undeclared[1]).rpartition(".")
    if near := get_close_matches(name, _fields_of(manifest, path, kubectl), n=1):
        return f"Did you mean '{near[0]}'?"
    return (
        "It is misspelt, or newer than the cluster's CRDs: clustertrain needs those of KubeRay 1.6 or later. "
        f"{_installed(kubectl)}"
    )


def _fields_of(manifest: Manifest, path: str, kubectl: Kubectl) -> list[str]:
    """The field names at a path of the server's schema, or empty if the schema cannot be read."""
    named = f"{manifest['kind']}.{path}".rstrip(".")
    try:
        explained = kubectl("explain", named, f"--api-version={manifest['apiVersion']}")
    except ClusterError:
        return []
    return _FIELD_OF_SCHEMA.findall(explained.stdout)


def _named(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return f"{manifest['kind']} {metadata.get('name') or metadata.get('generateName')}"


def _installed(kubectl: Kubectl) -> str:
    """A sentence on the operators of the cluster, by their images; none is known if the account may not list
    Deployments."""
    try:
        found = [_described(each) for each in kubectl.list("deployments", _OPERATORS, "--all-namespaces")]
    except ClusterError:
        found = []
    if not found:
        return "The operator's version is unknown."
    return f"The cluster has the operator {' and '.join(found)}."


def _described(deployment: Manifest) -> str:
    metadata, pod = deployment["metadata"], deployment["spec"]["template"]["spec"]
    images = ", ".join(each["image"] for each in pod["containers"])
    return f"{images} (Deployment {metadata['name']} in namespace {metadata['namespace']})"
