"""A file of manifests is read as kubectl reads it; what a file holds is checked without a cluster."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import EXIT_FAILED, EXIT_JOB, JobError
from clustertrain.launchers.kubernetes.manifest_file import manifests_in
from launchers.kubernetes.manifest_changes import ABSENT, CLUSTER, HEAD_POD, changed
from launchers.kubernetes.right_manifests import RIGHT, rayjob

# A scalar and what kubectl makes of it: put to `kubectl create --dry-run=server`.
SCALARS = {
    "2024-01-01": "2024-01-01",
    "2024-01-01T10:00:00Z": "2024-01-01T10:00:00Z",
    "12:30": "12:30",
    "=": "=",
    "0x": "0x",
    "_1": "_1",
    "nuLL": "nuLL",
    "~": None,
    "y": True,
    "Off": False,
    "1e9": 1e9,
    "1_000": 1000,
    "0o17": 15,
    "017": 15,
    "08": 8,
    "0b11": 3,
    ".5": 0.5,
    "'<<'": "<<",
}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.fixture
def write(tmp_path: Path):
    def put(*documents: object, text: str = "") -> Path:
        path = tmp_path / "manifests.yaml"
        path.write_text(text or yaml.safe_dump_all(documents))
        return path

    return put


def validate(path: Path, *options: str):
    return CliRunner().invoke(main, ["validate", "--to", "kubernetes", str(path), *options])


@pytest.mark.parametrize("scalar", SCALARS)
def test_a_scalar_has_the_type_that_kubectl_gives_it(write, scalar):
    (found,) = manifests_in(write(text=f"apiVersion: v1\nkind: ConfigMap\ndata: {{key: {scalar}}}\n")) or ()
    value = found["data"]["key"]
    assert (value, type(value) is bool) == (SCALARS[scalar], type(SCALARS[scalar]) is bool)


def test_a_list_is_its_items(write):
    inner = {"apiVersion": "v1", "kind": "List", "items": [RIGHT["Secret"]]}
    outer = {"apiVersion": "v1", "kind": "List", "items": [RIGHT["ConfigMap"], inner]}
    path = write(outer, RIGHT["PersistentVolumeClaim"])
    assert [each["kind"] for each in manifests_in(path)] == ["ConfigMap", "Secret", "PersistentVolumeClaim"]
    done = validate(path)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].endswith("3 objects, none of which KubeRay would refuse")


def test_a_mistake_in_a_list_is_found(write):
    job = changed(rayjob(), {"spec/backoffLimit": -1})
    done = validate(write({"apiVersion": "v1", "kind": "List", "items": [job]}))
    assert done.exit_code == EXIT_JOB
    assert (
        "is -1, and must not be negative (the KubeRay operator refuses it after it was applied)"
        in done.output
    )


def test_a_file_over_1_mib_is_read(write):
    maps = [
        changed(RIGHT["ConfigMap"], {"metadata/name": f"map-{n}", "data/x": "x" * 300_000}) for n in range(5)
    ]
    path = write(*maps)
    assert path.stat().st_size > 2**20
    assert validate(path).exit_code == 0


def test_a_date_without_quotes_is_right(write):
    text = yaml.safe_dump(RIGHT["ConfigMap"]).replace(
        "name: right-job", "name: a\n  annotations: {on: 2024-01-01}"
    )
    assert "2024-01-01" in text and validate(write(text=text)).exit_code == 0


def test_advice_is_an_error_only_with_strict(write):
    path = write(changed(rayjob(), {f"{CLUSTER}/authOptions": ABSENT}))
    assert validate(path).exit_code == 0
    done = validate(path, "--strict")
    assert done.exit_code == EXIT_FAILED and "advice: RayJob right: " in done.output
    assert validate(write(rayjob()), "--strict").exit_code == 0


def test_pod_security_is_that_of_the_file_or_of_the_option(write):
    root = changed(rayjob(), {f"{HEAD_POD}/securityContext/runAsUser": 0, "metadata/namespace": "team"})
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    unknown = validate(write(root))
    assert (
        unknown.exit_code == 0 and "refuses 1 fields: --pod-security restricted shows them" in unknown.output
    )
    assert validate(write(team, root)).exit_code == 0
    for refused in (
        validate(write(changed(team, {"metadata/labels": label}), root)),
        validate(write(root), "--pod-security", "restricted"),
    ):
        assert refused.exit_code == EXIT_JOB
        assert "Pod Security refuses its pods when the operator creates them" in refused.output
    assert validate(write(root), "--pod-security", "baseline").exit_code == 0
    assert (
        "needs --to kubernetes" in CliRunner().invoke(main, ["validate", "--pod-security", "baseline"]).output
    )


def test_a_version_without_schemas_names_those_that_there_are(write):
    done = validate(write(rayjob()), "--kubernetes-version", "1.2")
    assert done.exit_code == EXIT_JOB and "1.34" in done.output
    assert validate(write(rayjob()), "--kubernetes-version", "1.30").exit_code == 0


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(8)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Pod\n  name: a\n", "is not YAML: line 3, column "),
        ("a: !!python/object:os.system {}\n", "is not YAML: line 2, column 4"),
        ("a: .inf\n", "contains inf, which JSON does not have"),
        ("a: !!binary aGk=\n", "contains a YAML bytes"),
        (BOMB, "aliases included"),
        ("a: &a {b: *a}\n", "aliases included"),
    ],
)
def test_what_cannot_be_read_is_named(write, text, words):
    with pytest.raises(JobError) as caught:
        manifests_in(write(text=f"apiVersion: v1\n{text}"))
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["name: a\nfunction: b:c\n", "[]", "7", "a: b: c"])
def test_another_file_is_left_to_the_reader_of_job_files(write, text):
    assert manifests_in(write(text=text)) is None


def test_no_pipe_is_opened(tmp_path):
    assert manifests_in(tmp_path) is None
    assert manifests_in(tmp_path / "gone") is None


@pytest.mark.parametrize(("minor", "code"), [("34+", EXIT_JOB), ("99", 0)])
def test_the_schemas_are_those_of_the_cluster_s_version(write, tmp_path, monkeypatch, minor, code):
    """The field is unknown to 1.34; of 1.99 there are no schemas. The kubectl is a fake."""
    version = f'{{"serverVersion": {{"major": "1", "minor": "{minor}"}}}}'
    fake = tmp_path / "kubectl"
    fake.write_text(f"#!/bin/sh\ncase \"$*\" in *version*) echo '{version}';; esac\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    done = validate(write(changed(rayjob(), {f"{HEAD_POD}/newer": 1})), "--pod-security", "privileged")
    assert done.exit_code == code, done.output
    assert ("newer is not a field of Kubernetes" in done.output) == bool(code)
