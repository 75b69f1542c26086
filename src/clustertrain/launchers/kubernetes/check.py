"""`check --to kubernetes`: checks a job file, and applies nothing.

refused   the cluster refuses it, at once or later: an error that names what refuses it, when, and the remedy
advised   the cluster accepts it, although it does not work as intended or is unsafe: a line of the output
noted     what was not checked, and why
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.job.site import with_site
from clustertrain.launchers.kubernetes.cluster.dry_run import check_admission
from clustertrain.launchers.kubernetes.cluster.kubectl import Forbidden, Kubectl, NoAnswer
from clustertrain.launchers.kubernetes.cluster.operator_pods import check_pods
from clustertrain.launchers.kubernetes.cluster.pod_layout import with_nodes
from clustertrain.launchers.kubernetes.cluster.preflight import check_cluster
from clustertrain.launchers.kubernetes.render.manifests import manifests
from clustertrain.launchers.kubernetes.render.rayjob_rules import check_rayjob
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.kubernetes.submit import rayjob_of
from clustertrain.launchers.launcher import Checked
from clustertrain.launchers.shell import CommandMissing


def check(path: Path, sets: Sequence[str]) -> Checked:
    """Check a job file.

    Raises:
        JobError: the file is wrong, or KubeRay would refuse its RayJob.
        StorageError: as `submit.render`.
        ClusterError: the cluster refuses an object or a pod, or could never start the job.
    """
    job: Job = with_site(load_job(path, sets))
    kubectl = Kubectl.of(job.section(Kubernetes))
    job, layout = with_nodes(job, kubectl)
    objects = manifests(job)

    def in_cluster() -> Iterator[str]:
        yield from check_cluster(job, kubectl)
        yield from check_admission(objects, kubectl, replaced=rayjob_of(kubectl, job.name) is not None)
        yield from check_pods(objects, kubectl)

    advised = check_rayjob(objects[-1])
    notes = [*_of_reachable_cluster(in_cluster())]
    kinds = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in objects)
    return Checked([*layout, *notes, *advised, f"{path}: {kinds}: nothing is wrong with them"], len(advised))


def _of_reachable_cluster(checks: Iterator[str]) -> Iterator[str]:
    """The notes of checks that need a cluster; if it cannot be reached, a note on what was not checked."""
    try:
        yield from checks
    except Forbidden as error:
        yield f"note: the API server did not check the objects: {str(error).splitlines()[0]}"
    except (CommandMissing, NoAnswer) as error:
        left_out = "fields and types, admission webhooks and policies, named objects"
        yield f"note: not checked with a cluster ({left_out}): {str(error).splitlines()[0]}"
