"""A decoder says what `step` says, whatever the architecture, and leaves the state it was given as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from lockstep.laws.subject import randomise
from lockstep.memory.ownership import given_up
from lockstep.models.decoding import Decoder
from lockstep.models.language_model import LanguageModel
from lockstep.models.precision import as_in_training
from lockstep.models.registry import build
from lockstep.models.sampling import Sampling, sample
from lockstep.models.state import State, map_state, named_tensors, stack
from lockstep.training.compilation import compile_steps

ON_A_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_A_GPU else "cpu"
CLOSE = 1e-3 if ON_A_GPU else 1e-5
"""Kernels sum in another order, and random memories make a thousand times as much of a rounding as it was: float32 is
3e-4 away from float64 after eleven tokens of the titans-lmm below."""
CHUNK, DECODED = 4, 11
TITANS: dict[str, Any] = {"chunk": CHUNK, "segment": 2 * CHUNK, "window": 5, "persistent": 2}
MODELS: dict[str, dict[str, Any]] = {
    "transformer++": {},
    "gpt2": {},
    "lstm": {},
    "mamba": {},
    "mamba2": {},
    "gated-deltanet": {},
    "gla": {},
    "retnet": {},
    "titans-lmm": {"chunk": CHUNK},
    "titans-mac": TITANS,
    "titans-mag": TITANS,
    "titans-mal": TITANS,
    "yaad": {"chunk": CHUNK},
}
every_model = pytest.mark.parametrize("name", MODELS)


def model(name: str) -> LanguageModel:
    built = build(name, **{"vocab_size": 17, "max_length": 64, "dim": 32, "depth": 2, "heads": 2, **MODELS[name]})
    randomise(built, seed=0)
    return built.to(DEVICE).eval()


def tokens(batch: int, time: int, seed: int = 0) -> Tensor:
    return torch.randint(17, (batch, time), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def at_different_places(read: LanguageModel) -> State:
    """Three sequences: before the end of a chunk, at its end, and in the middle of another."""
    lengths = (CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 3)
    return stack([read.step(tokens(1, length), read.initial_state(1, capacity=40))[1] for length in lengths])


@every_model
@torch.inference_mode()
def test_what_step_says(name: str) -> None:
    """Across the ends of chunks and segments, by sequences that reach them at different times."""
    decoded = model(name)
    state = at_different_places(decoded)
    before = map_state(Tensor.clone, state)
    decoder, following = Decoder(decoded, state), tokens(3, DECODED, seed=1)
    for place in range(DECODED):
        found = decoder.step(following[:, place, None])
        logits, state = decoded.step(following[:, place, None], state)
        torch.testing.assert_close(found, logits[:, -1], rtol=CLOSE, atol=CLOSE)
        if place == 0:
            first = state
    assert (decoder.recording is not None) == ON_A_GPU
    for (_, mine), (_, theirs) in zip(named_tensors(decoder.state), named_tensors(state), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=CLOSE, atol=CLOSE)
    # What `step` itself made is still what it was, and so is what the decoder began with.
    again = decoded.step(following[:, :1], before)[1]
    for (_, mine), (_, theirs) in zip(named_tensors(first), named_tensors(again), strict=True):
        assert torch.equal(mine, theirs)


@every_model
@torch.inference_mode()
def test_a_state_is_written_over_only_when_it_is_given_up(name: str) -> None:
    decoded = model(name)
    state = at_different_places(decoded)
    before = map_state(Tensor.clone, state)
    decoded.step(tokens(3, 1), state)
    for (_, mine), (_, theirs) in zip(named_tensors(state), named_tensors(before), strict=True):
        assert torch.equal(mine, theirs)


@torch.inference_mode()
def test_caches_that_are_given_up_are_not_copied() -> None:
    decoded = model("transformer++")
    state = decoded.step(tokens(1, 5), decoded.initial_state(1, capacity=40))[1]
    with given_up():
        _, after = decoded.step(tokens(1, 1), state)
    kept, new = state["layers"][0], after["layers"][0]
    assert new.keys.data_ptr() == kept.keys.data_ptr()
    assert new.values.data_ptr() == kept.values.data_ptr()


@pytest.mark.parametrize("name", ["transformer++", "lstm", "mamba2", "titans-mac"])
@torch.inference_mode()
def test_going_back(name: str) -> None:
    """To a state that was kept: the same tokens say the same again, by the same recording."""
    decoded, following = model(name), tokens(3, 6, seed=1)
    state = at_different_places(decoded)
    decoder = Decoder(decoded, state)
    first = [decoder.step(following[:, place, None]).clone() for place in range(6)]
    recording = decoder.recording
    decoder.go_on_from(state)
    again = [decoder.step(following[:, place, None]).clone() for place in range(6)]
    assert torch.equal(torch.stack(first), torch.stack(again))
    assert decoder.recording is recording


COMPILED = [
    *("transformer++", "mamba2", "gated-deltanet", "retnet"),
    *("titans-lmm", "titans-mac", "titans-mag", "titans-mal", "yaad"),
]


@pytest.mark.skipif(not ON_A_GPU, reason="steps are compiled for a GPU")
@pytest.mark.parametrize("name", COMPILED)
@torch.inference_mode()
def test_compiled_steps_say_what_a_whole_text_says(name: str) -> None:
    """In bfloat16, after a context by the kernels that train: no further from float64 than the whole text at once."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 256, "max_length": 2048, "dim": 512, "depth": 2, "heads": 8}
    given: dict[str, Any] = (
        {"segment": 1024} if name == "titans-mac" else {"heads": 6} if name == "gated-deltanet" else {}
    )
    low = build(name, **sizes | given).to(DEVICE, torch.bfloat16).eval()
    exact = build(name, **sizes | given).to(DEVICE, torch.float64).eval()
    exact.load_state_dict(low.state_dict())
    text, context = torch.randint(256, (1, 1100), device=DEVICE), 1000
    wanted = exact(text)[0, context:]
    with as_in_training(low):
        whole = low(text)[0, context:].double()
        _, state = low.step(text[:, :context], low.initial_state(1, capacity=1100))
    compile_steps(low)
    decoder = Decoder(low, state)

    def write() -> Tensor:
        return torch.cat([decoder.step(text[:, place, None]) for place in range(context, 1100)]).double()

    written, sources = run_and_get_code(write)
    assert decoder.recording is not None
    require_that_all_begin_early(sources)
    error, usual = ((found - wanted).norm() / wanted.norm() for found in (written, whole))
    assert error < 1.5 * usual + 2e-3, f"{error:.2g} from float64, and the whole text {usual:.2g}"


def require_that_all_begin_early(sources: list[str]) -> None:
    """Kernels that torch's compiler wrote: each wants to, where a device can, and each waits."""
    kernels = [text for source in sources for text in source.split("async_compile.triton(")[1:]]
    assert kernels
    early = ["'launch_pdl': True" in kernel for kernel in kernels]
    assert early == [torch.cuda.get_device_capability() >= (9, 0)] * len(kernels)
    assert ["gdc_wait()" in kernel for kernel in kernels] == early


def test_samples_are_those_of_step() -> None:
    """Greedily: each new token is the likeliest after all before it, read anew."""
    for name in ("transformer++", "titans-mac"):
        written = model(name)
        found = sample(written, tokens(2, 6), 9, Sampling(temperature=0), None)
        with torch.inference_mode():
            for length in range(6, found.shape[1]):
                assert torch.equal(written.step(found[:, :length])[0][:, -1].argmax(-1), found[:, length])
