"""No sample depends on its neighbours in the batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lockstep.laws.comparison import EXACT, gap, require_equal
from lockstep.laws.law import LawBroken
from lockstep.laws.subject import LENGTH, Subject

Run = Callable[[Tensor], Tensor]


def batch_independence(subject: Subject) -> None:
    model = subject.model()
    tokens = subject.tokens(4, LENGTH)
    require_independent(model, tokens, subject, "forward")
    if subject.kind.causal:
        require_independent(lambda rows: model.step(rows)[0], tokens, subject, "step")


def require_independent(run: Run, tokens: Tensor, subject: Subject, what: str) -> None:
    logits = run(tokens)
    rows = tokens.shape[0]
    for row in range(rows):
        altered = tokens.clone()
        altered[row] = subject.replaced(tokens[row], seed=row)
        moved = gap(run(altered), logits).amax(dim=1)
        moved[row] = 0
        if float(moved.amax()) > EXACT:
            other = int(moved.argmax())
            raise LawBroken(f"{what}: new tokens in row {row} of {rows} moved row {other} by {float(moved[other]):.1e}")
        alone = run(tokens[row : row + 1])
        require_equal(alone, logits[row : row + 1], f"{what}: row {row} alone against among {rows} rows")
    require_equal(run(tokens[[2, 0]]), logits[[2, 0]], f"{what}: rows 2 and 0 alone against among {rows} rows")
