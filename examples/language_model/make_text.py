"""Writes stories.tar.gz: the text that language_model.py is trained on, from a grammar and a seed.

    python make_text.py stories.tar.gz
    python make_text.py small.tar.gz --bytes 65536

A story has one derivation in the grammar, and each choice has the same probability for each option. So the
probability of the text is known, and with it the mean loss that no model can beat except by chance: it is
printed.
"""

import argparse
import gzip
import io
import math
import random
import tarfile
from collections import Counter
from pathlib import Path

BYTES = 2048 * 256 + 1  # 2,048 windows of 256 bytes, each with the byte after it
PEOPLE = (
    *(("Anna", "she"), ("Bert", "he"), ("Clara", "she"), ("David", "he"), ("Emma", "she"), ("Frank", "he")),
    *(("Greta", "she"), ("Hugo", "he"), ("Ida", "she"), ("Jonas", "he"), ("Karla", "she"), ("Lukas", "he")),
)
TRADES = ("baker", "carpenter", "fisher", "gardener", "miller", "painter", "smith", "tailor")
THINGS = ("apples", "baskets", "candles", "geese", "hats", "lamps", "pots", "ropes", "spoons", "stools")
PLACES = ("at the market", "by the river", "in the mill", "on the bridge")
WAYS = ("sold", "gave", "lent")


class Writer:
    """Makes the choices of a story, and adds up the negative logarithm of their probabilities."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self.nats = 0.0

    def choose(self, options):
        self.nats += math.log(len(options))
        return options[self._random.randrange(len(options))]


def story(writer):
    """A story: what follows from its first sentences is repeated or computed in the later ones."""
    first, pronoun = person = writer.choose(PEOPLE)
    trade, thing = writer.choose(TRADES), writer.choose(THINGS)
    other, other_pronoun = writer.choose([each for each in PEOPLE if each != person])
    other_trade = writer.choose(TRADES)
    had = writer.choose(range(3, 21))
    way, place = writer.choose(WAYS), writer.choose(PLACES)
    gone = writer.choose(range(1, had))
    more = writer.choose(range(1, 10))
    who, asked = writer.choose(((first, trade), (other, other_trade)))
    return (
        f"{first} the {trade} had {had} {thing}. "
        f"{place.capitalize()} {pronoun} {way} {gone} of the {thing} to {other} the {other_trade}. "
        f"{had} - {gone} = {had - gone}, so {had - gone} {thing} were left. "
        f"Then {other_pronoun} came with {more} more. {gone} + {more} = {gone + more}, "
        f"so {other} had {gone + more} {thing}. Who is {who}? {who} is the {asked}.\n"
    )


def text(size, seed=0):
    """`size` bytes of stories, and their mean negative log probability per byte in nats."""
    writer, parts, length = Writer(seed), [], 0
    while length < size:
        parts.append(story(writer))
        length += len(parts[-1])
    return "".join(parts).encode("ascii")[:size], writer.nats / length


def entropy_of_bytes(content):
    """In nats per byte: the mean loss of a model that has learned only how often each byte occurs."""
    shares = [count / len(content) for count in Counter(content).values()]
    return -sum(share * math.log(share) for share in shares)


def archive_bytes(content):
    """The same bytes for the same content: the archive holds no dates and no names of users."""
    member = tarfile.TarInfo("stories.txt")
    member.size = len(content)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(member, io.BytesIO(content))
    return gzip.compress(tar.getvalue(), compresslevel=9, mtime=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--bytes", type=int, default=BYTES)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    content, nats = text(args.bytes, args.seed)
    Path(args.target).write_bytes(archive_bytes(content))
    print(f"{len(content):,} bytes; no model has a mean loss below {nats:.4f} nats per byte")
    print(f"with the frequencies of the bytes only it is {entropy_of_bytes(content):.2f}")
