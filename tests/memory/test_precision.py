"""A memory is computed in at least float32, whatever surrounds it, and stays finite up to its stability bound."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.memory import Form, Memory, MemorySpec, begin, stream
from tests.memory.cases import POINTS, Case, assert_close, draw_case, each_gate, held, outcome, point

FORMS: list[Form] = ["sequential", "chunked"]
every_form = pytest.mark.parametrize("form", FORMS)
every_point = pytest.mark.parametrize("name", POINTS)


def raised(case: Case) -> Case:
    """The same numbers in float32."""
    weights = tuple(matrix.float() for matrix in case.memory.weights)
    velocity = None if case.memory.velocity is None else tuple(matrix.float() for matrix in case.memory.velocity)
    outer = case.outer
    return case._replace(
        queries=case.queries.float(),
        keys=case.keys.float(),
        values=case.values.float(),
        gates=each_gate(Tensor.float, case.gates),
        memory=Memory(weights, velocity),
        outer=outer._replace(
            gain=None if outer.gain is None else outer.gain.float(),
            shift=None if outer.shift is None else outer.shift.float(),
            initial=None if outer.initial is None else tuple(matrix.float() for matrix in outer.initial),
        ),
    )


@every_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_point
def test_half_precision_goes_in_and_comes_out(name: str, dtype: torch.dtype, form: Form) -> None:
    """In between, everything is float32, to the last bit."""
    case = draw_case(point(name, chunk=4), length=10, dtype=dtype)
    reads, memory = case.run(form)
    expected, expected_memory = raised(case).run(form)
    assert reads.dtype == dtype
    assert all(matrix.dtype == torch.float32 for matrix in held(memory).values())
    assert torch.equal(reads, expected.to(dtype))
    assert_close(held(memory), held(expected_memory), tolerance=0)


@every_point
def test_a_state_is_held_in_float32(name: str) -> None:
    """From the first step to the last, though every token is in bfloat16."""
    case = draw_case(point(name, chunk=4), length=10, dtype=torch.bfloat16)
    whole, memory = case.run()
    state, reads = begin(raised(case).memory), []
    for t in range(10):
        token = case.between(t, t + 1)
        said, state = stream(token.queries, token.keys, token.values, token.gates, state, case.spec, case.outer)
        assert said.dtype == torch.bfloat16
        assert {tensor.dtype for tensor in (*state.point, *state.weights, *state.velocity)} == {torch.float32}
        reads.append(said)
    torch.testing.assert_close(torch.cat(reads, dim=2), whole, rtol=2**-7, atol=1e-3)
    assert_close(held(Memory(state.weights, state.velocity or None)), held(memory), tolerance=1e-4)


@every_form
@every_point
def test_double_precision_stays(name: str, form: Form) -> None:
    """And is more than a cast at the end: float32 is farther away."""
    case = draw_case(point(name, chunk=4), length=10)
    precise = outcome(*case.run(form))
    coarse = outcome(*raised(case).run(form))
    assert {tensor.dtype for tensor in precise.values()} == {torch.float64}
    assert {tensor.dtype for tensor in coarse.values()} == {torch.float32}
    assert_close({name: tensor.double() for name, tensor in coarse.items()}, precise, tolerance=1e-3)
    other = outcome(*case.run("chunked" if form == "sequential" else "sequential"))
    assert_close(precise, other, tolerance=1e-11)


@every_form
@every_point
def test_autocast_changes_no_bit(name: str, form: Form) -> None:
    case = draw_case(point(name, chunk=4), length=10, dtype=torch.float32).tracked()
    expected = outcome(*case.run(form))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (case.keys @ case.keys.mT).dtype == torch.bfloat16
        found = outcome(*case.run(form))
    assert_close(found, expected, tolerance=0)


# --- repeated keys: science.md 5.1, the largest stable rate at keep 0.97

BOUNDS = {
    (0.0, 1): 1.97,
    (0.0, 4): 0.49,
    (0.0, 16): 0.126,
    (0.0, 64): 0.040,
    (0.0, 256): 0.030,
    (0.9, 1): 3.74,
    (0.9, 4): 0.096,
    (0.9, 16): 0.028,
    (0.9, 64): 0.0046,
    (0.9, 256): 0.0030,
}
FAR = 70.0
"""Between what stable memories overshoot to, values being about one, and what sixteen unstable chunks make of them."""
at_the_bound = pytest.mark.parametrize(("momentum", "chunk"), BOUNDS)


def repeated(spec: MemorySpec, rate: float, momentum: float, length: int = 4096) -> tuple[Tensor, Memory]:
    """One unit key, again and again, in float32."""
    case = draw_case(spec, length, batch=1, heads=1, width=4, dtype=torch.float32)
    unit = F.normalize(case.keys[:, :, :1], dim=-1).expand_as(case.keys)
    like = torch.ones_like(case.gates.keep)
    gates = case.gates._replace(keep=like * 0.97, rate=like * rate, momentum=like * momentum)
    values = case.values[:, :, :1].expand_as(case.values)
    return case._replace(queries=unit, keys=unit, values=values, gates=gates).run()


@at_the_bound
def test_stable_at_the_bound(momentum: float, chunk: int) -> None:
    reads, memory = repeated(point("linear Titans", chunk=chunk), BOUNDS[momentum, chunk], momentum)
    assert reads.abs().amax() < FAR
    assert all(matrix.isfinite().all() for matrix in held(memory).values())


@at_the_bound
def test_unstable_beyond_the_bound(momentum: float, chunk: int) -> None:
    """Else the test at the bound would hold for any rate."""
    reads, _ = repeated(point("linear Titans", chunk=chunk), BOUNDS[momentum, chunk] * 1.3, momentum)
    assert not reads[:, :, -chunk:].abs().amax() < FAR


@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize("depth", [2, 3])
def test_deep_memories_stay_finite(depth: int, chunk: int) -> None:
    """At the bound of the linear memory, with the defence that the specification offers."""
    spec = point("Titans", depth=depth, residual=True, norm=True, clip=1.0, decay_to="initial", chunk=chunk)
    reads, memory = repeated(spec, BOUNDS[0.9, chunk], momentum=0.9)
    assert all(tensor.isfinite().all() for tensor in outcome(reads, memory).values())
