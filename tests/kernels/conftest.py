"""What tests of kernels share: a record of their own, and an interpreter that rounds as a GPU does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lockstep.kernels.record import recorded_in

# What fails there says by how much, as in the tests themselves.
pytest.register_assert_rewrite("tests.kernels.recurrences")


@pytest.fixture(autouse=True)
def own_record() -> Iterator[None]:
    """What runs here is nobody else's backend."""
    with recorded_in(set()):
        yield


@pytest.fixture(autouse=True)
def nobody_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kernel fails halfway, as only the interpreter lets it, programs of the next test would wait forever."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(pytest.importorskip("lockstep.kernels.arrivals"), "_kept", {})


@pytest.fixture(scope="session", autouse=True)
def cuda_on_the_way_back() -> None:
    """torch runs derivatives in a thread of its own, and warns where the first it does there is a matrix product."""
    if torch.cuda.is_available():
        torch.ones(1, device="cuda", requires_grad=True).square().sum().backward()


@pytest.fixture(scope="session", autouse=True)
def nearest() -> Iterator[None]:
    """Triton's interpreter cuts numbers off where a GPU rounds them to the nearest bfloat16."""
    if torch.cuda.is_available():
        yield
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    language = pytest.importorskip("triton.language")
    cutting = interpreter._convert_float

    def converted(numbers: Any, given: Any, wanted: Any, rounding: Any) -> Any:
        if (given, wanted, rounding) != (language.float32, language.bfloat16, None):
            return cutting(numbers, given, wanted, rounding)
        return torch.from_numpy(numbers).to(torch.bfloat16).view(torch.uint16).numpy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_convert_float", converted)
        yield
