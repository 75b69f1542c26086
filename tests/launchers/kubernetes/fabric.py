"""The job files of docs/guides/kubernetes.md for nodes with InfiniBand, RoCE or EFA."""

import re
from pathlib import Path

_DOCS = Path(__file__).parents[3] / "docs"


def examples() -> list[str]:
    text = (_DOCS / "kubernetes.md").read_text()
    section = text.partition("## Nodes with InfiniBand, RoCE or EFA\n")[2].partition("\n## ")[0]
    return re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
