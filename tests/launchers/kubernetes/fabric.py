"""The job files of docs/guides/gpu-nodes.md for nodes with InfiniBand, RoCE or EFA."""

import re
from pathlib import Path

_DOCS = Path(__file__).parents[3] / "docs" / "guides"


def examples() -> list[str]:
    text = (_DOCS / "gpu-nodes.md").read_text()
    section = text.partition("## Kubernetes with InfiniBand, RoCE or EFA\n")[2].partition("\n## ")[0]
    return re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
