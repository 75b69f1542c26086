"""An S3 server in a cluster: versitygw in a pod, behind a Service, and a way to it from this machine.

    with s3_server(cluster, namespace, image) as bucket:    # a Bucket of s3_servers.py, as seen from here
        bucket.client().list_objects_v2(Bucket=bucket.bucket)

Pods reach it at ENDPOINT, which this machine does not, with the credentials of the Secret SECRET.
"""

import contextlib
import functools
import re
import shutil
import subprocess
from collections.abc import Iterator

from clusters.kube import KubeCluster
from clusters.kube_api import manifest
from clusters.kube_client import all_are
from clusters.kube_pods import shell_pod
from support.s3_servers import ENVIRONMENT, Bucket, versitygw

BUCKET, SECRET, PORT = "team", "s3", 7070
ENDPOINT = f"http://s3:{PORT}"
_CLAIM = "s3"
_KEYS = {"ROOT_ACCESS_KEY": "AWS_ACCESS_KEY_ID", "ROOT_SECRET_KEY": "AWS_SECRET_ACCESS_KEY"}


@contextlib.contextmanager
def s3_server(cluster: KubeCluster, namespace: str, image: str) -> Iterator[Bucket]:
    """`image`: any with the C library that the program links to. It and the buckets lie on a volume."""
    folder = cluster.make_volume(namespace, _CLAIM)
    shutil.copy(versitygw(), folder / "versitygw")
    labels = {"app": "s3"}
    service = manifest("Service", "s3", spec={"selector": labels, "ports": [{"port": PORT}]})
    keys = {name: ENVIRONMENT[name] for name in _KEYS.values()}
    secret = manifest("Secret", SECRET, stringData=keys)
    cluster.apply(service, secret, _pod(image, labels), namespace=namespace)
    is_ready = functools.partial(all_are, "Ready")
    cluster.watch("pods", namespace, is_ready, 120, "the S3 server does not answer", name="s3")
    with _forwarded(cluster, namespace) as port:
        yield Bucket("versitygw", f"http://127.0.0.1:{port}", BUCKET)


def _pod(image: str, labels: dict[str, str]) -> dict:
    program = f"/s3/versitygw --port :{PORT} --quiet posix --sidecar /s3/attributes /s3/buckets"
    pod = shell_pod(
        "s3", "", labels, volumes=[{"name": "s3", "persistentVolumeClaim": {"claimName": _CLAIM}}]
    )
    pod["spec"]["containers"][0] |= {
        "image": image,
        "command": ["sh", "-c", f"mkdir -p /s3/attributes /s3/buckets/{BUCKET} && exec {program}"],
        "env": [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": key}}}
            for name, key in _KEYS.items()
        ],
        "volumeMounts": [{"name": "s3", "mountPath": "/s3"}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    return pod


@contextlib.contextmanager
def _forwarded(cluster: KubeCluster, namespace: str) -> Iterator[int]:
    """The port of this machine that leads to the pod."""
    command = ["kubectl", f"--namespace={namespace}", "port-forward", "pod/s3", f":{PORT}"]
    with subprocess.Popen(
        command, env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", said)
            assert found, said
            yield int(found[1])
        finally:
            process.kill()
