"""Images for containerd, made without a registry or a builder: archives as `docker save` writes them.

One layer, one configuration: of a program that links to nothing, or of an image whose files come otherwise.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_USER = "65532:65532"


def program_image(name: str, program: Path, command: Sequence[str]) -> bytes:
    """`program` lies at the path that `command` begins with."""
    file = {command[0].lstrip("/"): (program.read_bytes(), 0o755)}
    return _image(name, file, {"Entrypoint": list(command), "User": _USER})


def empty_image(name: str, config: Mapping, mark: str) -> bytes:
    """It holds one empty file, `mark`."""
    return _image(name, {mark: (b"", 0o644)}, config)


def _image(name: str, files: dict[str, tuple[bytes, int]], config: Mapping) -> bytes:
    layer = _tar(files)
    whole = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    parts = {
        "config.json": json.dumps(whole).encode(),
        "manifest.json": json.dumps(manifest).encode(),
        "layer.tar": layer,
    }
    return _tar({path: (content, 0o644) for path, content in parts.items()})


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        for path, (content, mode) in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            made.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
