"""A study is planned before anything is spent, and whatever is wrong with it is said in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.config.files import dump_yaml, load_study
from lockstep.config.training import TrainingSpec
from lockstep.errors import UserError
from lockstep.models.registry import specify
from lockstep.study.estimate import estimate
from lockstep.study.plan import plan_study, plan_table, state_after
from lockstep.tables import in_bytes, in_short, in_time


def study(folder: Path, corpus: Path, **changes: Any) -> Path:
    content: dict[str, Any] = {
        "study_name": "small",
        "data": {"training_corpus": str(corpus), "batch_size": 2, "max_sequence_length": 32},
        "training": {"train_steps": 10, "device": "cpu"},
        "match": {"target": "100K", "tolerance": "2%"},
        "contestants": {"transformer++": None, "recurrent": {"architecture": "gru"}},
    }
    path = folder / "study.yaml"
    path.write_text(dump_yaml({**content, **changes}))
    return path


def test_the_plan_says_what_the_models_are(tmp_path: Path, tiny_corpus: Path) -> None:
    plan = plan_study(load_study(study(tmp_path, tiny_corpus)))
    assert [one.name for one in plan.contestants] == ["transformer++", "recurrent"]
    assert (plan.steps, plan.tokens) == (10, 10 * 2 * 32)
    attention, recurrent = plan.contestants
    for one in plan.contestants:
        model = one.spec.build()
        assert one.cost.parameters == sum(parameter.numel() for parameter in model.parameters())
        assert one.cost.non_embedding_parameters == pytest.approx(100e3, rel=0.02)
        assert one.estimate.seconds > 0
        # AdamW: a parameter, its gradient and two moments, all of four bytes.
        assert one.estimate.weight_bytes == pytest.approx(16 * one.cost.parameters, rel=0.01)
        assert one.estimate.activation_bytes > 0
    small, large = state_after(attention.spec, 2**10), state_after(attention.spec, 2**20)
    assert small is not None
    assert large is not None
    assert large / small == pytest.approx(2**10, rel=0.01)
    assert state_after(recurrent.spec, 2**10) == state_after(recurrent.spec, 2**20)
    table = plan_table(plan)
    assert "matched on non-embedding parameters at 100K within 2.00%" in table
    assert in_short(attention.cost.training_flops) in table
    assert in_bytes(large) in table


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contestants": {"grru": None}}, "contestants.grru: unknown architecture grru; did you mean gru?"),
        ({"contestants": {"x": {"architecture": "gru", "foo": 1}}}, "contestants.x: gru: unknown key foo"),
        ({"contestants": {}}, "contestants"),
        ({"contestants": ["gru"]}, "contestants: expected names"),
        ({"contestants": {"gru": False}}, "contestants.gru"),
        ({"contestants": {"a/b": {"architecture": "gru"}}}, "contestants"),
        ({"match": {"target": "5X"}}, "match.target: expected a number such as 50M"),
        ({"match": {"target": 0}}, "match.target"),
        ({"match": {"target": "1M", "tolerance": "200%"}}, "match.tolerance"),
        ({"match": {"target": "1M", "tolerence": 1}}, "unknown key match.tolerence; did you mean tolerance?"),
        ({"scale": "tiny"}, "scale and match both say"),
        ({"match": None, "scale": "huge"}, "scale"),
        ({"contestants": {"gpt2": {"max_length": 16}}}, "contestants.gpt2: model.max_length is 16"),
        ({"match": "none", "contestants": {"gru": {"dim": 100_000_000}}}, "contestants.gru: model: dim 100,000,000"),
        ({"match": "none", "contestants": {"gru": {"vocab_size": 3}}}, "contestants.gru: model.vocab_size is 3"),
        ({"training": {"train_steps": 1, "objective": "masked_lm"}}, "training.objective is masked_lm"),
        ({"training": {"train_steps": 1, "tokens_per_step": 7}}, "training.tokens_per_step is 7"),
        ({"contestants": {"transformer++": {"dim": 90}}}, "cannot be reached; the closest is 512"),
        ({"contestants": {"hybrid": {"pattern": ["attention:dim=8"]}}}, "dim belongs to the whole model"),
        ({"contestants": {"hybrid": {"pattern": ["samba"]}}}, "samba is more than its layers"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path, tiny_corpus: Path
) -> None:
    if "match" not in changes and "dim" in str(changes.get("contestants")):
        changes = {"match": {"target": "1M", "tolerance": "2%"}, **changes}
    with pytest.raises(UserError) as caught:
        plan_study(load_study(study(tmp_path, tiny_corpus, **changes)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_estimates_grow_with_layers_and_shrink_with_recomputation() -> None:
    device, fields = torch.device("cpu"), {"vocab_size": 50, "dim": 32, "heads": 2, "max_length": 64}

    def of(depth: int, **training: Any) -> int:
        spec = specify("transformer++", {**fields, "depth": depth})
        return estimate(spec, TrainingSpec(**training), 64, 4, 1000, device).activation_bytes

    # A layer keeps the same whatever the depth.
    assert of(6) - of(4) == of(4) - of(2) > 0
    assert of(6, use_gradient_checkpointing=True) < of(6) / 3


def test_orthogonalised_matrices_have_one_moment() -> None:
    spec = specify("transformer++", {"vocab_size": 50, "dim": 32, "depth": 3, "heads": 2})
    parameters = spec.build().cost(8).parameters
    found = estimate(spec, TrainingSpec(optimizer="muon"), 16, 1, 16, torch.device("cpu")).weight_bytes
    assert 12 * parameters < found < 16 * parameters


@pytest.mark.parametrize(
    ("shown", "meant"),
    [
        (in_short(49.84e6), "49.84M"),
        (in_short(999), "999"),
        (in_bytes(1.5e9), "1.5 GB"),
        (in_bytes(12), "12 B"),
        (in_time(59), "59.0 s"),
        (in_time(90), "1.5 min"),
        (in_time(86_400), "24.0 h"),
        (in_time(259_200), "3.0 days"),
    ],
)
def test_numbers_as_people_read_them(shown: str, meant: str) -> None:
    assert shown == meant
