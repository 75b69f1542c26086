"""What the image holds: who runs in it, what is labelled, listed and left out, and what is built upon it."""

import hashlib
import json
import re
import shutil

import pytest

from clusters.containers import (
    RESTRICTED,
    ROOT,
    ca_bundle,
    make_kit_image,
    podman,
    project_image_of_the_docs,
    stand_in_base,
    told,
    unique,
)

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]


def inside(image, *command, check=True):
    """What a command prints in a container of its own, with neither rights nor network."""
    done = podman("run", "--rm", "--network=none", *RESTRICTED, image, *command, check=check)
    return told(done).strip()


def pinned(name, file="requirements/image.txt"):
    return re.search(rf"^{name}==(\S+)", (ROOT / file).read_text(), re.MULTILINE)[1]


# What torch.compile does: an extension of Python, compiled at run time into a folder below /tmp.
EXTENSION = """
headers=$(python -c "import sysconfig; print(sysconfig.get_path('include'))")
echo '#include <Python.h>' | g++ -shared -fPIC -I"$headers" -x c++ - -o /tmp/a.so && echo "$(id -u) built"
"""


def bill_of_materials(image):
    return json.loads(inside(image, "cat", "/usr/share/clustertrain/sbom.json"))["components"]


def labels(image):
    return json.loads(podman("image", "inspect", "--format={{json .Labels}}", image).stdout)


@pytest.mark.nightly  # a second image of gigabytes; test_dockerfile.py reads its stage
def test_the_gpu_target_is_the_same_with_cuda_in_it(image):
    name = f"localhost/{unique('gpu')}"
    make_kit_image(name, "gpu")
    try:
        assert labels(name) == {**labels(image), "io.clustertrain.target": "gpu"}
        assert re.match(r"\d+\.\d+", inside(name, "python", "-c", "import torch; print(torch.version.cuda)"))
        fabric = "import ctypes; [ctypes.CDLL(f'{each}.so.1') for each in ('libibverbs', 'librdmacm')]"
        assert inside(name, "python", "-c", fabric) == ""
        assert inside(name, "bash", "-c", EXTENSION) == "1000 built"
        assert {"g++", "libibverbs1"} <= {each["name"] for each in bill_of_materials(name)}
    finally:
        podman("rmi", name)


def test_whoever_runs_in_it_is_not_root_and_can_write_to_tmp_alone(image):
    assert inside(image, "id", "-u", "-n") == "trainer"
    config = json.loads(podman("image", "inspect", "--format={{json .Config}}", image).stdout)
    assert config["User"] == "1000:1000"  # in numbers, or runAsNonRoot cannot see that it is not root
    script = "for place in /work /storage /opt/venv /home $HOME; do [ -w $place ] && echo $place; done; true"
    assert inside(image, "sh", "-c", script) == "/tmp"


def test_programs_answer_in_a_shell_that_is_not_a_login_shell(image):
    assert inside(image, "bash", "-c", "--", "ulimit -n 65536 2>/dev/null; ray --version") == (
        f"ray, version {pinned('ray')}"
    )
    assert inside(image, "clustertrain", "--version").startswith("clustertrain, version ")
    assert "python" in inside(image, "python", "--version").lower()


def test_the_labels_say_what_is_installed(image):
    said = labels(image)
    versions = (
        "from importlib.metadata import version; print(*map(version, ('clustertrain', 'ray', 'torch')))"
    )
    kit, ray, torch = inside(image, "python", "-c", versions).split()
    assert (said["io.clustertrain.version"], said["io.clustertrain.ray"]) == (kit, ray)
    assert said["io.clustertrain.torch"] == torch.partition("+")[0] == pinned("torch")
    assert said["org.opencontainers.image.version"] == kit
    assert said["io.clustertrain.target"] == "cpu"
    assert ray == pinned("ray", "requirements/constraints.txt")


def test_a_label_that_would_not_be_true_ends_the_build(image):
    refused = inside(image, "python", "/usr/share/clustertrain/inventory.py", "ray==1.0", check=False)
    assert refused == f"ray is {pinned('ray')}, but its label would be '1.0': build with `make image`"
    missing = inside(image, "python", "/usr/share/clustertrain/inventory.py", "jax==1.0", check=False)
    assert missing.startswith("jax is not installed")


def test_the_bill_of_materials_lists_every_package_once(image):
    bill = json.loads(inside(image, "cat", "/usr/share/clustertrain/sbom.json"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    urls = [component["purl"] for component in bill["components"]]
    assert len(urls) == len(set(urls))
    assert f"pkg:pypi/ray@{pinned('ray')}" in urls
    assert any(url.startswith("pkg:pypi/torch@") for url in urls)
    assert any(url.startswith("pkg:deb/debian/tini@") for url in urls)
    listed = inside(
        image, "python", "-c", "from importlib.metadata import distributions as d; print(len([*d()]))"
    )
    assert sum(url.startswith("pkg:pypi/") for url in urls) == int(listed)


def test_neither_compiler_nor_cache_nor_what_built_it_is_there(image):
    found = inside(image, "sh", "-c", "command -v gcc cc c++ clang make git uv; true")
    assert found == ""
    lists, caches = ("-path", "/var/lib/apt/lists/*"), ("-path", "*/.cache/*")
    kept = inside(image, "find", "/", "-xdev", "-type", "f", "(", *lists, "-o", *caches, ")", check=False)
    assert [
        line for line in kept.splitlines() if not line.startswith("find: ")
    ] == []  # /root may not be read
    assert inside(image, "ls", "/var/cache/uv") == ""


def test_no_certificate_of_the_build_stays(image):
    """The base's own bundle is there, for S3 and what else is asked by https, and no other."""
    digest = ["sha256sum", "/etc/ssl/certs/ca-certificates.crt"]
    of_base = podman("run", "--rm", "--network=none", stand_in_base(), *digest).stdout
    assert inside(image, *digest) == of_base.strip()
    assert inside(image, "sh", "-c", "ls /run/secrets 2>/dev/null; true") == ""
    assert "ca_bundle" not in inside(image, "env")


def test_the_kit_in_it_is_this_checkout(image):
    """A builder that took an older wheel from its cache would go unnoticed."""
    script = "cd /opt/venv/lib/python3.11/site-packages/clustertrain && find . -name '*.py' | xargs sha256sum"
    there = {line.split()[1]: line.split()[0] for line in inside(image, "sh", "-c", script).splitlines()}
    source = ROOT / "src/clustertrain"
    here = {f"./{file.relative_to(source)}": file for file in source.rglob("*.py")}
    assert there == {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in here.items()}


def test_every_package_is_compiled(image):
    """Where the root is read-only, none could be later: each start would take 25 s longer."""
    script = (
        "import sys, pathlib as p, importlib.util as u\n"
        "for name in ('torch', 'ray', 'clustertrain'):\n"
        "    print(p.Path(u.cache_from_source(u.find_spec(name).origin)).exists())"
    )
    assert inside(image, "python", "-c", script).split() == ["True"] * 3


def test_a_change_of_the_code_moves_less_than_5_mb(image):
    """What a registry sends of the layers above that of the packages: they are compressed."""
    history = json.loads(podman("image", "history", "--format=json", image).stdout)
    newer = [layer["size"] for layer in history[: next(n for n, it in enumerate(history) if packages(it))]]
    kit = "-C /opt/venv lib/python3.11/site-packages/clustertrain bin/clustertrain"
    rest = "-C /usr/share clustertrain"
    raw, compressed = (
        int(inside(image, "sh", "-c", f"tar -c {kit} {rest} {how} | wc -c")) for how in ("", "| gzip")
    )
    assert sum(newer) < 1.2 * raw, "they have nothing else"
    assert compressed < 5e6


def packages(layer):
    return "uv pip install" in layer["CreatedBy"] and layer["size"] > 1e9


@pytest.mark.nightly  # in CI: the image that it begins with; test_dockerfile.py reads its lines
def test_the_project_image_of_the_docs_is_three_lines_and_is_built(image, tmp_path):
    lines = project_image_of_the_docs().splitlines()
    assert len(lines) == 3
    shutil.copytree(ROOT / "examples/digits", tmp_path / "project")
    (tmp_path / "project/requirements.txt").write_text("einops==0.8.1\n")
    (tmp_path / "project/Dockerfile").write_text(
        "\n".join(lines).replace("localhost/clustertrain:dev", image)
    )
    theirs = f"localhost/{unique('project')}"
    try:
        podman(
            *("build", "--quiet", "--format=docker", *proxy_of_this_machine(tmp_path)),
            *(f"--tag={theirs}", str(tmp_path / "project")),
            timeout_s=300,
        )
        assert labels(theirs).items() >= labels(image).items() - {("io.buildah.version", "")}
        assert inside(theirs, "python", "-c", "import einops; print(einops.__version__)") == "0.8.1"
        assert inside(theirs, "clustertrain", "check", "--no-code", "--defaults", "job.yaml").startswith(
            "version: 1\nname: digits\n"
        )
        assert inside(theirs, "id", "-u") == "1000"
    finally:
        podman("rmi", "--force", theirs, check=False)


def proxy_of_this_machine(folder):
    """What a build in a container needs of this machine, to reach the packages as this machine does."""
    if ca_bundle() is None:
        return []
    (folder / "pip.conf").write_text("[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n")
    mounts = {ca_bundle(): "/etc/ssl/certs/ca-certificates.crt", folder / "pip.conf": "/etc/pip.conf"}
    return [f"--volume={here}:{there}:ro" for here, there in mounts.items()]


def test_what_a_project_adds_cannot_exchange_torch(image):
    refused = inside(image, "pip", "install", "--no-index", "torch==2.10.0", check=False)
    assert f"(constraint) torch=={pinned('torch')}" in refused
