"""What a program prints, as a terminal shows it."""

import pytest

from clustertrain.observe.terminal_text import TerminalText


def shown(*pieces):
    """The finished lines, and those that are open after the last piece."""
    printed = TerminalText()
    finished = [line for piece in pieces for line in printed.feed(piece)]
    return finished, printed.open


@pytest.mark.parametrize(
    ("pieces", "finished", "unfinished"),
    [
        ([b"one\ntw", b"o\n\nthree"], ["one", "two", ""], ["three"]),
        ([b"windows\r\nlines\r\n"], ["windows", "lines"], []),
        ([b"\r 0%|    |", b"\r50%|##", b"  |\r"], [], ["50%|##  |"]),
        ([b"\r50%|##  |\r99%", b"\r100%\nnext\n"], ["100%", "next"], []),
        ([b"a|\b/\b-"], [], ["a-"]),
        ([b"50%\x1b[2K\rdone\n"], ["done"], []),
    ],
)
def test_a_line_ends_with_its_newline_and_a_bar_is_one_in_its_last_state(pieces, finished, unfinished):
    assert shown(*pieces) == (finished, unfinished)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_character_of_several_bytes_may_be_cut(size):
    data = "█▌ 50% 🧪 żółw\n█".encode()
    pieces = [data[n : n + size] for n in range(0, len(data), size)]
    assert shown(*pieces) == (["█▌ 50% 🧪 żółw"], ["█"])
    assert shown("█".encode()[:2]) == ([], [])


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_nothing_in_it_changes_a_terminal(size):
    data = (
        b"\x1b[31mred\x1b[0m \x1b]0;a title\x07\x1b]8;;http://a\x1b\\a link\x1b]8;;\x1b\\ "
        b"\x1b[?1049h\x1b[2J\x1b[10;10H\x1bcend\x07\x9b\x00\xff\xe2\x80\xae\n"
    )
    pieces = [data[n : n + size] for n in range(0, len(data), size)]
    assert shown(*pieces) == (["red a link end�\\x00�\\u202e"], [])


def test_bytes_that_are_no_text_are_lines_of_printable_characters():
    data = bytes(range(256)) * 40
    finished, unfinished = shown(*(data[n : n + 97] for n in range(0, len(data), 97)))
    assert all(line.replace("\t", "").isprintable() for line in [*finished, *unfinished])


def test_every_space_is_a_space():
    lines = ["perte\u00a0: 0,5", "\u640d\u5931\u3000 0.5", "1\u202f000\u2009it/s"]
    assert shown("".join(f"{line}\n" for line in lines).encode()) == (lines, [])


def test_a_very_long_line_is_cut_and_the_next_one_is_whole():
    finished, _ = shown(*[b"x" * 1_000_000] * 3, b"\nnext\n")
    assert (len(finished[0]), finished[0][-1], finished[1]) == (10_001, "…", "next")


def test_a_sequence_that_never_ends_holds_nothing_back():
    finished, _ = shown(b"\x1b]0;", *[b"x" * 1000] * 6, b"\nnext\n")
    assert finished[-1] == "next"
