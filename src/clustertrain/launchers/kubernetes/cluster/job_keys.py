"""The keys of a job file that decide what a refusal of the cluster names."""

from __future__ import annotations

import re

_KEYS = (
    (r"\blabels?\b", "kubernetes.labels"),
    (r"\bmetadata\.labels: ", "kubernetes.pod_labels"),
    (r"\bannotations?\b", "kubernetes.annotations"),
    (r"\bmetadata\.annotations: ", "kubernetes.pod_annotations"),
    (r"\begress\b", "kubernetes.egress"),
    (r"\bingress\b", "kubernetes.operator_namespaces, kubernetes.monitoring_namespaces"),
    (r"\bephemeral.storage", "kubernetes.ephemeral_storage"),
    (r"\bcpus?\b|\bmemory\b", "resources (workers), kubernetes.head and kubernetes.submitter"),
    (r"/gpu\b|/mig-", "resources.gpus_per_worker, kubernetes.gpu_resource"),
    (r"\bimages?\b|\bregistr(y|ies)\b|ErrImage|ImagePullBackOff", "image"),
    (r"\bimage.?pull.?policy", "kubernetes.pull_policy"),
    (r"\bimage.?pull.?secrets?", "kubernetes.pull_secrets"),
    (r"\bsecrets?\b", "kubernetes.secrets"),
    (r"\brunAs|\bfsGroup|non-?root\b|\broot (user|group)", "kubernetes.run_as"),
    (r"\bcapabilit", "kubernetes.worker_capabilities"),
    (r"\bhost.?(network|port)|\bfree ports\b", "kubernetes.host_network"),
    (r"\bhost.?path|persistentvolumeclaim|\bclaim\b", "kubernetes.volumes"),
    (r"\bservice.?account", "kubernetes.service_account"),
    (r"\bpriority.?class", "kubernetes.priority_class"),
    (r"\bruntime.?class", "kubernetes.runtime_class"),
    (r"\bscheduler.?name", "kubernetes.scheduler_name"),
    (r"\bnode.?selector|affinity/selector", "kubernetes.node_selector"),
    (r"\btolerations?\b|\btaints?\b", "kubernetes.tolerations"),
    (r"affinity\b", "kubernetes.affinity"),
    (r"\bqueue\b|\bflavors?\b", "kubernetes.queue"),
    (r"\bsecurity ?context|\bseccomp|\bprivilege|\breadOnlyRoot", "kubernetes.patches"),
)


def keys_sentence(words: str) -> str:
    """A sentence that names the keys of the job file for these words, or an empty text."""
    keys = [key for pattern, key in _KEYS if re.search(pattern, words, re.IGNORECASE)]
    return f"What it names is in {', '.join(keys)}." if keys else ""
