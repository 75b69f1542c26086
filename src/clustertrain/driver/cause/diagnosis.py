"""What an error does not say itself: which limit of the node was reached, and who else is on the GPU.

These are pure functions over the message and these facts; the catalogue has everything else that an error
means.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from clustertrain.driver.cause.gpu_facts import Gpus, of_gpu, others_memory
from clustertrain.node.limits import Limits
from clustertrain.node.memory_kill import kill_for_memory
from clustertrain.node.units import size_text
from clustertrain.observe.explain.catalogue import KnownError, RunKind, by_name, unchanged
from clustertrain.observe.explain.first_cause import FoundError, known

RETRY_AFTER_S = 30.0  # what another process needs to end, and CUDA to free its memory
_AGAIN = f"The workers are started again after {RETRY_AFTER_S:g} s."
_ONLY_IN_LOG = ("shm_too_small", "nccl_shm")  # a loader process, and NCCL, write them only there
_CHILD_KILLED = "killed by signal: Killed"
_RAYS_KILL = re.compile(r"killed due to the node running low on memory[^\n]*(?:\nOOM kill reason: [^\n]*)?")
_RAYS = "Ray kills workers before the node's memory is used up, at RAY_memory_usage_threshold."
_LINE_CHARACTERS = 400  # torch's begins with what was requested, and what is free


@dataclass(frozen=True)
class Diagnosis:
    """An entry of the catalogue, and the message with what is known of the node.

    Another start can help if `retry_after_s` is a number, after this time; on another node, if `of_hardware`.
    """

    entry: KnownError
    text: str
    retry_after_s: float | None = None
    of_hardware: bool = False


@dataclass(frozen=True)
class NodeFacts:
    """The node of a worker, and what runs there.

    Attributes:
        before: its limits when the workers started.
        now: the same after the failure, or None if unknown.
        gpus: the GPUs of the worker after its failure.
    """

    before: Limits
    now: Limits | None = None
    gpus: Gpus = field(default_factory=Gpus)
    where: RunKind = field(default_factory=RunKind)

    @property
    def limits(self) -> Limits:
        """The newest limits of the node, with the limits of the process from `before`.

        Another process may have read `now`.
        """
        if self.now is None:
            return self.before
        own = (self.before.open_files, self.before.open_files_most, self.before.address_space_bytes)
        return replace(self.now, open_files=own[0], open_files_most=own[1], address_space_bytes=own[2])


def diagnose(
    who: str, message: str, node: NodeFacts, *, tail: str = "", killed: bool = False
) -> Diagnosis | None:
    """Return the limit that a worker reached, or what ended it on its GPU; None without evidence for either.

    Args:
        who: "rank 1 (pid 4711 on node7)".
        message: the exception as "Type: text"; for a dead process, Ray's error and its last output.
        tail: the end of the rank's log.
        killed: whether it died of SIGKILL, which every out-of-memory killer sends.
    """
    if (match := _RAYS_KILL.search(message)) is not None:
        return _of_limit("memory_limit", f"{who} was {match[0].strip()}\n{_RAYS}", node)
    if killed or _CHILD_KILLED in message:
        kill = kill_for_memory(who, node.before, node.now)
        return None if kill is None else _of_limit("memory_limit", kill, node)
    hits = known(message) + [hit for hit in known(tail) if hit.entry.name in _ONLY_IN_LOG]
    for hit in sorted(hits, key=lambda hit: hit.entry.level):
        name = hit.entry.name
        if name == "cuda_out_of_memory" and (others := others_memory(message, node.gpus)) is not None:
            text = f"{who}: {others}\n{_AGAIN} End that process, or use another GPU."
            return Diagnosis(hit.entry, text, RETRY_AFTER_S)
        if hit.entry.ends_as in ("out_of_memory", "limit") and name != "memory_limit":  # counters show that
            facts = _FACTS[name](node.limits) if name in _FACTS else ""
            line = hit.line[:_LINE_CHARACTERS]
            return _of_limit(name, f"{who}: {line}\n{hit.entry.cause} {facts}".rstrip(), node)
        if hit.entry.ends_as == "gpu":
            return _of_gpu(who, hit, node)
    return None


def _of_limit(name: str, what: str, node: NodeFacts) -> Diagnosis:
    return Diagnosis(by_name()[name], unchanged(what, by_name()[name], node.where))


def _of_gpu(who: str, hit: FoundError, node: NodeFacts) -> Diagnosis:
    passes = hit.entry.retry == "always"  # the driver may have retired broken memory when the process ended
    change = hit.entry.change_for(node.where, node.gpus.host)
    text = f"{who}: {of_gpu(hit, node.gpus)}\n{_AGAIN if passes else 'If it fails again:'} {change}"
    is_broken = hit.entry.name != "gpu_busy"
    return Diagnosis(hit.entry, text, RETRY_AFTER_S if passes else 0.0, of_hardware=is_broken)


# ------------------------------------------------------------- what the node says of an entry


def _memory(limits: Limits) -> str:
    parts = []
    if limits.memory_bytes and limits.available_bytes is not None:
        parts.append(
            f"the machine has {size_text(limits.memory_bytes)}, {size_text(limits.available_bytes)} available"
        )
    for cgroup in limits.cgroups:
        if cgroup.limit_bytes is not None:
            parts.append(f"{cgroup.path} allows {size_text(cgroup.limit_bytes)} ({cgroup.limit_file})")
    if limits.address_space_bytes is not None:
        parts.append(f"RLIMIT_AS (ulimit -v) allows {size_text(limits.address_space_bytes)}")
    return f"Memory: {'; '.join(parts) or 'unknown'}."


def _shm(limits: Limits) -> str:
    if limits.shm_bytes is None or limits.shm_used_bytes is None:
        return "The size of /dev/shm is unknown."
    used = size_text(limits.shm_used_bytes)
    return f"/dev/shm has {size_text(limits.shm_bytes)}, {used} of it in use now."


def _files(limits: Limits) -> str:
    return f"RLIMIT_NOFILE is {limits.open_files}, and may be raised to {limits.open_files_most}."


_FACTS: dict[str, Callable[[Limits], str]] = {
    "no_memory": _memory,
    "shm_too_small": _shm,
    "nccl_shm": _shm,
    "open_files": _files,
}
