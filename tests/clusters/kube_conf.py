"""What the programs of a Kubernetes on this machine are told: keys, addresses, and no more than they need.

Service and pod addresses are the same in every cluster: each has a network namespace of its own.
"""

import json
import resource
import secrets
import subprocess
from pathlib import Path

import yaml

NODE = "node1"
API_PORT = 6443
SERVICES = "10.96.0.0/24"
PODS = "10.99.0.0/24"
DNS = "10.96.0.10"
_API_SERVICE = "10.96.0.1"
_ETCD = "http://127.0.0.1:2379"
_DAYS = "30"


def write_configuration(folder: Path, address: str, cgroup: str) -> None:
    """Files that `command_lines` names. `address`: the node's; `cgroup`: where its pods are."""
    for name in ("cni", "log", "pki", "processes", "volumes"):
        (folder / name).mkdir()
    _write_keys(folder / "pki", address)
    token = secrets.token_hex(16)
    (folder / "pki" / "tokens").touch(0o600)
    (folder / "pki" / "tokens").write_text(f'{token},admin,admin,"system:masters"\n')
    write_kubeconfig(folder / "kubeconfig", address, token)
    (folder / "cni" / "pods.conflist").write_text(json.dumps(_network(folder)))
    (folder / "containerd.toml").write_text(_containerd(folder))
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(folder, address, cgroup)))
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} {NODE}\n")
    (folder / "resolv.conf").touch()  # an unreachable name server would stall every look-up


def write_kubeconfig(path: Path, address: str, token: str, namespace: str = "default") -> None:
    path.touch(0o600)
    cluster = {
        "server": f"https://{address}:{API_PORT}",
        "certificate-authority": f"{path.parent}/pki/ca.crt",
    }
    context = {"cluster": "test", "user": "test", "namespace": namespace}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": context}],
        "current-context": "test",
    }
    path.write_text(yaml.safe_dump(config))


def command_lines(folder: Path, address: str) -> dict[str, list[str]]:
    """By name, in the order in which they start; names that are paths' last parts in log/ and processes/."""
    pki, kubeconfig = folder / "pki", f"--kubeconfig={folder}/kubeconfig"
    return {
        "containerd": ["containerd", f"--config={folder}/containerd.toml"],
        "etcd": [
            "etcd",
            f"--data-dir={folder}/etcd",
            "--unsafe-no-fsync",  # it need not survive this machine
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
        ],
        "apiserver": [
            "kube-apiserver",
            f"--etcd-servers={_ETCD}",
            f"--secure-port={API_PORT}",
            f"--advertise-address={address}",
            f"--tls-cert-file={pki}/api.crt",
            f"--tls-private-key-file={pki}/api.key",
            f"--token-auth-file={pki}/tokens",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/accounts.pub",
            f"--service-account-signing-key-file={pki}/accounts.key",
            f"--service-cluster-ip-range={SERVICES}",
            "--kubelet-preferred-address-types=InternalIP",
            # How it shows Kueue's API server, to which it passes requests on, who asks.
            f"--requestheader-client-ca-file={pki}/ca.crt",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            f"--proxy-client-cert-file={pki}/proxy.crt",
            f"--proxy-client-key-file={pki}/proxy.key",
        ],
        "controllers": [
            "kube-controller-manager",
            kubeconfig,
            f"--service-account-private-key-file={pki}/accounts.key",
            f"--root-ca-file={pki}/ca.crt",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--secure-port=0",
        ],
        "scheduler": ["kube-scheduler", kubeconfig, "--leader-elect=false", "--secure-port=0"],
        "kubelet": [
            "kubelet",
            kubeconfig,
            f"--config={folder}/kubelet.yaml",
            f"--root-dir={folder}/kubelet",
            f"--cert-dir={folder}/kubelet/pki",
            f"--hostname-override={NODE}",
            f"--node-ip={address}",
        ],
        "proxy": [
            "kube-proxy",
            kubeconfig,
            f"--hostname-override={NODE}",
            f"--cluster-cidr={PODS}",
            "--conntrack-max-per-core=0",  # the rest is the machine's, not a namespace's
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ],
    }


def _write_keys(pki: Path, address: str) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=pki, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", _DAYS)
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    alternatives = [*(f"DNS:{name}" for name in names), *(f"IP:{ip}" for ip in (_API_SERVICE, address))]
    openssl("req", "-x509", *key, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
    openssl(
        *("req", "-x509", *key, "-subj", "/CN=kube-apiserver", "-keyout", "api.key", "-out", "api.crt"),
        *("-CA", "ca.crt", "-CAkey", "ca.key"),
        *("-addext", f"subjectAltName={','.join(alternatives)}", "-addext", "basicConstraints=CA:FALSE"),
    )
    openssl(
        *("req", "-x509", *key, "-subj", "/CN=proxy", "-keyout", "proxy.key", "-out", "proxy.crt"),
        *("-CA", "ca.crt", "-CAkey", "ca.key"),
        *("-addext", "extendedKeyUsage=clientAuth", "-addext", "basicConstraints=CA:FALSE"),
    )
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "accounts.key")
    openssl("ec", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")


def _network(folder: Path) -> dict:
    """Each pod has a cable of its own to the node: on a bridge, pods would talk past the node's iptables."""
    addresses = {
        "type": "host-local",
        "dataDir": f"{folder}/leases",
        "ranges": [[{"subnet": PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    cable = {"type": "ptp", "ipMasq": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [cable, ports]}


def _containerd(folder: Path) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{folder}/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[{cri}]
  sandbox_image = "localhost/pause:test"
  restrict_oom_score_adj = true
  [{cri}.cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [{cri}.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{cri}.containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def _kubelet(folder: Path, address: str, cgroup: str) -> dict:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,  # never: what is loaded cannot be pulled again
        "maxOpenFiles": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "podLogsDir": f"{folder}/pods",
        "resolvConf": "",
        "volumePluginDir": f"{folder}/plugins",
    }
