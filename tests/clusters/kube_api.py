"""The API server of a Kubernetes over HTTP: connections stay open.

    api = Api(url, authority="ca.crt", token="…")
    api.send("GET", path("pods", "digits", "worker-0"))

A kubectl takes a tenth of a second of CPU to start; a request takes a hundredth of that.
"""

import json
from collections.abc import Mapping
from urllib.parse import urlencode

import urllib3

# Where a resource is, if not in v1.
_GROUPS = {
    "clusterroles": "rbac.authorization.k8s.io/v1",
    "clusterrolebindings": "rbac.authorization.k8s.io/v1",
    "customresourcedefinitions": "apiextensions.k8s.io/v1",
    "deployments": "apps/v1",
    "jobs": "batch/v1",
    "networkpolicies": "networking.k8s.io/v1",
    "rayclusters": "ray.io/v1",
    "rayjobs": "ray.io/v1",
    "resourceflavors": "kueue.x-k8s.io/v1beta1",
    "roles": "rbac.authorization.k8s.io/v1",
    "tokenrequests": "authentication.k8s.io/v1",
    "validatingadmissionpolicies": "admissionregistration.k8s.io/v1",
    "validatingadmissionpolicybindings": "admissionregistration.k8s.io/v1",
    "workloadpriorityclasses": "kueue.x-k8s.io/v1beta1",
    "workloads": "kueue.x-k8s.io/v1beta1",
}
_OWNER = {"fieldManager": "tests", "force": "true"}
_ANSWERS_WITHIN_S = 60.0


class Refused(Exception):
    """What the API server says to a request that it does not fulfil. `status`: HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def manifest(kind: str, name: str = "", *, metadata: Mapping | None = None, **fields: object) -> dict:
    """An object, by its name or with other metadata."""
    meta = dict(metadata) if metadata is not None else {"name": name}
    group = _GROUPS.get(f"{kind.lower()}s", "v1")
    return {"apiVersion": group, "kind": kind, "metadata": meta, **fields}


def path(resource: str, namespace: str = "", name: str = "", part: str = "") -> str:
    """Of a resource, of one object of it, or of a part of that, such as `status`."""
    return _path(_GROUPS.get(resource, "v1"), resource, namespace, name, part)


def _path(group: str, resource: str, namespace: str, *names: str) -> str:
    where = ("namespaces", namespace) if namespace else ()
    return "/".join(["/apis" if "/" in group else "/api", group, *where, resource, *filter(None, names)])


class Api:
    """`authority`: the file of the certificate that signed the server's. For any number of threads."""

    def __init__(self, url: str, authority: str, token: str) -> None:
        self._url = url
        self._pool = urllib3.PoolManager(maxsize=8, retries=False, ca_certs=authority)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._kinds: dict[str, dict[str, Mapping]] = {}

    def close(self) -> None:
        self._pool.clear()

    def send(self, method: str, path: str, body: object = None, content: str = "json", **query: str) -> dict:
        """`body`: sent as JSON, or the text that it is; `content`: its type, after application/.

        Raises Refused, and urllib3.exceptions.HTTPError for a connection that fails.
        """
        return json.loads(self.text(method, path, body, content, **query))

    def text(self, method: str, path: str, body: object = None, content: str = "json", **query: str) -> str:
        sent = body if body is None or isinstance(body, str) else json.dumps(body)
        headers = {**self._headers, "Content-Type": f"application/{content}"}
        url = f"{self._url}{path}?{urlencode(query)}"
        answer = self._pool.request(method, url, body=sent, headers=headers, timeout=_ANSWERS_WITHIN_S)
        said = answer.data.decode()
        if answer.status >= 400:
            raise Refused(answer.status, json.loads(said)["message"] if said.startswith("{") else said)
        return said

    def apply(self, manifest: Mapping, namespace: str = "default") -> dict:
        """On the server's side; what is there is changed, whoever made it. An unknown field is refused."""
        meta = manifest["metadata"]
        where = self._place(manifest, meta.get("namespace", namespace))
        query = {**_OWNER, "fieldValidation": "Strict"}
        return self.send("PATCH", f"{where}/{meta['name']}", manifest, "apply-patch+yaml", **query)

    def create(self, manifest: Mapping, namespace: str = "default", **query: str) -> dict:
        return self.send("POST", self._place(manifest, namespace), manifest, **query)

    def _place(self, manifest: Mapping, namespace: str) -> str:
        """Where the server keeps what is of this kind."""
        group, kind = manifest["apiVersion"], manifest["kind"]
        if kind not in self._kinds.get(group, {}):  # it may be as young as its definition
            listed = self.send("GET", _path(group, "", "").rstrip("/"))["resources"]
            self._kinds[group] = {each["kind"]: each for each in listed if "/" not in each["name"]}
        if not (found := self._kinds[group].get(kind)):
            raise Refused(404, f"{group} has no kind {kind}")
        return _path(group, found["name"], namespace if found["namespaced"] else "")
