"""Steps that are replayed as a CUDA graph learn what they learn call by call."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.models.recording import WARM
from lockstep.models.registry import build
from lockstep.training.compilation import compile_blocks
from lockstep.training.replay import Gradients
from lockstep.training.run import train
from tests.training.tiny_runs import losses, tiny_run

ON_A_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_A_GPU else "cpu"
needs_gpu = pytest.mark.skipif(not ON_A_GPU, reason="needs a CUDA device, and LOCKSTEP_TEST_GPU=1 to use it")


class Learner:
    """A model with a parameter that nothing uses, whose steps are of two micro-batches."""

    def __init__(self, *, replayed: bool, waits: bool = False, holds: bool = False, dropout: float = 0.0) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 8)).to(DEVICE)
        self.idle = nn.Parameter(torch.ones(3, device=DEVICE))
        self.waits = waits
        self.held: list[Tensor] | None = [] if holds else None
        parameters = [*self.model.parameters(), self.idle]
        self.gradients = Gradients(parameters, replayed=replayed)
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)

    def compute(self, x: Tensor, weights: Tensor | None, share: Tensor) -> Tensor:
        errors = F.mse_loss(self.model(x), x, reduction="none")
        loss = (errors if weights is None else errors * weights).sum() * share
        if self.waits and loss.item() < 0:
            raise AssertionError
        loss.backward()
        if self.held is not None:
            self.held.append(loss)
        return loss.detach()

    def steps(self, count: int, rows: int = 4, weighted: bool = False) -> list[float]:
        found = []
        for step in range(count):
            torch.manual_seed(step)
            parts = torch.randn(2, rows, 8).to(DEVICE)
            weights = torch.rand(2, rows, 8).to(DEVICE) if weighted else None
            share = torch.full((), 1 / (step + 1), device=DEVICE)
            told = [
                self.gradients(self.compute, x, None if weights is None else weights[i], share)
                for i, x in enumerate(parts)
            ]
            self.optimizer.step()
            self.gradients.clear()
            found.append(float(sum(told)))
        return found


@needs_gpu
def test_the_same_is_learned() -> None:
    """Also of several kinds of batches, one after the other and in turns."""
    replayed, plain = Learner(replayed=True), Learner(replayed=False)
    for count, rows, weighted in ((4, 4, False), (3, 7, False), (3, 4, True), (2, 7, False), (1, 5, False)):
        assert replayed.steps(count, rows, weighted) == plain.steps(count, rows, weighted)
    assert len(replayed.gradients.recordings) == 3
    for found, wanted in zip(replayed.gradients.parameters, plain.gradients.parameters, strict=True):
        assert torch.equal(found, wanted)
    # Nothing was learned of it, so that nothing decays it either.
    assert torch.equal(replayed.idle, torch.ones_like(replayed.idle))


@needs_gpu
def test_what_is_held_of_calls_does_not_matter() -> None:
    """Losses with all that led to them, as a compiler may also hold something of it."""
    replayed, plain = Learner(replayed=True, holds=True), Learner(replayed=False)
    assert replayed.steps(WARM + 3) == plain.steps(WARM + 3)
    assert replayed.gradients.recordings


@needs_gpu
def test_two_take_turns() -> None:
    """Their recordings share memory."""
    one, other, plain = Learner(replayed=True), Learner(replayed=True), Learner(replayed=False)
    wanted = plain.steps(6)
    assert one.steps(6) == wanted
    assert other.steps(6) == wanted
    assert one.steps(2) == other.steps(2) == plain.steps(2)


@needs_gpu
def test_recordings_can_be_given_back() -> None:
    """With the gradients; the next step records anew."""
    replayed, plain = Learner(replayed=True), Learner(replayed=False)
    for _ in range(2):
        assert replayed.steps(WARM + 3) == plain.steps(WARM + 3)
        assert replayed.gradients.recordings
        replayed.gradients.forget()
        assert not replayed.gradients.recordings
        assert all(parameter.grad is None for parameter in replayed.gradients.parameters)


@needs_gpu
def test_random_numbers_are_those_of_the_step() -> None:
    """Drawn again when a step is replayed, as they would be call by call; also after another recording failed."""
    replayed, plain = Learner(replayed=True, dropout=0.5), Learner(replayed=False, dropout=0.5)
    assert replayed.steps(WARM + 3) == plain.steps(WARM + 3)
    with pytest.warns(UserWarning, match="not replayed as a CUDA graph"):
        Learner(replayed=True, waits=True).steps(WARM + 3)
    assert replayed.gradients.recordings
    assert replayed.steps(4) == plain.steps(4)


@pytest.mark.parametrize("waits", [True, pytest.param(False, marks=pytest.mark.skipif(ON_A_GPU, reason="it can be"))])
def test_what_cannot_be_recorded_goes_on(waits: bool) -> None:
    """Here because the step waits for the device, or because there is none."""
    replayed, plain = Learner(replayed=True, waits=waits), Learner(replayed=False)
    wanted = plain.steps(WARM + 3)
    stream = torch.cuda.current_stream() if ON_A_GPU else None
    with pytest.warns(UserWarning, match="not replayed as a CUDA graph"):
        found = replayed.steps(WARM + 3)
    assert stream == (torch.cuda.current_stream() if ON_A_GPU else None)
    assert found == wanted
    # Random numbers can still be drawn.
    torch.manual_seed(0)
    drawn = torch.rand(3, device=DEVICE)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3, device=DEVICE), drawn)
    assert not replayed.gradients.recordings
    for one, other in zip(replayed.gradients.parameters, plain.gradients.parameters, strict=True):
        assert torch.equal(one, other)


@needs_gpu
@pytest.mark.filterwarnings("ignore")  # torch's compiler has much to say
@pytest.mark.parametrize(
    "name", ["titans-lmm", "titans-mac", "titans-mag", "transformer++", "gated-deltanet", "mamba2"]
)
def test_models_can_be_recorded(name: str) -> None:
    """Compiled once: what a compiler tries out may turn out differently the second time, and so would roundings."""
    torch.manual_seed(0)
    segment = {"segment": 128} if name == "titans-mac" else {}
    model = build(name, vocab_size=17, dim=128, depth=2, heads=2, **segment).to(DEVICE).train()
    beginning = {key: value.clone() for key, value in model.state_dict().items()}
    compile_blocks(model)

    def compute(tokens: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss: Tensor = model(tokens[:, :-1], targets=tokens[:, 1:]).losses.mean()
        loss.backward()
        return loss.detach()

    def learned(*, replayed: bool) -> list[float]:
        model.load_state_dict(beginning)
        gradients = Gradients(model.parameters(), replayed=replayed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        told = []
        for step in range(6):
            tokens = torch.randint(17, (2, 257), generator=torch.Generator().manual_seed(step)).to(DEVICE)
            told.append(float(gradients(compute, tokens)))
            optimizer.step()
            gradients.clear()
        assert bool(gradients.recordings) == replayed
        gradients.forget()
        return told

    assert learned(replayed=True) == pytest.approx(learned(replayed=False), rel=1e-4)


@needs_gpu
@pytest.mark.filterwarnings("ignore")  # likewise; what is said of recordings is turned into an error inside
def test_runs_learn_alike(tiny_corpus: Path, tmp_path: Path) -> None:
    """Compiled and replayed, with dropout off, as eager."""
    found = []
    for compiled in (True, False):
        training = {"compile": compiled, "device": "cuda", "gradient_accumulation_steps": 2, "precision": "bf16"}
        quiet = {"dropout": 0.0, "attention_dropout": 0.0}
        evaluation = {"interval": 4, "sequences": 8, "sample_prompt": "It", "sample_tokens": 5}
        run = tiny_run(tiny_corpus, "transformer++", training=training, model=quiet, evaluation=evaluation)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*not replayed")
            train(run, tmp_path / str(compiled))
        found.append(losses(tmp_path / str(compiled)))
    assert found[0] == pytest.approx(found[1], rel=2e-2)
