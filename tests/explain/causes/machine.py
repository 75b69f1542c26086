"""Failures of a machine and what is installed on it: each function causes the one of its name."""

import ctypes
import faulthandler
import importlib.util
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

NOBODY = 65534


def host_not_found():
    socket.create_connection(("node7.invalid", 29500))


def connection_refused():
    socket.create_connection(("127.0.0.1", 1))


def data_not_fetched():
    from clustertrain.staging.stage import stage
    from clustertrain.storage import Location

    sys.tracebacklimit = 0
    stage("x", Location("http://127.0.0.1:1/x.tar"), sha256=None, extract=False, into=Path("data"))


def no_route():
    socket.create_connection(("2001:db8::7", 29500), timeout=5)


def _serve(status, body, reason=None):
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            self.send_response(status, reason)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def too_many_requests():
    server = _serve(429, b"", "Too Many Requests")
    urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/model.pt")


def certificate():
    subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost",
        shell=True,
        check=True,
        capture_output=True,
    )
    server = _serve(200, b"")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("cert.pem", "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    urllib.request.urlopen(f"https://localhost:{server.server_port}/")


def no_such_file():
    Path("labels.csv").read_text()


def disk_full():
    with Path("/dev/full").open("wb", buffering=0) as file:
        file.write(b"checkpoint")


def read_only():
    code = "mount -t tmpfs -o ro none /mnt && echo x > /mnt/log"
    sys.exit(subprocess.call(["unshare", "-m", "bash", "-c", code]))


def permission():
    Path("secret").touch(mode=0o600)
    os.setuid(NOBODY)
    Path("secret").read_text()


def io_error():
    with Path("/proc/self/mem").open("rb", buffering=0) as file:
        file.read(1)


def _s3(status, code, message=""):
    import boto3
    from botocore.config import Config

    body = f"<Error><Code>{code}</Code><Message>{message or code}</Message></Error>".encode()
    server = _serve(status, body)
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{server.server_port}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}),
    )
    client.get_object(Bucket="bucket", Key="data")


def s3_denied():
    _s3(403, "AccessDenied", "Access Denied")


def s3_expired():
    _s3(400, "ExpiredToken", "The provided token has expired.")


def s3_clock():
    _s3(
        403,
        "RequestTimeTooSkewed",
        "The difference between the request time and the current time is too large.",
    )


def s3_slow_down():
    _s3(503, "SlowDown", "Please reduce your request rate.")


def s3_not_found():
    _s3(404, "NoSuchKey", "The specified key does not exist.")


def s3_no_credentials():
    import boto3

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(AWS_EC2_METADATA_DISABLED="true", HOME="/nowhere", AWS_CONFIG_FILE="/nowhere/config")
    boto3.client("s3", region_name="us-east-1").list_buckets()


def wrong_checksum():
    Path("data.bin").write_bytes(b"other bytes")
    sys.exit(subprocess.call(f"echo {'0' * 64}  data.bin | sha256sum --check", shell=True))


def _bash(*lines, end="\n"):
    Path("start.sh").write_bytes(end.join(["#!/bin/bash", *lines, ""]).encode())
    Path("start.sh").chmod(0o755)
    sys.exit(subprocess.call(["bash", "start.sh"]))


def crlf():
    _bash("", "module load cuda", end="\r\n")


def not_installed():
    _bash("nvcc-13 --version")


def no_module():
    importlib.import_module("flash_attention_9")


def import_fails():
    exec("from json import loadz")


def no_library():
    ctypes.CDLL("libcudart.so.12")


def address_space():
    library = Path(importlib.util.find_spec("torch").origin).with_name("lib") / "libtorch_cpu.so"
    resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))
    ctypes.CDLL(library)


def glibc():
    """A library whose list of needed versions names one that no C library has."""
    Path("needs.c").write_text("int puts(const char *); int f(void) { return puts(0); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "libneeds.so", "needs.c"], check=True)
    library = Path("libneeds.so")
    data = library.read_bytes().replace(b"GLIBC_2.2.5\0", b"GLIBC_9.9.9\0")
    old, new = _elf_hash("GLIBC_2.2.5"), _elf_hash("GLIBC_9.9.9")
    library.write_bytes(data.replace(old.to_bytes(4, "little"), new.to_bytes(4, "little")))
    ctypes.CDLL("./libneeds.so")


def _elf_hash(name):
    value = 0
    for character in name.encode():
        value = (value << 4) + character
        value = (value ^ ((value & 0xF0000000) >> 24)) & 0x0FFFFFFF
    return value


def exec_format():
    Path("train").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(60))
    Path("train").chmod(0o755)
    subprocess.run(["./train"], check=False)


def wrong_arguments():
    import argparse

    parser = argparse.ArgumentParser("train.py")
    parser.add_argument("--lr")
    parser.parse_args(["--learning-rate", "1"])


def wrong_call():
    def model(width):
        return width

    model(width=3, depth=2)


def syntax():
    exec("match x:\n  case 1 pass\n")


def threads():
    os.setuid(NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    threading.Thread(target=print).start()


def _die(number):
    faulthandler.enable()
    os.kill(os.getpid(), number)


def illegal_instruction():
    _die(signal.SIGILL)


def segmentation_fault():
    faulthandler.enable()
    ctypes.string_at(0)


def aborted():
    faulthandler.enable()
    os.abort()


def vanished():
    """A run of which every process is killed at once."""
    from clustertrain.supervise.guardian import descendants

    Path("train.py").write_text("import time\nprint('trains', flush=True)\ntime.sleep(600)\n")
    Path("job.yaml").write_text("name: digits\nscript: train.py\nresources: {cpus_per_worker: 0.5}\n")
    program = [sys.executable, "-m", "clustertrain.cli"]
    run = subprocess.Popen([*program, "run", "job.yaml"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for line in run.stdout:
        if b"trains" in line:
            break
    for pid in [run.pid, *descendants(run.pid)]:
        os.kill(pid, signal.SIGKILL)
    run.wait()
    subprocess.run([*program, "explain", "job.yaml"], check=False)


def rank_stopped():
    """A run in which a signal stops a rank, for which the other waits."""
    _explain_run_whose_rank_1("signal.raise_signal(signal.SIGSTOP)")


def exited():
    """A run of which a rank ends itself."""
    _explain_run_whose_rank_1("os._exit(3)")


def _explain_run_whose_rank_1(does):
    waits = "import os, signal, torch.distributed as dist\ndef train(config):\n    "
    Path("waits.py").write_text(f"{waits}{does} if dist.get_rank() else dist.barrier()\n")
    limits = "failures: {retries: 0, watchdog: {first_step: 3s}}"
    resources = "resources: {workers: 2, cpus_per_worker: 0.5}"
    Path("job.yaml").write_text(f"name: digits\nfunction: waits:train\n{resources}\n{limits}\n")
    program = [sys.executable, "-m", "clustertrain.cli"]
    subprocess.run([*program, "run", "job.yaml", "--no-ray"], capture_output=True, check=False)
    subprocess.run([*program, "explain", "job.yaml"], check=False)


def no_terminal():
    subprocess.run([sys.executable, "-c", "breakpoint(); print()"], stdin=subprocess.DEVNULL, check=False)


def killed():
    Path("dies.sh").write_text("sleep 9 & kill -KILL $!; wait $!; kill -l $? | sed 's/^/ended by SIG/'\n")
    sys.exit(subprocess.call(["bash", "dies.sh"]))
