"""The table of wrong manifests: what is changed in a right one, who refuses it, what `check` says of it.

Who refuses        when
api                `kubectl create`: the API server, by the CRD's schema or by its own rules
operator           the RayJob is taken, and the operator sets it to ValidationFailed
pods               the API server refuses the pods that the operator makes, again and again
pod-security       so does Pod Security `restricted`
kueue              `kubectl create`, where Kueue's webhook is
kai                nobody here, and the operator where it has KAI's plugin
nobody             it is taken, and never does what it is for

tests/kubernetes/test_verdict.py puts each of them to the real ones.
"""

from launchers.kubernetes.wrong_objects import API
from launchers.kubernetes.wrong_pods import PODS, SECURITY
from launchers.kubernetes.wrong_queues import NOBODY, QUEUES
from launchers.kubernetes.wrong_rayjobs import CLUSTERS, NEEDS, OPERATOR

WRONG = [*OPERATOR, *API, *PODS, *SECURITY, *QUEUES, *NOBODY, *CLUSTERS]

__all__ = ["NEEDS", "WRONG"]
