import gzip
import hashlib
import importlib.util
import tarfile
from pathlib import Path

import pytest

from clustertrain import load_job
from clustertrain.worker.code.user_code import check_code
from support.example_modules import clustertrain

EXAMPLES = Path(__file__).parent.parent / "examples"
DIGITS = EXAMPLES / "digits" / "digits.tar.gz"


@pytest.mark.slow
@pytest.mark.parametrize(
    "job_file", sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/*.yaml"))
)
def test_every_example_validates_and_names_code_that_imports(job_file, monkeypatch):
    path = EXAMPLES / job_file
    job = load_job(path)
    monkeypatch.syspath_prepend(*job.code)
    check_code(job)
    assert (path.parent / "job.yaml").exists()
    assert (path.parent / "README.md").exists()


def test_the_digits_match_the_job_and_the_readme():
    sha256 = hashlib.sha256(DIGITS.read_bytes()).hexdigest()
    assert load_job(EXAMPLES / "digits" / "job.yaml").data["digits"].sha256 == sha256
    assert sha256 in (EXAMPLES / "digits" / "README.md").read_text()


def test_the_archive_holds_1797_images_and_is_made_again_by_its_script():
    with tarfile.open(DIGITS) as archive:
        csv = archive.extractfile("digits.csv").read()
    rows = [line.split(b",") for line in csv.splitlines()]
    assert len(rows) == 1797
    assert all(len(row) == 65 for row in rows)
    assert {row[64] for row in rows} == {str(digit).encode() for digit in range(10)}
    spec = importlib.util.spec_from_file_location("make_archive", EXAMPLES / "digits" / "make_archive.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # What zlib makes of it differs between its versions; the tar inside may not.
    assert gzip.decompress(module.archive_bytes(csv)) == gzip.decompress(DIGITS.read_bytes())


@pytest.mark.run
def test_make_train_reaches_97_percent(tmp_path):
    """The command behind `make train`, with its storage moved aside."""
    done = clustertrain("run", str(EXAMPLES / "digits" / "job.yaml"), "--set", f"storage={tmp_path}")
    accuracy = next(line for line in done.stdout.splitlines() if line.startswith("accuracy"))
    assert float(accuracy.split()[1]) >= 0.97
    assert str(tmp_path / "digits") in done.stdout
    assert "clustertrain" in done.stdout.splitlines()[-1]
