"""Images of single programs that link to nothing, made without a registry or a builder.

An archive as `docker save` would write it, which containerd imports: one layer, one configuration.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

_USER = "65532:65532"


def program_image(name: str, program: Path, command: Sequence[str]) -> bytes:
    """`program` lies at the path that `command` begins with."""
    layer = _tar({command[0].lstrip("/"): (program.read_bytes(), 0o755)})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(command), "User": _USER},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
        "layer.tar": layer,
    }
    return _tar({path: (content, 0o644) for path, content in files.items()})


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        for path, (content, mode) in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            made.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
