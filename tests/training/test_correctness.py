"""docs/concepts/several-ranks.md and the script of its blocks, examples/correctness/correctness.py."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "several-ranks.md").read_text()
BLOCK = re.compile(r"^<!-- output: (\w+) -->\n```text\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def demonstration():
    """The script as a module; each rank loads it by its path."""
    path = ROOT / "examples" / "correctness" / "correctness.py"
    spec = importlib.util.spec_from_file_location("correctness", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _report(rank_info):
    return demonstration().report()


def test_the_blocks_of_the_page_are_the_output_of_the_script(ranks):
    of_ranks = ranks(2).results(_report)
    assert of_ranks[0] == dict(BLOCK.findall(PAGE)), "put what the script prints between the marks"


def test_every_number_in_the_text_is_in_the_output_of_its_section():
    sections = [each for each in re.split(r"^## ", PAGE, flags=re.MULTILINE) if BLOCK.search(each)]
    assert len(sections) == len(demonstration().SECTIONS)
    for section in sections:
        shown = {number for _, text in BLOCK.findall(section) for number in NUMBER.findall(text)}
        text = re.sub(r"^```.*?^```$|\]\(.*?\)", "", section, flags=re.MULTILINE | re.DOTALL)
        assert set(NUMBER.findall(text)) <= shown, section.partition("\n")[0]
