"""Every kind of tokenizer: exact byte lengths, round trips, and a definition that survives saving."""

from __future__ import annotations

import json
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.config.tokenizer import TokenizerSpec
from lockstep.data.corpora import Corpus
from lockstep.data.library_tokenizer import in_pieces
from lockstep.data.tokenizers import (
    ByteTokenizer,
    Tokenizer,
    load_tokenizer,
    make_tokenizer,
    train_tokenizer,
)
from lockstep.errors import UserError
from tests.data.sample_text import TEXT

SIZES = {"bpe": 400, "unigram": 400, "wordpiece": 200, "character": None, "word": None}
KINDS = ("bytes", *SIZES)
LOSSLESS = ("bytes", "bpe", "unigram", "character")

Every = dict[str, Tokenizer]


@pytest.fixture(scope="module")
def every(tiny_corpus: Corpus) -> Every:
    trained = {kind: train_tokenizer(kind, size, tiny_corpus) for kind, size in SIZES.items()}
    return {"bytes": ByteTokenizer(), **trained}


documents = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")),
    st.lists(st.sampled_from([*TEXT.split(" "), " ", "\n", "<eos>", "🙂", "\u2581"]), max_size=20).map(
        lambda words: " ".join(words).encode()
    ),
)


@pytest.mark.parametrize("kind", KINDS)
@given(document=documents)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_byte_lengths_sum_to_the_document(every: Every, kind: str, document: bytes) -> None:
    tokenizer = every[kind]
    ids, lengths = tokenizer.encode_with_lengths(document)
    assert ids.shape == lengths.shape
    assert np.array_equal(ids, tokenizer.encode(document))
    assert int(lengths.sum()) == (len(document) if len(ids) else 0)
    assert lengths.size == 0 or int(lengths.max()) <= len(document)
    assert ids.size == 0 or (ids.min() >= 0 and ids.max() < tokenizer.vocab_size)
    assert tokenizer.eos_id not in ids
    assert tokenizer.mask_id not in ids


@pytest.mark.parametrize("kind", LOSSLESS)
@given(document=st.lists(st.sampled_from([*TEXT, "the ", "lobster"]), max_size=40).map("".join))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ordinary_text_comes_back(every: Every, kind: str, document: str) -> None:
    assert every[kind].decode(every[kind].encode(document.encode()).tolist()) == document


@pytest.mark.parametrize("kind", ["bytes", "bpe", "unigram"])
@given(document=st.text(st.characters(codec="utf-8", exclude_characters="\u2581"), max_size=30))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_characters_never_seen_come_back_too(every: Every, kind: str, document: str) -> None:
    assert every[kind].decode(every[kind].encode(document.encode()).tolist()) == document


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.sampled_from(sorted(set(TEXT))), max_size=80))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cutting_a_long_text_leaves_its_tokens_alone(every: Every, kind: str, text: str) -> None:
    pieces = [every[kind].encode(piece.encode()) for _, piece in in_pieces(text, size=7)]
    together = np.concatenate(pieces) if pieces else np.empty(0)
    assert together.tolist() == every[kind].encode(text.encode()).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_the_same(every: Every, kind: str, tmp_path: Path) -> None:
    tokenizer = every[kind]
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.kind == kind
    assert (loaded.vocab_size, loaded.eos_id, loaded.mask_id) == (
        tokenizer.vocab_size,
        tokenizer.eos_id,
        tokenizer.mask_id,
    )
    assert loaded.special_ids == tokenizer.special_ids
    assert loaded.encode(TEXT.encode()).tolist() == tokenizer.encode(TEXT.encode()).tolist()


def test_fingerprints_tell_tokenizers_apart(every: Every) -> None:
    assert len({tokenizer.fingerprint for tokenizer in every.values()}) == len(every)


def test_specials_have_distinct_ids_and_no_text(every: Every) -> None:
    for tokenizer in every.values():
        assert tokenizer.eos_id != tokenizer.mask_id
        assert {tokenizer.eos_id, tokenizer.mask_id} <= tokenizer.special_ids
        assert tokenizer.decode(sorted(tokenizer.special_ids)) == ""


@pytest.mark.parametrize("kind", LOSSLESS)
def test_text_that_spells_out_a_special_token_stays_text(kind: str) -> None:
    document = b"<unk> says <eos> and <mask> or <0x41> [MASK]\n" * 50
    quoting = Corpus("quoting", "special tokens as text", lambda split: iter([document]))
    tokenizer = train_tokenizer(kind, {"bpe": 320, "unigram": 330}.get(kind), quoting) if kind != "bytes" else None
    tokenizer = tokenizer or ByteTokenizer()
    ids = tokenizer.encode(document).tolist()
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.decode(ids) == document.decode()


def test_words_and_line_breaks_are_tokens(every: Every) -> None:
    word = every["word"]
    assert word.decode(word.encode(b"the sea\nslept. unheard-of").tolist()).split(" ") == ["the", "sea", "\n", "slept."]
    assert word.encode(b"unheard-of <unk>").tolist() == [0, 0]
    ids, lengths = word.encode_with_lengths(b"  the  sea ")
    assert lengths.tolist() == [5, 6]
    assert len(ids) == 2


def test_the_case_of_wordpiece_text_is_kept(every: Every) -> None:
    piece = every["wordpiece"]
    assert piece.encode(b"The").tolist() != piece.encode(b"the").tolist()
    assert piece.decode(piece.encode(b"The sea was calm").tolist()) == "The sea was calm"


def test_a_trained_tokenizer_is_cached_and_a_small_one_warned_about(tiny_corpus: Corpus, own_cache: Path) -> None:
    spec = TokenizerSpec(tokenizer_type="sentencepiece", vocab_size=5000)
    with pytest.warns(UserWarning, match=r"vocab_size 5000: tiny gives a unigram vocabulary of only \d+"):
        first = make_tokenizer(spec, tiny_corpus)
    (folder,) = (own_cache / "tokenizers").iterdir()
    assert folder.name.startswith(f"unigram-5000-{tiny_corpus.digest[:12]}")
    time = (folder / "tokenizer.json").stat().st_mtime_ns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same warning, which was asked for above
        again = make_tokenizer(TokenizerSpec(tokenizer_type="unigram", vocab_size=5000), tiny_corpus)
    assert again.fingerprint == first.fingerprint
    assert (folder / "tokenizer.json").stat().st_mtime_ns == time


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_a_vocabulary_too_small_for_the_alphabet_is_one_line(kind: str, tiny_corpus: Corpus, own_cache: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size 40") as caught:
        make_tokenizer(TokenizerSpec.model_validate({"tokenizer_type": kind, "vocab_size": 40}), tiny_corpus)
    assert "\n" not in str(caught.value)
    assert list((own_cache / "tokenizers").iterdir()) == []


def test_a_requested_size_is_reached_exactly(every: Every) -> None:
    assert {kind: every[kind].vocab_size for kind in ("bpe", "wordpiece")} == {"bpe": 400, "wordpiece": 200}


RealData = Callable[[str], Path]


def test_gpt2_gives_the_published_ids(real_data: RealData, tiny_corpus: Corpus) -> None:
    real_data("gpt2-bpe.tar.xz")
    gpt2 = make_tokenizer(TokenizerSpec(tokenizer_type="gpt2"), tiny_corpus)
    assert (gpt2.vocab_size, gpt2.eos_id, gpt2.mask_id) == (50257, 50256, None)
    assert gpt2.encode(b"Hello, world!").tolist() == [15496, 11, 995, 0]
    assert gpt2.decode(gpt2.encode(TEXT.encode()).tolist()) == TEXT
    assert gpt2.eos_id not in gpt2.encode(b"it says <|endoftext|> here")
    for document in (TEXT.encode(), b"\xff\xfe \xe6\x97 broken", "日本🙂".encode()):
        assert gpt2.encode_with_lengths(document)[1].sum() == len(document)


def test_gpt2_is_the_same_from_every_form(real_data: RealData, tiny_corpus: Corpus, tmp_path: Path) -> None:
    with tarfile.open(real_data("gpt2-bpe.tar.xz")) as tar:
        # Python before 3.11.4 has no filters, and Python from 3.12 on warns of their absence.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(tmp_path)
    folder = tmp_path / "gpt2-bpe"
    prints = [make_tokenizer(TokenizerSpec(tokenizer_type="gpt2"), tiny_corpus).fingerprint]
    for path in (folder / "tokenizer.json", folder):
        spec = TokenizerSpec(tokenizer_type="gpt2", path=str(path))
        prints.append(make_tokenizer(spec, tiny_corpus).fingerprint)
    (folder / "tokenizer.json").rename(tmp_path / "aside.json")
    prints.append(make_tokenizer(TokenizerSpec(tokenizer_type="gpt2", path=str(folder)), tiny_corpus).fingerprint)
    (folder / "vocab.json").rename(folder / "encoder.json")
    (folder / "merges.txt").rename(folder / "vocab.bpe")
    prints.append(make_tokenizer(TokenizerSpec(tokenizer_type="gpt2", path=str(folder)), tiny_corpus).fingerprint)
    assert len(set(prints)) == 1
    as_file = make_tokenizer(TokenizerSpec(tokenizer_type="file", path=str(tmp_path / "aside.json")), tiny_corpus)
    assert as_file.eos_id == 50256
    assert as_file.encode(b"Hello, world!").tolist() == [15496, 11, 995, 0]


def test_without_gpt2_the_line_says_where_to_put_it(tiny_corpus: Corpus, own_cache: Path) -> None:
    with pytest.raises(UserError, match=r"gpt2-bpe\.tar\.xz") as caught:
        make_tokenizer(TokenizerSpec(tokenizer_type="gpt2"), tiny_corpus)
    assert str(own_cache) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_a_separator_is_refused(every: Every, tiny_corpus: Corpus, tmp_path: Path) -> None:
    every["unigram"].save(tmp_path)
    path = tmp_path / "tokenizer.json"
    taken = make_tokenizer(TokenizerSpec(tokenizer_type="file", path=str(path)), tiny_corpus)
    assert taken.eos_id == every["unigram"].eos_id
    assert taken.mask_id == every["unigram"].mask_id
    definition = json.loads(path.read_text())
    definition["added_tokens"] = []
    definition["model"]["vocab"][1][0] = "<other>"
    path.write_text(json.dumps(definition))
    for damage in (path.read_text(), "{", "{}"):
        path.write_text(damage)
        with pytest.raises(UserError, match=r"tokenizer\.path") as caught:
            make_tokenizer(TokenizerSpec(tokenizer_type="file", path=str(path)), tiny_corpus)
        assert "\n" not in str(caught.value)
