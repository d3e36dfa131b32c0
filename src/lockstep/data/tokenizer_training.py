"""Training tokenizers so that the same text gives the same tokens, in every process.

What was found with `tokenizers` 0.23 by training in fresh processes, with and without its threads:

- Byte-level BPE gives the same bytes each time.
- WordPiece differs, even in which tokens it has: its trainer numbers the `##x` characters in the order of a
  hash map that is seeded anew in each process, and these numbers decide between equally frequent merges.
  Naming those characters to the trainer in advance, in a defined order, removes the difference.
- Unigram finds the same tokens in another order, with scores that differ by about 1e-10 (sums taken in
  another order), and with an arbitrary step of 0.0001 between characters that it keeps only because they
  occur. Here scores are rounded, those characters share the lowest score, and tokens are put in order of
  score and then of text.
- Its word-level trainer is not used: counting is easily done here, with ties in a defined order.

One thread or many makes no difference to any of this.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from lockstep.data.character_tokenizer import CharacterTokenizer
from lockstep.data.corpus import Corpus
from lockstep.data.gpt2 import byte_level_bpe
from lockstep.data.library_tokenizer import LibraryTokenizer, in_pieces
from lockstep.data.tokenizer_base import Tokenizer, readable
from lockstep.errors import UserError

UNK, EOS, MASK = "<unk>", "<eos>", "<mask>"
SPECIALS = (UNK, EOS, MASK)
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BYTE_TOKENS = tuple(f"<0x{value:02X}>" for value in range(256))
FIXED = (*SPECIALS, *BYTE_TOKENS)
"""The tokens that every unigram vocabulary begins with."""
SPECIAL_SCORE = -1000.0
"""So low that no text is ever read as one of the fixed tokens."""
COVERAGE = 0.9995
"""The share of characters that get a token of their own in a unigram vocabulary; bytes spell the others."""
WORDPIECE_ALPHABET = 1000
SCORE_DIGITS = 6
REQUIRED_STEP = 0.0001
"""The unigram trainer's step between characters that it has to keep."""
LINE_BREAK = "\n"


def texts(corpus: Corpus) -> Iterator[str]:
    """The training split as text, in pieces that the library can hold."""
    for document in corpus.documents("train"):
        for _, piece in in_pieces(readable(document)):
            yield piece


def train_character(corpus: Corpus, size: int | None) -> Tokenizer:
    """Every character seen, the most frequent first."""
    characters = by_frequency(count_characters(corpus))
    return CharacterTokenizer("".join(characters[: None if size is None else max(0, size - len(SPECIALS))]))


def train_word(corpus: Corpus, size: int | None) -> Tokenizer:
    """Words between spaces, and the line break as a word of its own, as word-level results count it."""
    counts: Counter[str] = Counter()
    for text in texts(corpus):
        counts.update(text.split())
        counts[LINE_BREAK] += text.count(LINE_BREAK)
    words = [word for word in by_frequency(counts) if word not in SPECIALS and counts[word]]
    # Separator and mask are no words of the model: a text that spells them out has not ended.
    added = len(SPECIALS) - 1
    tokens = [UNK, *words][: None if size is None else max(1, size - added)]
    model = models.WordLevel(vocab={token: number for number, token in enumerate(tokens)}, unk_token=UNK)
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(LINE_BREAK, "isolated"),
            pre_tokenizers.Split(Regex(r"[^\S\n]+"), "removed"),
        ]
    )
    return _finish("word", library, SPECIALS)


def train_bpe(corpus: Corpus, size: int) -> Tokenizer:
    """BPE over bytes, as GPT-2's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _require("bpe", size, len(SPECIALS) + len(alphabet))
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS), initial_alphabet=alphabet, show_progress=sys.stderr.isatty()
    )
    library.train_from_iterator(texts(corpus), trainer)
    learned = [(first, second) for first, second in json.loads(library.to_str())["model"]["merges"]]
    vocabulary, merges = without_specials([*SPECIALS, *alphabet], learned)
    return LibraryTokenizer("bpe", byte_level_bpe(vocabulary, merges, SPECIALS), EOS, MASK)


def without_specials(tokens: list[str], learned: list[tuple[str, str]]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Number the tokens; text that spells out a special token must not become it, so such merges go."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = []
    for first, second in learned:
        made = first + second
        if made not in SPECIALS and first in vocabulary and second in vocabulary:
            vocabulary.setdefault(made, len(vocabulary))
            merges.append((first, second))
    return vocabulary, merges


def train_wordpiece(corpus: Corpus, size: int) -> Tokenizer:
    """BERT's: punctuation and spaces part words; the case is kept."""
    characters = [one for one in by_frequency(count_characters(corpus)) if not one.isspace()]
    alphabet = sorted(characters[:WORDPIECE_ALPHABET])
    inner = [f"##{character}" for character in alphabet]
    _require("wordpiece", size, len(BERT_SPECIALS) + 2 * len(alphabet))
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        # The inner characters are named here for their order only; see the head of this file.
        special_tokens=[*BERT_SPECIALS, *inner],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=sys.stderr.isatty(),
    )
    library.train_from_iterator(texts(corpus), trainer)
    model = models.WordPiece(vocab=library.get_vocab(with_added_tokens=True), unk_token="[UNK]")
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return _finish("wordpiece", library, BERT_SPECIALS, eos="[SEP]", mask="[MASK]")


def train_unigram(corpus: Corpus, size: int) -> Tokenizer:
    """SentencePiece's unigram model: spaces begin words, lines are apart, bytes spell rare characters."""
    counts = count_characters(corpus)
    rare = rare_characters(counts)
    # A text may spell out a special token: with all its characters known, spelling it is always cheaper.
    unseen = sorted(set("".join(FIXED)) - (counts.keys() - set(rare)))
    least = len(FIXED) + len(unseen)
    library = tokenizers.Tokenizer(models.Unigram())
    library.pre_tokenizer = _words_after_spaces()
    trainer = trainers.UnigramTrainer(
        vocab_size=max(2, size - least + 1), special_tokens=[UNK], unk_token=UNK, show_progress=sys.stderr.isatty()
    )
    # A rare character is read as a line break: it then is part of no token.
    table = dict.fromkeys(map(ord, rare), LINE_BREAK)
    try:
        library.train_from_iterator((text.translate(table) for text in texts(corpus)), trainer)
    except Exception as error:  # the library raises a bare Exception, for instance when the size is too small
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"tokenizer.vocab_size {size}: no unigram vocabulary on {corpus.name} ({reason}); choose a larger one"
        ) from None
    learned = dict(json.loads(library.to_str())["model"]["vocab"])
    scored = in_defined_order({token: score for token, score in learned.items() if token not in FIXED})
    scored += [(character, scored[-1][1]) for character in unseen]
    vocabulary = [(token, SPECIAL_SCORE) for token in FIXED] + scored
    library = tokenizers.Tokenizer(models.Unigram(vocabulary, SPECIALS.index(UNK), byte_fallback=True))
    library.pre_tokenizer = _words_after_spaces()
    library.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never"), decoders.Fuse()]
    )
    return _finish("unigram", library, SPECIALS)


def in_defined_order(scored: dict[str, float]) -> list[tuple[str, float]]:
    """By descending score, ties by text; the scores freed of what differs from run to run."""
    lowest = round(min(scored.values()), SCORE_DIGITS)
    singles = sum(len(token) == 1 for token in scored)
    edge = lowest + REQUIRED_STEP * (singles + 1)
    defined = {
        token: lowest if len(token) == 1 and score < edge else round(score, SCORE_DIGITS)
        for token, score in scored.items()
    }
    return sorted(defined.items(), key=lambda pair: (-pair[1], pair[0]))


def count_characters(corpus: Corpus) -> Counter[str]:
    """How often each character occurs in the training split."""
    counts: Counter[str] = Counter()
    for text in texts(corpus):
        counts.update(text)
    return counts


def by_frequency(counts: Counter[str]) -> list[str]:
    """The most frequent first, ties by text."""
    return sorted(counts, key=lambda token: (-counts[token], token))


def rare_characters(counts: Counter[str]) -> list[str]:
    """Those that are left when the frequent ones make up `COVERAGE` of the text."""
    wanted = COVERAGE * counts.total()
    covered = 0
    ordered = by_frequency(counts)
    for index, character in enumerate(ordered):
        if covered >= wanted:
            return ordered[index:]
        covered += counts[character]
    return []


def _words_after_spaces() -> pre_tokenizers.PreTokenizer:
    lines = pre_tokenizers.Split(LINE_BREAK, "isolated")
    return pre_tokenizers.Sequence([lines, pre_tokenizers.Metaspace(prepend_scheme="never")])


def _finish(
    kind: str, library: tokenizers.Tokenizer, specials: Iterable[str], eos: str = EOS, mask: str = MASK
) -> Tokenizer:
    library.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in specials])
    return LibraryTokenizer(kind, library.to_str(), eos, mask)


def _require(kind: str, size: int, least: int) -> None:
    if size < least:
        raise UserError(f"tokenizer.vocab_size {size}: a {kind} tokenizer on this text needs at least {least}")
