"""Models of the transformers library: the library's own logits, our contract, and no step beyond the given files."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import lockstep
from lockstep.config.run import RunSpec
from lockstep.config.training import TrainingSpec
from lockstep.errors import UserError
from lockstep.laws.subject import randomise
from lockstep.models.architectures.hf import HuggingFaceSpec
from lockstep.models.hugging_face import HuggingFaceModel
from lockstep.models.registry import build, specify
from lockstep.models.sampling import Sampling
from lockstep.models.state import named_tensors, stack, state_bytes
from lockstep.study.evaluate import evaluate_run
from lockstep.training.optimizers import build_optimizers
from lockstep.training.run import train
from tests.training.faults import crash
from tests.training.processes import only_line
from tests.training.processes import run as run_command
from tests.training.tiny_runs import assert_same_run, last_checkpoint, losses, tiny_run, write_config
from tests.training.worlds import train_together

transformers = pytest.importorskip("transformers", reason="the library whose models these are is not installed")

SIZES = {"vocab_size": 17, "dim": 16, "depth": 2, "heads": 2, "max_length": 64}
LENGTH = 29

ATTENTIVE: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 1, "intermediate_size": 24},
    "gpt2": {},
    "qwen2": {"num_key_value_heads": 1, "intermediate_size": 24},
    "qwen3": {"num_key_value_heads": 1, "intermediate_size": 24},
    "mistral": {"num_key_value_heads": 1, "intermediate_size": 24, "sliding_window": 5},
    "gemma2": {"num_key_value_heads": 1, "intermediate_size": 24, "sliding_window": 5, "head_dim": 8},
    "gpt_neox": {"intermediate_size": 24},
    "bloom": {},
    "mixtral": {"num_key_value_heads": 1, "intermediate_size": 24, "num_local_experts": 4},
}
RECURRENT: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 4},
    "lfm2": {"num_key_value_heads": 1, "intermediate_size": 24, "block_multiple_of": 8},
    "jamba": {"num_key_value_heads": 1, "intermediate_size": 24, "mamba_d_state": 4, "mamba_dt_rank": 4}
    | {"num_experts": 2, "use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1},
}
FAMILIES = ATTENTIVE | RECURRENT


def model_of(kind: str, **fields: Any) -> HuggingFaceModel:
    """A small model of a family, every parameter random."""
    model = build("hf", **(SIZES | fields), hf={"config": {"model_type": kind, **FAMILIES[kind]}}).eval()
    assert isinstance(model, HuggingFaceModel)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(number)
            scale = 0.1 if parameter.ndim < 2 else 0.5 / parameter.shape[-1] ** 0.5
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return model


def tokens(rows: int = 2, time: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(17, (rows, time), generator=torch.Generator().manual_seed(seed))


def difference(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().amax() / expected.abs().amax())


def refused(**fields: Any) -> str:
    """The one line that is said against a model."""
    with pytest.raises(UserError) as caught:
        build("hf", **(SIZES | fields))
    message = str(caught.value)
    assert message.splitlines() == [message]
    return message


def saved(folder: Path, kind: str = "llama", **fields: Any) -> Any:
    """A model of the library, random, written to a folder as its users do."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 17}
    config = transformers.AutoConfig.for_model(kind, **(sizes | FAMILIES[kind] | fields))
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model, seed=1)
    model.save_pretrained(folder)
    return model.eval()


# The same logits.


@pytest.mark.parametrize("kind", FAMILIES)
@torch.no_grad()
def test_logits_are_the_librarys_own(kind: str) -> None:
    model = model_of(kind)
    torch.testing.assert_close(model(tokens()), model.network(tokens()).logits, rtol=0, atol=0)


def test_initialisation_is_the_librarys_own() -> None:
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=17, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    theirs = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    torch.manual_seed(3)
    ours = build("hf", **SIZES, hf={"config": {"model_type": "gpt2"}})
    assert isinstance(ours, HuggingFaceModel)
    for name, tensor in ours.network.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("kind", FAMILIES)
@torch.no_grad()
def test_steps_over_any_split_equal_forward(kind: str) -> None:
    model = model_of(kind)
    expected = model(tokens())
    for split in ([LENGTH], [1] * LENGTH, [10, *[1] * 19], [8, 8, 8, 5]):
        state, gathered = None, []
        for piece in tokens().split(split, dim=1):
            logits, state = model.step(piece, state)
            gathered.append(logits)
        assert difference(torch.cat(gathered, dim=1), expected) < 1e-5


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
@torch.no_grad()
def test_steps_equal_forward_in_double_precision(kind: str) -> None:
    model = model_of(kind).double()
    _, state = model.step(tokens()[:, :11])
    assert difference(model.step(tokens()[:, 11:], state)[0], model(tokens())[:, 11:]) < 1e-12


@pytest.mark.parametrize("kind", FAMILIES)
@torch.no_grad()
def test_samples_stand_at_different_positions(kind: str) -> None:
    model = model_of(kind)
    expected = model(tokens(3))
    begins = [1, 6, 12]
    parts = [model.step(tokens(3)[row : row + 1, :at], model.initial_state(1, 40))[1] for row, at in enumerate(begins)]
    state = stack(parts)
    for size in (1, 7, 1, 4):
        piece = torch.stack([tokens(3)[row, at : at + size] for row, at in enumerate(begins)])
        before = [tensor.clone() for _, tensor in named_tensors(state)]
        logits, after = model.step(piece, state)
        assert all(torch.equal(one, two) for one, (_, two) in zip(before, named_tensors(state), strict=True))
        for row, at in enumerate(begins):
            assert difference(logits[row], expected[row, at : at + size]) < 1e-5
        state, begins = after, [at + size for at in begins]


@torch.no_grad()
def test_generation_is_the_librarys_own() -> None:
    model = model_of("llama")
    ours = model.generate(tokens(2, 7), 12, Sampling(temperature=0))
    theirs = model.network.generate(
        tokens(2, 7), attention_mask=torch.ones(2, 7), max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    assert torch.equal(ours, theirs)


def test_what_runs_out_is_told_with_both_numbers() -> None:
    model = model_of("llama", max_length=8)
    assert model(tokens(2, 20)).shape == (2, 20, 17)
    _, state = model.step(tokens(2, 8))
    with pytest.raises(ValueError, match="the cache holds 8 tokens, but position 8 was reached"):
        model.step(tokens(2, 1), state)
    with pytest.raises(ValueError, match="9 tokens, but max_length gives 8 positions"):
        model_of("gpt2", max_length=8)(tokens(2, 9))
    windowed = model_of("mistral")
    _, state = windowed.step(tokens(2, 60), windowed.initial_state(2, capacity=4))
    windowed.step(tokens(2, 60), state)


def test_a_family_with_a_cache_of_its_own_is_not_stepped() -> None:
    model = build("hf", **SIZES, hf={"config": {"model_type": "openai-gpt"}}).eval()
    assert model(tokens()).shape == (2, LENGTH, 17)
    assert model.cost(32).state_bytes == 0
    with pytest.raises(UserError, match="openai-gpt can be trained and evaluated, but not continued token by token"):
        model.step(tokens())


# What it costs.


@pytest.mark.parametrize("kind", FAMILIES)
def test_cost_is_what_is_measured(kind: str) -> None:
    model = model_of(kind)
    cost = model.cost(32)
    assert cost.parameters == sum(parameter.numel() for parameter in model.network.parameters())
    tables = {model.embedding.weight, model.head.weight}
    positions = 64 * 16 if kind == "gpt2" else 0
    assert cost.embedding_parameters == sum(table.numel() for table in tables) + positions
    assert cost.state_bytes == state_bytes(model.initial_state(1, capacity=32))
    assert cost.training_flops > 2.99 * cost.forward_flops > 0


def test_flops_are_those_of_the_librarys_model() -> None:
    model = model_of("llama", dim=32)
    with FlopCounterMode(display=False) as counter:
        # Every product in the open: a fused kernel of the CPU would hide those of attention.
        model.network.set_attn_implementation("eager")
        model.network(tokens(2, 32)).logits.sum().backward()
    assert model.cost(32).training_flops == pytest.approx(counter.get_total_flops() / 64, rel=1e-3)


def test_a_llama_costs_what_our_transformer_costs() -> None:
    sizes = {"vocab_size": 99, "dim": 64, "depth": 3, "heads": 4}
    theirs, ours = build("hf", **sizes).cost(48), build("transformer++", **sizes).cost(48)
    for name in ("parameters", "non_embedding_parameters", "matrix_parameters"):
        assert getattr(theirs, name) == getattr(ours, name), name
    for name in ("forward_flops", "training_flops", "decoding_flops"):
        # Some versions of the library multiply positions and frequencies as matrices.
        assert getattr(theirs, name) == pytest.approx(getattr(ours, name), rel=1e-3), name


def test_only_chosen_experts_are_counted() -> None:
    more = FAMILIES["mixtral"] | {"num_local_experts": 8, "model_type": "mixtral"}
    few, many = model_of("mixtral").cost(32), build("hf", **SIZES, hf={"config": more}).cost(32)
    assert many.parameters > 1.5 * few.parameters
    assert many.forward_flops < 1.05 * few.forward_flops


# What a specification says.


def spec_of(**fields: Any) -> HuggingFaceSpec:
    spec = specify("hf", fields)
    assert isinstance(spec, HuggingFaceSpec)
    return spec


def test_a_configuration_decides_what_is_not_asked_for(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 24, "n_layer": 3, "n_head": 3, "n_positions": 40, "resid_pdrop": 0.2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        spec = spec_of(vocab_size=17, hf={"config": str(path)})
        assert (spec.dim, spec.depth, spec.heads, spec.hidden, spec.max_length) == (24, 3, 3, 96, 40)
        assert (spec.dropout, spec.tie_embeddings, spec.learned_positions, spec.causal) == (0.2, True, True, True)


def test_what_is_asked_for_resizes_a_configuration() -> None:
    config = {"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}
    config |= {"num_key_value_heads": 4, "num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    spec = spec_of(vocab_size=17, dim=32, heads=8, depth=5, hidden=40, tie_embeddings=True, hf={"config": config})
    found = spec.build().network.config
    assert (found.hidden_size, found.num_attention_heads, found.num_hidden_layers) == (32, 8, 5)
    assert (found.head_dim, found.num_key_value_heads, len(found.layer_types)) == (4, 8, 5)
    assert (found.vocab_size, found.intermediate_size, found.tie_word_embeddings) == (17, 40, True)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_stored_specification_is_the_same_model(kind: str) -> None:
    spec = spec_of(**SIZES, hf={"config": {"model_type": kind, **FAMILIES[kind]}})
    again = spec_of(**spec.model_dump(mode="json"))
    assert again == spec
    assert again.configuration == spec.configuration


def test_dropout_is_asked_for_in_our_word() -> None:
    spec = spec_of(**SIZES, dropout=0.3, hf={"config": {"model_type": "gpt2"}})
    config = spec.build().network.config
    assert (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) == (0.3, 0.3, 0.1)
    # A Llama has none outside attention, and says so.
    assert spec_of(**SIZES, dropout=0.3).dropout == 0.0


def test_a_window_bounds_the_reach() -> None:
    assert model_of("mistral").spec.reach == 2 * 4
    assert model_of("gemma2").spec.reach is None
    assert model_of("llama").spec.reach is None


@torch.no_grad()
def test_bert_becomes_causal() -> None:
    model = build("hf", **SIZES, hf={"config": {"model_type": "bert", "intermediate_size": 24}}).eval()
    changed = tokens().clone()
    changed[:, -1] = (changed[:, -1] + 1) % 17
    assert difference(model(changed)[:, :-1], model(tokens())[:, :-1]) < 1e-6


# What is refused.


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"config": {"model_type": "never-heard-of"}}, "model_type never-heard-of is not known to transformers"),
        ({"config": {}}, "model_type None is not known to transformers"),
        ({"config": {"model_type": ["llama"]}}, "is not known to transformers"),
        ({"config": {"model_type": "t5"}}, "T5"),
        ({"config": {"model_type": "llava"}}, "give its text_config"),
        ({"config": {"model_type": "llama", "num_key_value_heads": 3}}, "heads 2 is not divisible by"),
        ({"config": {"model_type": "llama", "hidden_act": "no-such"}}, "no-such"),
        ({"config": {"model_type": "llama", "quantization_config": {"bits": 4}}}, "cannot be trained"),
        ({"config": "absent/config.json"}, "absent/config.json: no such file; nothing is downloaded"),
        ({"folder": "openai-community/gpt2"}, "openai-community/gpt2: no such file; nothing is downloaded"),
        ({}, "give config, for a model with random weights, or folder"),
        ({"confg": {}}, "did you mean config"),
    ],
)
def test_a_source_that_is_no_model_is_told(source: dict[str, Any], said: str) -> None:
    assert said in refused(hf=source)


def test_a_model_that_sees_later_tokens_is_told() -> None:
    config = {"model_type": "gemma3_text", "head_dim": 8, "num_key_value_heads": 1, "use_bidirectional_attention": True}
    assert "sees later tokens" in refused(hidden=24, hf={"config": config})


def test_the_library_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert refused() == "architecture hf: needs the transformers library; pip install 'lockstep-lm[hub]'"


def test_the_library_is_not_imported_before_it_is_needed() -> None:
    code = "import lockstep, sys; lockstep.architectures(); sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


REMOTE = {
    "config.json": json.dumps(
        {
            "model_type": "from-elsewhere",
            "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
            "vocab_size": 17,
        }
    ),
    "code.py": "from pathlib import Path\nPath('ran').touch()\n",
}


@pytest.mark.parametrize("kind", ["from-elsewhere", "llama"])
@pytest.mark.parametrize("key", ["config", "folder"])
def test_code_that_comes_with_a_model_is_never_run(
    kind: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model"
    saved(model)
    config = json.loads((model / "config.json").read_text()) | json.loads(REMOTE["config.json"]) | {"model_type": kind}
    (model / "config.json").write_text(json.dumps(config))
    (model / "code.py").write_text(REMOTE["code.py"])
    if kind == "llama":
        assert build("hf", vocab_size=17, hf={key: str(model)})(tokens()).shape == (2, LENGTH, 17)
    else:
        assert "its own code is never run" in refused(hf={key: str(model)})
    assert not (tmp_path / "ran").exists()


def test_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*_: Any) -> None:
        raise AssertionError("a connection was asked for")

    saved(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", call)
    monkeypatch.setattr(socket, "getaddrinfo", call)
    build("hf", vocab_size=17, hf={"folder": str(tmp_path)})
    build("hf", **SIZES, hf={"config": str(tmp_path)})
    refused(hf={"folder": str(tmp_path / "absent")})


# Weights of a folder.


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral", "mamba"])
@torch.no_grad()
def test_a_folders_weights_are_loaded(kind: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path, kind)
    ours = build("hf", vocab_size=17, hf={"folder": str(tmp_path)})
    assert ours.training
    assert torch.equal(ours.eval()(tokens()), theirs(tokens()).logits)


def test_weights_in_half_precision_become_float32(tmp_path: Path) -> None:
    saved(tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    model = build("hf", vocab_size=17, hf={"folder": str(tmp_path)})
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"vocab_size": 18}, "vocab_size is 18, but the weights in"),
        ({"dim": 32}, "dim is 32, but the weights in"),
        ({"tie_embeddings": True}, "tie_embeddings is True, but the weights in"),
    ],
)
def test_what_weights_contradict_is_told(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(UserError, match=said):
        build("hf", **({"vocab_size": 17, "hf": {"folder": str(tmp_path)}} | fields))


def test_weights_that_are_not_there_are_told(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"9 weights are missing or of another shape, as model\.layers\.2"):
        build("hf", vocab_size=17, hf={"folder": str(tmp_path)})
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no \.safetensors file"):
        build("hf", vocab_size=17, hf={"folder": str(tmp_path)})


def test_positions_of_weights_bound_the_length(tmp_path: Path) -> None:
    saved(tmp_path, "gpt2", n_positions=24)
    assert spec_of(vocab_size=17, max_length=8, hf={"folder": str(tmp_path)}).max_length == 24


# Training.


def hf_run(corpus: Path, model: dict[str, Any] | None = None, **training: Any) -> RunSpec:
    config = {"model_type": "llama", "intermediate_size": 24, "attention_dropout": 0.1}
    fields = {"architecture": "hf", "hf": {"config": config}} if model is None else model
    return tiny_run(
        corpus, "hf", model=fields, training=training, evaluation={"sample_prompt": "A", "sample_tokens": 3}
    )


def test_a_run_is_trained_evaluated_and_loaded(tiny_corpus: Path, tmp_path: Path) -> None:
    context = train(hf_run(tiny_corpus), tmp_path / "run")
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0] - 1
    (result,) = evaluate_run(tmp_path / "run", None, ("valid",), None)
    assert result["track"] == "causal"
    assert result["loss"] < 5
    model, again = lockstep.load(tmp_path / "run"), context.model_spec.build().eval()
    weights = last_checkpoint(tmp_path / "run").weights()
    with torch.no_grad():
        for name, parameter in again.named_parameters():
            parameter.copy_(weights[name])
    assert torch.equal(model(tokens()), again(tokens()))
    cost = last_checkpoint(tmp_path / "run").metadata["model_cost"]
    assert cost["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_a_crashed_run_goes_on_bit_for_bit(tiny_corpus: Path, tmp_path: Path) -> None:
    run = hf_run(tiny_corpus)
    train(run, tmp_path / "calm")
    crash(run, tmp_path / "crashed", "a step is taken", 7)
    train(run, tmp_path / "crashed")
    assert_same_run(tmp_path / "calm", tmp_path / "crashed")


def test_activations_computed_again_give_the_same_run(tiny_corpus: Path, tmp_path: Path) -> None:
    train(hf_run(tiny_corpus), tmp_path / "kept")
    train(hf_run(tiny_corpus, use_gradient_checkpointing=True), tmp_path / "again")
    assert losses(tmp_path / "again") == pytest.approx(losses(tmp_path / "kept"), rel=1e-5)


def test_shards_of_two_processes_train_the_same_model(tiny_corpus: Path, tmp_path: Path) -> None:
    run = hf_run(tiny_corpus, {"architecture": "hf", "dropout": 0.0}, distribution="fsdp")
    train(run, tmp_path / "alone")
    assert train_together(run, tmp_path / "together", 2) == [0, 0]
    assert losses(tmp_path / "together") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)


@torch.no_grad()
def test_training_goes_on_from_a_folder_and_then_without_it(tiny_corpus: Path, tmp_path: Path) -> None:
    saved(tmp_path / "model", vocab_size=258)
    model = {"architecture": "hf", "hf": {"folder": str(tmp_path / "model")}, "dim": 16, "depth": 2}
    with torch.enable_grad():
        context = train(hf_run(tiny_corpus, model), tmp_path / "run")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    first = context.model_spec.build().eval()
    assert torch.equal(first(tokens()), theirs(tokens()).logits)
    before = lockstep.load(tmp_path / "run")(tokens())
    assert difference(before, first(tokens())) > 1e-3
    shutil.rmtree(tmp_path / "model")
    assert torch.equal(lockstep.load(tmp_path / "run")(tokens()), before)


def test_the_command_line_refuses_weights_of_another_vocabulary(tiny_corpus: Path, tmp_path: Path) -> None:
    saved(tmp_path / "model")
    model = {"architecture": "hf", "hf": {"folder": str(tmp_path / "model")}, "dim": 16, "depth": 2}
    config = write_config(hf_run(tiny_corpus, model), tmp_path / "run.yaml")
    done = run_command(config, tmp_path / "run")
    assert done.returncode == 2
    assert "vocab_size is 258, but the weights in" in only_line(done.stderr)
    assert not (tmp_path / "run").exists()


def test_the_command_line_trains_and_continues(tiny_corpus: Path, tmp_path: Path) -> None:
    config = write_config(hf_run(tiny_corpus), tmp_path / "run.yaml")
    done = run_command(config, tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    options = ("--prompt", "The cat", "--tokens", "4", "--seed", "1")
    command = [sys.executable, "-m", "lockstep.cli", "generate", str(tmp_path / "run"), *options]
    continued = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (continued.returncode, continued.stderr) == (0, "")
    assert continued.stdout.startswith("The cat")


@pytest.mark.parametrize("tied", [True, False])
def test_optimizers_know_tables_and_head(tied: bool) -> None:
    model = model_of("llama", tie_embeddings=tied)
    muon, adamw = build_optimizers(model, TrainingSpec(optimizer="muon"))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    matrices = {names[id(one)] for group in muon.param_groups for one in group["params"]}
    assert all("_proj.weight" in name for name in matrices)
    assert len(matrices) == 2 * 7
    spared = {names[id(one)] for group in adamw.param_groups if not group["weight_decay"] for one in group["params"]}
    assert "embedding.weight" in spared
    assert ("head.weight" in names.values()) is not tied


def test_every_row_of_the_table_learns() -> None:
    config = {"model_type": "llama", "pad_token_id": 3, "intermediate_size": 24}
    model = build("hf", **SIZES, tie_embeddings=False, hf={"config": config})
    model(torch.full((1, 4), 3)).sum().backward()
    assert model.embedding.weight.grad is not None
    assert model.embedding.weight.grad[3].any()
