"""The harness asks one of our models and its own Hugging Face class the same, and hears the same."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.config.commonsense import COMMONSENSE, CommonsenseName
from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.data.gpt2 import EOS, gpt2_tokenizer
from lockstep.data.tokenizers import Tokenizer
from lockstep.errors import UserError
from lockstep.evaluation.commonsense import score_commonsense
from lockstep.evaluation.likelihood import encode_request
from lockstep.laws.subject import randomise
from lockstep.models.hugging_face import HuggingFaceModel
from lockstep.models.registry import build
from lockstep.models.sampling import Sampling
from tests.data.conftest import DATA
from tests.evaluation.test_commonsense import documents, harness_task

pytest.importorskip("lm_eval", reason="the eval extra is not installed")

from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate

from lockstep.evaluation.lm_eval_adapter import LockstepLM, before_stop, read_options

POSITIONS = 96
"""Few enough that the longer passages of LAMBADA are cut."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")


def find_data(file: str) -> Path:
    for folder in DATA.split(os.pathsep):
        if folder and (Path(folder) / file).is_file():
            return Path(folder) / file
    pytest.skip(f"{file} is in no folder of LOCKSTEP_DATA")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    place = find_data("gpt2-bpe.tar.xz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_DATA", str(place.parent))
        return gpt2_tokenizer(None)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> HuggingFaceModel:
    """A tiny GPT-2 of the transformers library as one of our models, random, in double precision."""
    pytest.importorskip("transformers", reason="the library whose model this is is not installed")
    sizes = {"vocab_size": tokenizer.vocab_size, "dim": 32, "depth": 2, "heads": 2, "max_length": POSITIONS}
    built = build("hf", **sizes, hf={"config": {"model_type": "gpt2"}})
    assert isinstance(built, HuggingFaceModel)
    randomise(built, seed=2)
    with torch.no_grad():
        # Otherwise it prefers one token to all others, whatever it has read.
        built.network.transformer.ln_f.bias.zero_()
    return built.double().eval()


@pytest.fixture(scope="module")
def ours(model: HuggingFaceModel, tokenizer: Tokenizer) -> LockstepLM:
    return LockstepLM(model, tokenizer, batch_size=7)


@pytest.fixture(scope="module")
def theirs(model: HuggingFaceModel, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The harness's own class around the very same network, with the library's own form of the tokenizer."""
    pytest.importorskip("accelerate", reason="the harness's own class for Hugging Face models needs it")
    transformers = pytest.importorskip("transformers", reason="the library whose model this is is not installed")
    huggingface = importlib.import_module("lm_eval.models.huggingface")
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(folder)
    special = {"bos_token": EOS, "eos_token": EOS, "pad_token": EOS}
    library = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **special)
    # Its cache of logits mistakes one window of a text that repeats itself for another.
    return huggingface.HFLM(pretrained=model.network, tokenizer=library, batch_size=4, device="cpu", logits_cache=False)


def instances(kind: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    return [Instance(kind, {}, one, place) for place, one in enumerate(arguments)]


def assert_same_likelihoods(ours: LockstepLM, theirs: Any, pairs: list[tuple[str, str]]) -> list[bool]:
    found = ours.loglikelihood(instances("loglikelihood", pairs))
    expected = theirs.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True)
    assert [one for one, _ in found] == pytest.approx([one for one, _ in expected], rel=0, abs=1e-6)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    return [greedy for _, greedy in found]


LONG = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12
AWKWARD = [
    ("", "An empty context"),
    ("", " a space first"),
    ("The cat sat on the", " mat"),
    ("The cat sat on the", " mat, and then the dog came in"),
    ("The cat sat on the", " sofa"),
    ("The cat sat on the ", "mat"),
    ("The cat sat on the \n", "mat"),
    ("The cat sat on the", "mat"),
    (LONG, " it was the season of Light"),
    (LONG, " it"),
    (LONG[:200], " " + LONG[:300]),
    ("Überraschung: 日本", "語のテキスト"),
    ("naïve café — “quoted”", " ünïcödé 🙂🙃"),
    ("👩‍👩‍👧", "👦"),
    ("x = 1\n", "    y = 2\n\n"),
]


def test_awkward_likelihoods_are_the_harnesss_own(ours: LockstepLM, theirs: Any) -> None:
    assert_same_likelihoods(ours, theirs, AWKWARD)


def test_what_a_model_says_is_its_own_for_both(ours: LockstepLM, theirs: Any) -> None:
    contexts = ["The cat sat on the", "Once", LONG[:100], "1, 2, 3,"]
    options = {"until": [], "max_gen_toks": 4}
    said = ours.generate_until(instances("generate_until", [(context, options) for context in contexts]))
    greedy = assert_same_likelihoods(ours, theirs, list(zip(contexts, said, strict=True)))
    assert any(greedy)
    assert not any(assert_same_likelihoods(ours, theirs, [(context, " never") for context in contexts]))


@pytest.mark.parametrize("text", ["One short text.", LONG, "語" * 150, "a", LONG[:400] + "🙂"])
def test_whole_texts_are_as_likely(text: str, ours: LockstepLM, theirs: Any) -> None:
    requests = instances("loglikelihood_rolling", [(text,), ("Another.",), (text + " More.",)])
    found = ours.loglikelihood_rolling(requests)
    assert found == pytest.approx(theirs.loglikelihood_rolling(requests, disable_tqdm=True), rel=0, abs=1e-6)


def test_continuations_are_the_harnesss_own(ours: LockstepLM, theirs: Any) -> None:
    """Prompts of several lengths in a batch, some too long; ends by text that the model does write, and by length."""
    prompts = ["The cat sat on the", "Once upon a time there was", LONG, "Q:", "Überraschung", "x = 1\n    y"]
    plain = {"until": [], "max_gen_toks": 12}
    unstopped = ours.generate_until(instances("generate_until", [(prompt, plain) for prompt in prompts]))
    written = [text for text in unstopped if len(text) > 8]
    assert len(set(written)) > 2
    inside, word = written[0][3:6], written[1].split()[-1]
    for options in (
        plain,
        {"until": [inside, "\n\n"], "max_gen_toks": 12},
        {"until": word, "max_gen_toks": 12, "do_sample": False},
        {"until": ["zzz", word], "max_new_tokens": 7, "temperature": 0.0},
    ):
        requests = instances("generate_until", [(prompt, dict(options)) for prompt in prompts])
        found = ours.generate_until(requests)
        assert found == theirs.generate_until(requests, disable_tqdm=True)
    stopped = ours.generate_until(instances("generate_until", [(one, {**plain, "until": [inside]}) for one in prompts]))
    assert stopped == [before_stop(text, [inside]) for text in unstopped] != unstopped


def test_lambada_through_the_harness_gives_the_same_numbers(ours: LockstepLM, theirs: Any) -> None:
    lines = documents(find_data("commonsense.tar.xz"), "lambada_openai")[:30]
    found, expected = (evaluated(one, "lambada_openai", lines) for one in (ours, theirs))
    assert found["results"]["perplexity,none"] == pytest.approx(expected["results"]["perplexity,none"], rel=1e-9)
    assert found["results"]["acc,none"] == expected["results"]["acc,none"]
    for mine, other in zip(found["samples"], expected["samples"], strict=True):
        assert mine["doc"] == other["doc"]
        ((mine_likelihood, mine_greedy),) = mine["filtered_resps"]
        ((other_likelihood, other_greedy),) = other["filtered_resps"]
        assert mine_likelihood == pytest.approx(other_likelihood, rel=0, abs=1e-6)
        assert mine_greedy == other_greedy


def evaluated(lm: Any, name: CommonsenseName, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Results and samples of one task, by the harness's own evaluator."""
    loaded = {"tasks": {name: harness_task(name, lines)}, "groups": {}, "group_map": {}}
    whole = evaluate(lm, loaded, bootstrap_iters=0)
    return {"results": whole["results"][name], "samples": whole["samples"][name]}


@pytest.mark.parametrize("name", COMMONSENSE)
def test_our_own_scoring_agrees_with_the_harness(
    name: CommonsenseName, ours: LockstepLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = find_data("commonsense.tar.xz")
    monkeypatch.setenv("LOCKSTEP_DATA", str(archive.parent))
    theirs = evaluated(ours, name, documents(archive, name)[:5])["results"]
    words = {"accuracy": "acc,none", "accuracy by length": "acc_norm,none", "perplexity": "perplexity,none"}
    for result in score_commonsense(ours.model, ours.tokenizer, [name], examples=5):
        assert result["value"] == pytest.approx(theirs[words[result["metric"]]], rel=1e-9)


# Without the other class.


def test_a_continuation_that_a_token_swallows_is_not_certain(ours: LockstepLM, tokenizer: Tokenizer) -> None:
    """`abc` is one token of GPT-2's, and `ab` another; the harness's own class fails here."""
    before, after = encode_request(tokenizer, "ab", "c")
    assert (tokenizer.decode(before), tokenizer.decode(after)) == ("ab", "c")
    ((likelihood, _),) = ours.loglikelihood(instances("loglikelihood", [("ab", "c")]))
    assert likelihood < 0


@pytest.mark.parametrize("name", ["titans-mac", "mamba2", "gpt2"])
def test_prompts_of_any_lengths_are_continued_as_each_alone(name: str) -> None:
    tokenizer = ByteTokenizer()
    model = build(name, vocab_size=tokenizer.vocab_size, dim=16, depth=2, heads=2, max_length=64)
    randomise(model, seed=3)
    prompts, options = ["a", "some longer prompt", "", "mid"], {"until": ["\n"], "max_gen_toks": 20}
    together = LockstepLM(model.double(), tokenizer, batch_size=4)
    requests = instances("generate_until", [(prompt, options) for prompt in prompts])
    alone = [together.generate_until([request])[0] for request in requests]
    assert together.generate_until(requests) == alone
    assert len(set(alone)) > 1


def test_drawing_follows_the_seed_and_the_temperature(ours: LockstepLM) -> None:
    def draw(seed: int, **options: Any) -> list[str]:
        torch.manual_seed(seed)
        request = ("The cat", {"until": [], "max_gen_toks": 8, **options})
        return ours.generate_until(instances("generate_until", [request, request]))

    warm = {"do_sample": True, "temperature": 1.0}
    assert draw(0, **warm) == draw(0, **warm) != draw(1, **warm)
    assert draw(0, **warm, top_k=1) == draw(1)


def test_answers_are_kept_where_the_harness_keeps_them(ours: LockstepLM, tmp_path: Path) -> None:
    caching = importlib.import_module("lm_eval.api.model").CachingLM(ours, str(tmp_path / "answers.db"))
    try:
        requests = instances("loglikelihood", [("The cat", " sat"), ("", "It")])
        first = caching.loglikelihood(requests)
        assert len(caching.dbdict) == 2
        assert caching.loglikelihood(requests) == first
    finally:
        caching.dbdict.close()
        ours.set_cache_hook(importlib.import_module("lm_eval.api.model").CacheHook(None))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"do_sample": True}, "do_sample needs a temperature above 0"),
        ({"num_beams": 4}, "num_beams is not supported"),
        ({"repetition_penalty": 1.2}, "unknown key repetition_penalty; valid: until, max_gen_toks"),
    ],
)
def test_what_cannot_be_done_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_options(options)


def test_options_are_read_as_the_harness_reads_them() -> None:
    assert read_options({}).tokens == 256
    assert read_options({"max_tokens": 5, "max_new_tokens": 3}).tokens == 3
    assert read_options({"until": "\n"}).until == ("\n",)
    assert read_options({"do_sample": False, "temperature": 0.7}).sampling == Sampling(temperature=0)
    assert read_options({"temperature": 0.7, "top_p": 0.9}).sampling == Sampling(temperature=0.7, top_p=0.9)


def test_too_much_to_write_is_refused(ours: LockstepLM) -> None:
    with pytest.raises(UserError, match=f"{POSITIONS} new tokens leave no room for a prompt"):
        ours.generate_until(instances("generate_until", [("a", {"max_gen_toks": POSITIONS})]))


def test_a_bidirectional_model_is_refused() -> None:
    with pytest.raises(UserError, match="bert is bidirectional"):
        LockstepLM(build("bert", vocab_size=17, dim=16, depth=1, heads=2), ByteTokenizer())


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    monkeypatch.delitem(sys.modules, "lockstep.evaluation.lm_eval_adapter")
    with pytest.raises(UserError, match=r"pip install 'lockstep-lm\[eval\]'"):
        importlib.import_module("lockstep.evaluation.lm_eval_adapter")
