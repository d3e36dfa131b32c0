"""Every task by name."""

from __future__ import annotations

from lockstep.config.tasks import (
    AnyTask,
    BabilongSpec,
    CopyingSpec,
    InductionSpec,
    NeedlesSpec,
    NoiseSpec,
    RecallSpec,
    StatesSpec,
)
from lockstep.data.tasks.babilong import make_babilong
from lockstep.data.tasks.copying import Copying
from lockstep.data.tasks.induction import Induction
from lockstep.data.tasks.needles import Needles
from lockstep.data.tasks.noise import NoisyRecall
from lockstep.data.tasks.recall import Recall
from lockstep.data.tasks.states import States
from lockstep.data.tasks.task import Task
from lockstep.data.tokenizer_base import Tokenizer


def make_task(spec: AnyTask, tokenizer: Tokenizer) -> Task:
    """The task that `spec` describes, written in a tokenizer's tokens."""
    match spec:
        case RecallSpec():
            return Recall(spec, tokenizer)
        case InductionSpec():
            return Induction(spec, tokenizer)
        case CopyingSpec():
            return Copying(spec, tokenizer)
        case StatesSpec():
            return States(spec, tokenizer)
        case NoiseSpec():
            return NoisyRecall(spec, tokenizer)
        case NeedlesSpec():
            return Needles(spec, tokenizer)
        case BabilongSpec():
            return make_babilong(spec, tokenizer)
