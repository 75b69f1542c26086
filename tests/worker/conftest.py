import pytest

from clustertrain.run_files.folder.run_dir import RunDir


@pytest.fixture(params=["posix", pytest.param("moto", marks=pytest.mark.slow)])
def attempt(request, tmp_path, monkeypatch):
    """An attempt of a run in a folder, and of one on S3."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "posix":
        return RunDir.newest(str(tmp_path / "runs"), "digits").attempt(1)
    return RunDir.newest(request.getfixturevalue("moto_s3").location("runs"), "digits").attempt(1)
