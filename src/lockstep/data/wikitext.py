"""The WikiText corpora, one document per article."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lockstep.data.corpus import SPLITS, Corpus
from lockstep.data.published import Archive, Part, locate

PUBLISHED = "https://s3.amazonaws.com/research.metamind.io/wikitext/"
SECTION = b" = = "

RAW_VALID = "4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7"
RAW_TEST = "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08"


def _parts(
    folder: str,
    ending: str,
    archives: tuple[str, ...],
    published: str,
    checksums: dict[str, str],
    held_out_only: tuple[str, ...] = (),
) -> dict[str, Part]:
    return {
        split: Part(
            member=f"{folder}/wiki.{split}.{ending}",
            sha256=checksums.get(split),
            archives=(*archives, published, *(held_out_only if split != "train" else ())),
            origin=Archive(PUBLISHED + published, published),
        )
        for split in SPLITS
    }


WIKITEXT_2_RAW = _parts(
    "wikitext-2-raw",
    "raw",
    ("wikitext-2-raw.tar.xz", "wikitext-2-raw.tar.gz"),
    "wikitext-2-raw-v1.zip",
    {
        "train": "6707892fa3788b5ab9ed78ab5ff37d9fe825f6011a2ad4fcd6a6d467f0e7da57",
        "valid": RAW_VALID,
        "test": RAW_TEST,
    },
)
WIKITEXT_2_WORD = _parts(
    "wikitext-2",
    "tokens",
    ("wikitext-2.tar.xz", "wikitext-2.tar.gz"),
    "wikitext-2-v1.zip",
    {
        "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    },
)
# No checksum of either WikiText-103 training file is known to us: those are taken as they are. The raw
# valid and test texts are those of WikiText-2 raw, byte for byte, and are checked.
WIKITEXT_103_RAW = _parts(
    "wikitext-103-raw",
    "raw",
    ("wikitext-103-raw.tar.xz", "wikitext-103-raw.tar.gz"),
    "wikitext-103-raw-v1.zip",
    {"valid": RAW_VALID, "test": RAW_TEST},
)
WIKITEXT_103_WORD = _parts(
    "wikitext-103",
    "tokens",
    ("wikitext-103.tar.xz", "wikitext-103.tar.gz"),
    "wikitext-103-v1.zip",
    {
        "valid": "9aee9f52d6e77de6c7751fc5e7c44287db3ec0eaf15477098acc6b93c1c4250b",
        "test": "56db52eb157b1ab5c89646eef70510c1eca6e12a3bfdb99f0d6b05b4eacb75b9",
    },
    # The held-out sets also travel alone, without the large training set.
    held_out_only=("wikitext-103-valid-test.tar.xz",),
)


def wikitext(name: str, description: str, parts: dict[str, Part]) -> Corpus:
    """A WikiText corpus whose files are found, or fetched."""
    places = dict(zip(SPLITS, locate(name, tuple(parts[split] for split in SPLITS)), strict=True))

    def read(split: str) -> Iterator[bytes]:
        return articles(places[split].lines())

    sources = tuple(dict.fromkeys(place.path for place in places.values()))
    return Corpus(name, description, read, sources)


def articles(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Cut before each top-level heading; joined again, the articles are the text exactly.

    A heading stands between blank lines. Formulas and legends that were broken into lines may look like
    headings otherwise; with this rule WikiText-2 has its 600, 60 and 60 articles.
    """
    rest = iter(lines)
    article: list[bytes] = []
    started = False
    previous, line = b"", next(rest, b"")
    while line:
        following = next(rest, b"")
        if is_title(line) and not previous.strip() and not following.strip():
            # The blank line that opens a file belongs to its first article.
            if started:
                yield b"".join(article)
                article = []
            started = True
        article.append(line)
        previous, line = line, following
    if article:
        yield b"".join(article)


def is_title(line: bytes) -> bool:
    """` = Title = `, and not ` = = Section = = `."""
    return (
        line.startswith(b" = ")
        and line.rstrip(b"\r\n").endswith(b" = ")
        and len(line.strip()) > len(b"= =")
        and not line.startswith(SECTION)
    )
