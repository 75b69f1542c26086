"""Nodes, processes, GPUs, CPUs and memory of a launch, as the other launcher counts them → `resources`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from clustertrain.migrate.finding import Finding, settings_of
from clustertrain.units import size_value


@dataclass(frozen=True)
class Shape:
    """What the file says about the size of the launch; a field without a value was not in the file.

    Attributes:
        launcher: a launcher starts the processes, one for each GPU; otherwise each task is a process.
        cluster: the file requests GPUs where there are some; otherwise a process of a launcher has one.
        per_node, processes: the processes on each node, and on all; `gpu` is as many as GPUs.
        default: the processes on each node, if no option says it.
        tasks, tasks_per_node: what srun and mpirun start: processes, or launchers of them.
    """

    nodes: Any = None
    launcher: bool = False
    cluster: bool = False
    cpu: bool = False
    per_node: Any = None
    default: Any = 1
    processes: Any = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    cpus_per_task: float | None = None
    cpus_per_node: float | None = None
    cpus_per_gpu: int | None = None
    memory_per_node: int | None = None
    memory_per_cpu: int | None = None
    memory_per_gpu: int | None = None

    @staticmethod
    def of(findings: Iterable[Finding]) -> Shape:
        names = {field.name for field in fields(Shape)}
        found = {key[1:]: value for key, value in settings_of(findings) if key.startswith("@")}
        if "min_processes" in found:
            found["processes"] = [found["min_processes"], found.get("processes", found["min_processes"])]
        return Shape(**{name: value for name, value in found.items() if name in names})  # type: ignore[arg-type]

    @property
    def most_nodes(self) -> int:
        if self.nodes is None and self.tasks and self.tasks_per_node:
            return max(1, self.tasks // self.tasks_per_node)
        return int(self.nodes[1] if isinstance(self.nodes, list) else self.nodes or 1)

    @property
    def node_tasks(self) -> int:
        """The tasks on each node."""
        return self.tasks_per_node or max(1, (self.tasks or 1) // self.most_nodes)

    @property
    def all_tasks(self) -> int:
        return self.tasks or self.node_tasks * self.most_nodes

    @property
    def node_gpus(self) -> int | None:
        """The GPUs of each node, if the file says how many."""
        if self.gpus_per_task:
            return self.gpus_per_task * self.node_tasks
        return self.gpus_per_node or (max(1, self.gpus // self.most_nodes) if self.gpus else None)

    @property
    def node_processes(self) -> int:
        """The workers on each node."""
        if not self.launcher:
            return self.node_tasks
        if self.processes:
            most = self.processes[-1] if isinstance(self.processes, list) else self.processes
            return max(1, int(most) // self.most_nodes)
        each = self.per_node or self.default
        return (self.node_gpus or 1) if each == "gpu" else int(each)

    @property
    def is_guess(self) -> bool:
        """Whether the launcher uses all GPUs of a machine, and the file does not say how many there are."""
        return (
            self.launcher
            and (self.per_node or self.default) == "gpu"
            and not self.processes
            and not self.node_gpus
        )

    @property
    def worker_gpus(self) -> int:
        if self.cpu or (self.node_gpus is None and (self.cluster or not self.launcher)):
            return 0
        return 1 if self.launcher else (self.node_gpus or 0) // self.node_processes

    def resources(self) -> dict[str, Any]:
        """The section `resources` of the job."""
        nodes, each, gpus = self.most_nodes, self.node_processes, self.worker_gpus
        found: dict[str, Any] = {}
        if nodes > 1:
            found["nodes"] = self.nodes or nodes
        if nodes > 1 and gpus == 1:
            found["gpus_per_node"] = each
        else:
            spread = isinstance(self.nodes, list)
            workers: Any = [bound * each for bound in self.nodes] if spread else nodes * each
            is_range = self.launcher and isinstance(self.processes, list) and nodes == 1
            found["workers"] = self.processes if is_range else workers
            found |= {"gpus_per_worker": gpus} if gpus else {}
        cpus = self._cpus()
        found |= {"cpus_per_worker": cpus} if cpus else {}
        memory = self._memory(cpus or 1, each, gpus)
        return found | ({"memory_per_worker": size_value(memory)} if memory else {})

    def _cpus(self) -> float | int | None:
        of_node = self.cpus_per_node or (self.cpus_per_task or 0) * self.node_tasks
        of_node = of_node or (self.cpus_per_gpu or 0) * (self.node_gpus or 0)
        cpus = round(of_node / self.node_processes, 2)
        return int(cpus) if cpus == int(cpus) else cpus

    def _memory(self, cpus: float, each: int, gpus: int) -> int:
        memory = (self.memory_per_node or 0) / each
        memory = memory or (self.memory_per_cpu or 0) * cpus or (self.memory_per_gpu or 0) * gpus
        return int(memory) // 2**20 * 2**20
