"""Write the failures that `explain` knows into docs/reference/errors.md.

python docs/site/errors.py docs/reference/errors.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from clustertrain.observe.explain.catalogue import ENTRY_POINTS, LAUNCHERS, Remedy, catalogue

BEGIN = "<!-- catalogue: the list below is written by docs/site/errors.py -->"
END = "<!-- end of catalogue -->"


def catalogue_markdown() -> str:
    """The list: a heading for each failure."""
    texts = []
    for entry in catalogue():
        cause = entry.cause if entry.kind == "cause" else f"{entry.cause} ({entry.kind})"
        again = "" if entry.retry == "unless_same" else f" *Tried again: {entry.retry}.*"
        texts.append(f"### `{entry.name}`\n\n{cause}{again}\n\n{' '.join(map(_text, entry.change))}\n")
    return "\n".join(texts)


def _text(part: Remedy) -> str:
    words = [word for word in (*ENTRY_POINTS, *LAUNCHERS) if word in part.words]
    return f"*{', '.join(words)}:* {part.text}" if words else part.text


if __name__ == "__main__":
    page = Path(sys.argv[1])
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{catalogue_markdown()}\n{END}{rest.partition(END)[2]}", "utf-8")
