"""Architectures are found by name, an outsider's by the file it stands in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lockstep.errors import UserError
from lockstep.laws import check
from lockstep.models import registry
from lockstep.models.registry import architecture, architectures, build, find
from lockstep.models.spec import ModelSpec

OUTSIDER = '''
from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec


class Leaky(Mixer):
    """h = keep · h + (1 - keep) · W x, with a fixed keep."""

    def __init__(self, dim: int, keep: float) -> None:
        super().__init__()
        self.dim, self.keep = dim, keep
        self.output = nn.Linear(dim, dim, bias=False)

    def step(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        h = self.initial_state(x.shape[0]) if state is None else state
        seen = []
        for token in self.output(x).unbind(dim=1):
            h = self.keep * h + (1 - self.keep) * token.to(h.dtype)
            seen.append(h)
        return torch.stack(seen, dim=1), h

    def initial_state(self, batch: int, capacity: int | None = None) -> Tensor:
        return self.zeros(batch, self.dim)

    def cost(self, length: int) -> Cost:
        return Cost(forward_flops=product_flops(self.dim, self.dim), state_bytes=self.dim * self.like.element_size())


@architecture("leaky-average")
class LeakySpec(ModelSpec):
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"keep": 0.5})

    keep: float = 0.9

    def mixer(self, layer: int) -> Mixer:
        return Leaky(self.dim, self.keep)
'''


@pytest.fixture(autouse=True)
def _only_our_own_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    architectures()
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))


def told(name: str) -> str:
    with pytest.raises(UserError) as caught:
        find(name)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_known_names_are_found() -> None:
    assert {"bert", "gpt2", "gru", "lstm", "rnn", "transformer++"} <= set(architectures())
    assert all(find(name).architecture == name for name in architectures())


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    assert told("ltsm") == "unknown architecture ltsm; did you mean lstm?"
    assert told("zzzz").startswith("unknown architecture zzzz; nearest: ")


def test_an_unknown_field_is_told_with_the_nearest() -> None:
    with pytest.raises(UserError, match="model: gpt2: unknown key hiden; did you mean hidden"):
        build("gpt2", vocab_size=9, hiden=3)


def test_sizes_that_do_not_fit_are_told() -> None:
    with pytest.raises(UserError, match="dim 30 is not divisible by heads 4"):
        build("gpt2", vocab_size=9, dim=30, heads=4)


def test_an_outsider_works_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "leaky.py"
    path.write_text(OUTSIDER)
    assert len(OUTSIDER.splitlines()) < 50
    name = f"{path}:leaky-average"
    model = build(name, vocab_size=19, dim=8, depth=2, heads=2, keep=0.7)
    assert model(torch.zeros(1, 4, dtype=torch.int64)).shape == (1, 4, 19)
    verdicts = list(check(name))
    assert [(verdict.law.name, verdict.message) for verdict in verdicts if not verdict.passed] == []
    assert {verdict.subject.label for verdict in verdicts} == {"default", "keep=0.5"}


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import no_such_module_anywhere\n", "ModuleNotFoundError: No module named"),
        ("raise RuntimeError('two\\nlines')\n", "RuntimeError: two lines"),
        ('from lockstep.models.registry import architecture\narchitecture("gpt2")(type("S", (), {}))\n', "already"),
    ],
)
def test_an_outsider_that_fails_is_told_in_one_line(tmp_path: Path, source: str, problem: str) -> None:
    path = tmp_path / "failing.py"
    path.write_text(source)
    for _ in range(2):  # a second attempt must not find half a module
        message = told(f"{path}:anything")
        assert message.startswith(f"{path}: cannot be imported: ")
        assert problem in message


def test_an_outsider_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    assert told(f"{tmp_path}/absent.py:anything") == f"{tmp_path}/absent.py: no such file; check the path"
    assert "no_such_package: cannot be imported" in told("no_such_package:anything")


def test_a_file_without_the_name_is_told(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("")
    assert told(f"{path}:absent") == f"{path}: registers no architecture absent"
    path = tmp_path / "leaky.py"
    path.write_text(OUTSIDER.replace("leaky-average", "leaky-other"))
    assert told(f"{path}:leaky-othr") == f"{path}: registers no architecture leaky-othr; did you mean leaky-other?"
    assert told(f"{path}:zzzz") == f"{path}: registers no architecture zzzz; valid: leaky-other"


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(ValueError, match="gpt2 is already registered by lockstep"):
        architecture("gpt2")(type("Impostor", (ModelSpec,), {"__module__": "elsewhere"}))
