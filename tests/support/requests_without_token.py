"""What somebody without the token gets out of a node's ports; a program of its own, run on a node.

    python requests_without_token.py ORDER
    ORDER: {"uid": 65534, "targets": [["198.18.0.10", 15000], …], "scan": "198.18.0.10" or null} in JSON

It becomes that user (null: it stays who it is), and prints {"open": ports that took a connection of the scan,
"answers": {port: {"http": {token: {path: status}}, "grpc": {token: {service: {method: code}}}}}}. A port that
speaks neither has nothing in it: whatever took the connection said nothing to either.
"""

import http.client
import importlib
import json
import os
import pkgutil
import socket
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

TOKENS = {"none": None, "wrong": "f" * 64}
PATHS = ("/", "/metrics", "/api/healthz", "/api/version", "/api/jobs/", "/get_or_create_runtime_env")
PATHS += ("/api/authentication_mode", "/api/gcs_healthz", "/api/local_raylet_healthz", "/nodes", "/logs")
TIMEOUT_S = 60.0  # of an answer that has begun to come
_SILENCE_S = 5.0  # after which a port is taken for one that says nothing
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
_LIST_SERVICES = b"\x3a\x01*"  # ServerReflectionRequest(list_services="*")
# These have no Python of their own in Ray. A peer of the syncer names itself in a header.
_ONLY_IN_CPP = {"ray.rpc.ObjectManagerService": ["Push", "Pull"], "ray.rpc.syncer.RaySyncer": ["StartSync"]}
_STREAMS = {"/ray.rpc.syncer.RaySyncer/StartSync": [("node_id", "f" * 56)]}


def ray_methods() -> dict[str, list[str]]:
    """Every method of every service that Ray has, by service."""
    generated = importlib.import_module("ray.core.generated")
    found = dict(_ONLY_IN_CPP)
    for module in pkgutil.iter_modules(generated.__path__):
        if module.name.endswith("_pb2"):
            described = importlib.import_module(f"ray.core.generated.{module.name}").DESCRIPTOR
            for service in described.services_by_name.values():
                found[service.full_name] = [method.name for method in service.methods]
    return found


def over_http(address: str, port: int, token: str | None) -> dict[str, int]:
    """The status that each path gives; empty where nothing speaks HTTP."""
    found: dict[str, int] = {}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    for path in PATHS:
        connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_S if found else _SILENCE_S)
        with suppress(OSError, http.client.HTTPException):
            connection.request("POST" if path.startswith("/get") else "GET", path, headers=headers)
            found[path] = connection.getresponse().status
        connection.close()
        if not found:
            break
    return found


def over_grpc(
    address: str, port: int, token: str | None, methods: dict[str, list[str]]
) -> dict[str, dict[str, str]]:
    """The code that each method gives of each service that is there; empty where nothing speaks gRPC."""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(f"{address}:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(_SILENCE_S)
        except grpc.FutureTimeoutError:
            return {}
        found = {}
        if services := _services(channel):
            found[REFLECTION] = {"ServerReflectionInfo": "OK"}
        for service in services or methods:
            names = methods.get(service, ["a service that this program does not know"])
            calls = {name: _call(channel, f"/{service}/{name}", metadata) for name in names}
            codes = {name: call.code().name for name, call in calls.items()}
            if set(codes.values()) != {"UNIMPLEMENTED"}:
                found[service] = codes
        return found


def _call(channel: grpc.Channel, method: str, metadata: list[tuple[str, str]]) -> grpc.Call:
    """An empty request."""
    if method in _STREAMS:
        stream = channel.stream_stream(method, bytes, bytes)
        return stream(iter([b""]), timeout=TIMEOUT_S, metadata=[*metadata, *_STREAMS[method]])
    return channel.unary_unary(method, bytes, bytes).future(b"", timeout=TIMEOUT_S, metadata=metadata)


def _services(channel: grpc.Channel) -> list[str]:
    """Ray's, as the server's own reflection names them: list_services_response.service.name. What is written
    in Python has no reflection."""
    answers = channel.stream_stream(f"/{REFLECTION}/ServerReflectionInfo", bytes, bytes)(
        iter([_LIST_SERVICES]), timeout=TIMEOUT_S
    )
    names = []
    with suppress(grpc.RpcError):
        names = [
            name.decode()
            for answer in answers
            for listed in _fields(answer, 6)
            for service in _fields(listed, 1)
            for name in _fields(service, 1)
        ]
    return [name for name in names if not name.startswith("grpc.")]


def _fields(message: bytes, wanted: int) -> Iterable[bytes]:
    """The values of one field of a protobuf message."""
    fields = UnknownFieldSet(Empty.FromString(message))
    return [field.data for field in fields if field.field_number == wanted]


def open_ports(address: str) -> list[int]:
    """All that take a connection."""
    found = []
    for port in range(1, 65536):
        with socket.socket() as client:
            client.settimeout(TIMEOUT_S)
            if client.connect_ex((address, port)) == 0:
                found.append(port)
    return found


def main(asked: str) -> None:
    order = json.loads(asked)
    methods = ray_methods()
    if order["uid"] is not None:
        os.setgroups([])
        os.setgid(order["uid"])
        os.setuid(order["uid"])

    def attack(target: tuple[str, int]) -> dict[str, dict[str, object]]:
        return {
            "http": {name: over_http(*target, token) for name, token in TOKENS.items()},
            "grpc": {name: over_grpc(*target, token, methods) for name, token in TOKENS.items()},
        }

    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(attack, order["targets"])
        found = {port: answer for (_, port), answer in zip(order["targets"], answers, strict=True)}
    scanned = open_ports(order["scan"]) if order["scan"] else []
    print(json.dumps({"open": scanned, "answers": found}))


if __name__ == "__main__":
    main(sys.argv[1])
