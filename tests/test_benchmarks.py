"""The GPU benchmarks, small and on a CPU: their manners, and lines that agree with each other, the models and torch."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import runpy
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
CPU = torch.device("cpu")
SMALL = ("--device", "cpu", "--no-compile", "--size", "32/1/2", "--tokens", "256", "--lengths", "128", "--steps", "1")
REHEARSED = ("--device", "cpu", "--no-compile", "--size", "32/2/2", "--processes", "2")
COMPETING = ("transformer++", "titans-lmm", "titans-mag", "plain-transformer", "titans-pytorch")
GUESTS = ("fla-gated-deltanet", "mamba-ssm-mamba2")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and LOCKSTEP_TEST_GPU=1")


@pytest.fixture(scope="module", autouse=True)
def benchmarks_can_be_imported() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        # As where it is not installed.
        patch.setitem(sys.modules, "titans_pytorch", None)
        yield


def module(name: str) -> Any:
    return importlib.import_module(name)


def status_of(monkeypatch: pytest.MonkeyPatch, program: str, *words: str) -> Any:
    """With which it exits when it is run as a program."""
    monkeypatch.setattr(sys, "argv", [program, *words])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(BENCHMARKS / program), run_name="__main__")
    return left.value.code


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[dict[str, Any]], str]:
    """The lines of JSON, and what went to stderr."""
    assert module("gpu").main(["training", *SMALL, *words]) == 0
    out, said = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], said


def test_training_is_told_by_lines_that_agree_with_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    (machine, *lines), said = printed(capsys, "--rounds", "3", "--contestants", ",".join(COMPETING))
    assert machine["device"] == "cpu"
    assert machine["shape"]["dim"] == 32
    assert [line["contestant"] for line in lines] == list(COMPETING)
    *ran, failed = lines
    assert "titans_pytorch" in failed["error"]
    assert "pip install titans-pytorch" in failed["error"]
    assert "tokens_per_second" not in failed
    rounds = {line["contestant"]: line["tokens_per_second_by_round"] for line in ran}
    for line in ran:
        own, baseline = rounds[line["contestant"]], rounds["transformer++"]
        ratios = [one / other for one, other in zip(own, baseline, strict=True)]
        assert line["ratio"] == pytest.approx(statistics.median(ratios))
        assert line["tokens_per_second"] == pytest.approx(statistics.median(own))
        rate = line["training_flops_per_token"] * line["tokens_per_second"]
        assert line["share_of_peak"] == pytest.approx(rate / machine["bf16_matmul_tflops"] / 1e12)
        assert (line["length"], line["batch"], line["peak_bytes"], line["peak_ratio"]) == (128, 2, None, None)
        assert (line["graphs"], line["graph_breaks"]) == (0, 0), "nothing was to be compiled"
    (bar,) = ran[2]["bars"]
    ratios = [one / other for one, other in zip(rounds["titans-mag"], rounds["titans-lmm"], strict=True)]
    assert (bar["against"], bar["bar"]) == ("titans-lmm", ">= 0.85")
    assert bar["ratio"] == pytest.approx(statistics.median(ratios))
    assert bar["met"] == (bar["ratio"] >= 0.85)
    last = said.splitlines()[-len(COMPETING) :]
    assert [line.split()[0] for line in last] == list(COMPETING)
    assert last[-1].split()[-1] == "error"
    verdict = f"speed {bar['ratio']:.3g} of titans-lmm >= 0.85 {'met' if bar['met'] else 'MISSED'}"
    assert last[2].endswith(f"  {verdict}")


@contextmanager
def two_of_ours(*words: str) -> Iterator[subprocess.Popen[str]]:
    """The benchmark in a process of its own, to be cut off."""
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), *words, "--contestants", "transformer++,titans-lmm"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process


@pytest.mark.parametrize(
    ("measurement", "told", "by"),
    [("training", "tokens_per_second", signal.SIGTERM), ("decoding", "milliseconds", signal.SIGINT)],
)
def test_who_is_cut_off_tells_what_was_measured(measurement: str, told: str, by: signal.Signals) -> None:
    small = ("--device", "cpu", "--no-compile", "--size", "32/1/2", "--lengths", "64", "--rounds", "1000")
    few = ("--tokens", "256", "--steps", "1") if measurement == "training" else ()
    with two_of_ours(measurement, *small, *few) as process:
        assert process.stderr is not None
        assert any("round 2 of" in line for line in process.stderr)
        for _ in range(20):  # whoever is impatient, or `timeout`, which sends two
            process.send_signal(by)
            time.sleep(0.01)
        out, said = process.communicate(timeout=60)
    assert process.returncode == 128 + by
    assert "Traceback" not in said
    _, *lines = (json.loads(line) for line in out.splitlines())
    assert [line["contestant"] for line in lines] == ["transformer++", "titans-lmm"]
    first, second = (line[f"{told}_by_round"] for line in lines)
    assert len(first) - len(second) in (0, 1)
    assert len(second) >= 2
    ratios = [one / other for one, other in zip(second, first, strict=False)]
    assert lines[1]["ratio"] == pytest.approx(statistics.median(ratios))


@pytest.mark.parametrize("measurement", ["training", "decoding"])
def test_who_fails_in_its_turn_says_why_and_others_go_on(
    measurement: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a token that its vocabulary does not have, which stands there when it is warm."""
    measured = module(f"gpu_{measurement}")
    warmed = "warmed" if measurement == "training" else "prepared"
    whole = getattr(measured, warmed)

    def spoilt(name: str, *others: Any) -> Any:
        one = whole(name, *others)
        if name == "titans-lmm":
            (one.tokens if measurement == "training" else one.latest).fill_(999)
        return one

    monkeypatch.setattr(measured, warmed, spoilt)
    small = ["--device", "cpu", "--no-compile", "--size", "32/1/2", "--lengths", "64", "--rounds", "2"]
    few = ["--tokens", "64", "--steps", "1"] if measurement == "training" else []
    names = ["titans-lmm", "transformer++"]
    assert module("gpu").main([measurement, *small, *few, "--contestants", ",".join(names)]) == 0
    _, failed, went_on = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [failed["contestant"], went_on["contestant"]] == names
    assert failed["error"].startswith("IndexError")
    assert "ratio" not in failed
    rounds = "tokens_per_second_by_round" if measurement == "training" else "milliseconds_by_round"
    assert len(went_on[rounds]) == 2


def test_flops_are_those_of_the_model_that_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    (_, line), _ = printed(capsys, "--rounds", "1", "--contestants", "titans-lmm")
    sizes: dict[str, Any] = {"vocab_size": 256, "dim": 32, "depth": 1, "heads": 2, "hidden": line["hidden"]}
    cost = build("titans-lmm", **sizes, chunk=64, expansion=2).cost(128)
    assert line["training_flops_per_token"] == cost.training_flops
    assert line["non_embedding_parameters"] == cost.non_embedding_parameters
    assert line["ratio"] is None, "there is no baseline to compare with"


def test_a_profile_names_operators_by_the_time_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    (_, head, *kernels), _ = printed(capsys, "--profile", "transformer++", "--top", "20")
    assert (head["contestant"], head["length"]) == ("transformer++", 128)
    assert len(kernels) == 20
    shares = [line["share"] for line in kernels]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 1 + 1e-9
    by_name = {line["kernel"]: line for line in kernels}
    # Queries, keys and values at once, the output, both halves of the SwiGLU's input at once, its output, the table of
    # outputs: five products, and two for each on the way back.
    assert by_name["aten::mm"]["count"] == 3 * 5


def test_a_profile_of_one_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert module("gpu").main(["training", *SMALL, "--profile", "titans-pytorch"]) == 1
    _, line = map(json.loads, capsys.readouterr().out.splitlines())
    assert "pip install titans-pytorch" in line["error"]


@pytest.mark.parametrize("words", [("training",), ("decoding",), ("training", "--device", "cuda")])
def test_without_a_gpu_one_line_says_so(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert status_of(monkeypatch, "gpu.py", *words) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.splitlines() == [
        "gpu.py needs a GPU, and torch finds no device cuda here; --device cpu tries the program out"
    ]


def test_a_gpu_beyond_those_there_are_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    found = module("device").found
    assert [found(torch.device(name)) for name in ("cpu", "cuda", "cuda:0", "cuda:1")] == [True, True, True, False]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--lengths", "0"), "--lengths: '0' is not a whole number from 1 on"),
        (("--lengths", "-5"), "--lengths: '-5' is not a whole number from 1 on"),
        (("--lengths", "128,abc"), "--lengths: 'abc' is not a whole number from 1 on"),
        (("--lengths", "128,"), "--lengths: '128,' has nothing before or after a ','"),
        (("--rounds", "0"), "--rounds: '0' is not a whole number from 1 on"),
        (("--tokens", "0"), "--tokens: '0' is not a whole number from 1 on"),
        (("--steps", "0"), "--steps: '0' is not a whole number from 1 on"),
        (("--size", "0/1/2"), "--size: '0' is not a whole number from 1 on"),
        (("--size", "32/1"), "--size: '32/1' is not dim/depth/heads, such as 512/16/8"),
        (("--size", "32/1/3"), "--size: model: transformer++: dim 32 is not divisible by heads 3"),
        (("--device", "tpu"), "--device: 'tpu' is neither cuda, nor one of several such as cuda:1, nor cpu"),
        (("--contestants", "titans-lmm,"), "--contestants: 'titans-lmm,' has nothing before or after a ','"),
        (("--contestants", ""), "--contestants: '' has nothing before or after a ','"),
        (("--contestants", "gpt2,gpt2"), "--contestants: 'gpt2,gpt2' names one twice"),
        (("--contestants", "titan-lmm"), "--contestants: unknown contestant titan-lmm; did you mean titans-lmm?"),
        (("--profile", "titan-lmm"), "--profile: unknown contestant titan-lmm; did you mean titans-lmm?"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_plain_words(
    words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        module("gpu").main(["training", "--device", "cpu", *words])
    assert left.value.code == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.splitlines()[-1].partition("argument ")[2] == complaint


def test_only_those_that_decode_can_be_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        module("gpu").main(["decoding", "--contestants", "plain-transformer"])
    assert capsys.readouterr().err.endswith("plain-transformer only trains\n")


def helped(capsys: pytest.CaptureFixture[str], program: str, *words: str) -> str:
    """What --help says, in one line."""
    with pytest.raises(SystemExit) as left:
        module(program).main([*words, "--help"])
    assert left.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_names_the_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    said = helped(capsys, "gpu")
    assert "training tokens per second and peak memory" in said
    assert "decoding milliseconds a token" in said


@pytest.mark.parametrize("measurement", ["training", "decoding"])
def test_help_says_who_competes(measurement: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = helped(capsys, "gpu", measurement)
    measured = module(f"gpu_{measurement}")
    usual, at_4096 = (measured.invited(measured.Case(length)) for length in (16_384, 4096))
    assert f"by default: {', '.join(usual)}." in said
    others = [name for name in at_4096 if name not in usual]
    assert f"At a length of 4096 also, and elsewhere only where named: {', '.join(others)}." in said
    assert 'The column "bars" says' in said
    assert "(default: 512/16/8)" in said


def test_every_option_has_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    add = argparse.ArgumentParser.add_argument
    texts: dict[str, str | None] = {}

    def noted(self: argparse.ArgumentParser, *names: str, **more: Any) -> argparse.Action:
        texts[names[0]] = more.get("help")
        return add(self, *names, **more)

    monkeypatch.setattr(argparse.ArgumentParser, "add_argument", noted)
    module("gpu").parsed(["training"])
    module("tiles").parsed([])
    assert {"--lengths", "--tokens", "--several", "tiles"} <= set(texts)
    assert [name for name, text in texts.items() if not text] == []


@pytest.mark.parametrize(("installed", "missing"), [(True, "a GPU"), (False, "Triton")])
def test_tiles_say_what_they_need(
    installed: bool, missing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if installed:
        pytest.importorskip("triton")
    else:
        monkeypatch.setitem(sys.modules, "triton", None)
    assert status_of(monkeypatch, "tiles.py") == 2
    out, said = capsys.readouterr()
    assert (out, len(said.splitlines())) == ("", 1)
    assert said.startswith(f"tiles.py needs {missing}")


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("128,64,8", "'128,64,8' is not queries, keys, warps and stages, such as 128,64,8,3"),
        ("128,64,8,0", "'0' is not a whole number from 1 on"),
        ("128,64,8,", "'128,64,8,' has nothing before or after a ','"),
    ],
)
def test_tiles_are_four_numbers(
    word: str, complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert status_of(monkeypatch, "tiles.py", word) == 2
    assert capsys.readouterr().err.endswith(f"{complaint}\n")


@pytest.mark.parametrize(("fitting", "status"), [((), 1), (("window",), 0)])
def test_tiles_fail_where_all_of_them_do(
    fitting: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    tiles = module("tiles")

    def milliseconds(name: str, *_: Any) -> dict[str, float]:
        if name not in fitting:
            raise RuntimeError("out of resources\nby far")
        return {"reads": 1.0}

    monkeypatch.setattr(tiles, "found", lambda device: True)
    monkeypatch.setattr(tiles, "milliseconds", milliseconds)
    assert tiles.main(["128,64,8,3"]) == status
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["seen"] for line in lines] == ["window", "segment"]
    assert lines[1]["error"] == "RuntimeError: out of resources by far"


def test_without_flags_every_length_is_measured_with_the_tokens_that_it_should_have() -> None:
    gpu = module("gpu")
    everything = [(case.length, case.batch(None)) for case in gpu.parsed(["training"]).cases]
    assert everything == [(1024, 64), (16_384, 16), (65_536, 4), (65_536, 1), (4096, 16)], "peers come last"
    alone = gpu.parsed(["training", "--batch1"]).cases
    assert [(case.length, case.batch(None)) for case in alone] == [(65_536, 1)]


def test_full_sizes_match_and_differ_in_the_mlp_alone() -> None:
    contestants = module("gpu_contestants")
    size = contestants.Size()
    # One of those that have a memory alone, and the one that has the most beside it.
    specs = {name: contestants.specification(name, size) for name in ("transformer++", "titans-lmm", "titans-mac")}
    match = importlib.import_module("lockstep.study.match")
    counts = {name: match.cost_on_meta(spec, 1024).non_embedding_parameters for name, spec in specs.items()}
    assert counts["transformer++"] == pytest.approx(50e6, rel=0.05)
    assert all(count == pytest.approx(counts["transformer++"], rel=0.05) for count in counts.values())
    assert {(spec.dim, spec.depth, spec.heads) for spec in specs.values()} == {(512, 16, 8)}
    with torch.device("meta"):
        plain = module("plain_transformer").PlainTransformer(256, *size, 1024)
    assert plain.non_embedding_parameters == pytest.approx(counts["transformer++"], rel=0.05)


def test_flops_of_the_plain_transformer_are_those_that_torch_counts() -> None:
    with torch.device("meta"):
        model = module("plain_transformer").PlainTransformer(256, 64, 3, 2, 96)
        tokens = torch.zeros(2, 96, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(tokens)
    assert model.training_flops(96) == pytest.approx(3 * counter.get_total_flops() / tokens.numel())


def test_a_step_trains() -> None:
    contestants = module("gpu_contestants")
    setting = contestants.Setting(contestants.Size(32, 1, 2), 64, 2, "nothing", CPU)
    one = contestants.contestant("titans-lmm", setting)
    assert one.tokens.shape == (2, 65)
    mean_loss = module("side_by_side").mean_loss
    before = mean_loss(one.model, one.tokens).item()
    for _ in range(10):
        one.step()
    assert mean_loss(one.model, one.tokens).item() < before
    assert all(parameter.grad is None for parameter in one.model.parameters())


@pytest.mark.parametrize(("seconds", "peak", "met"), [(1.5, 15, (True, True)), (1.7, 16, (False, False))])
def test_bars_judge_speed_and_memory(seconds: float, peak: int, met: tuple[bool, bool]) -> None:
    contestants, training = module("gpu_contestants"), module("gpu_training")
    setting = contestants.Setting(contestants.Size(32, 1, 2), 64, 1, "nothing", CPU)
    ready = {name: contestants.contestant(name, setting) for name in ("transformer++", "titans-lmm")}
    ready["transformer++"].seconds_per_token, ready["transformer++"].peak_bytes = [1.0, 2.0, 9.0], 10
    ready["titans-lmm"].seconds_per_token, ready["titans-lmm"].peak_bytes = [seconds, 2 * seconds, 1.0], peak
    speed, memory = training.judged("titans-lmm", ready, training.Case(4096))
    assert speed == {"of": "speed", "against": "transformer++", "ratio": 1 / seconds, "bar": ">= 0.6", "met": met[0]}
    assert memory == {"of": "memory", "against": "transformer++", "ratio": peak / 10, "bar": "<= 1.5", "met": met[1]}
    (elsewhere,) = training.judged("titans-lmm", ready, training.Case(1024))
    assert elsewhere["of"] == "memory", "no speed is asked for at this length"


def test_rivals_match_too() -> None:
    contestants, match = module("gpu_contestants"), importlib.import_module("lockstep.study.match")
    names = ("transformer++", *contestants.RIVALS, *contestants.OTHERS)
    specs = {name: contestants.specification(name, contestants.Size()) for name in names}
    counts = {name: match.cost_on_meta(spec, 1024).non_embedding_parameters for name, spec in specs.items()}
    assert all(count == pytest.approx(counts["transformer++"], rel=0.05) for count in counts.values()), counts


def test_decoding_is_told_by_lines_that_agree_with_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """Of models that have read the context: the state has the bytes that `cost` says, at the room it was given."""
    words = ("--device", "cpu", "--no-compile", "--size", "32/1/2", "--lengths", "96", "--rounds", "2", "--several")
    competing = ("transformer++", "titans-lmm", "mamba2")
    assert module("gpu").main(["decoding", *words, "--contestants", ",".join(competing)]) == 0
    out, said = capsys.readouterr()
    _, *lines = map(json.loads, out.splitlines())
    assert [(line["contestant"], line["batch"]) for line in lines] == [(n, b) for b in (1, 64) for n in competing]
    for line in lines:
        seconds = line["milliseconds_per_token"] / 1e3
        assert line["tokens_per_second"] == pytest.approx(line["batch"] / seconds)
        assert statistics.median(line["milliseconds_by_round"]) == pytest.approx(1e3 * seconds)
        assert line["prefill_tokens_per_second"] == pytest.approx(line["batch"] * 96 / line["prefill_seconds"])
        assert not line["replayed"], "there is no GPU to record for"
        assert line["apart_from_reading"] < 0.01, "a token says what it says in a text"
    memory = [line["state_bytes"] for line in lines if line["contestant"] == "titans-lmm"]
    assert memory[0] == memory[1]
    assert [line.split()[0] for line in said.splitlines()[-6:]] == list(competing) * 2


def test_a_batch_is_decoded_alone_where_no_length_is_named() -> None:
    decoding = module("gpu_decoding")
    assert decoding.cases(None, several=True) == [decoding.Case(1024, 64)]
    assert decoding.cases((4096,), several=True) == [decoding.Case(4096), decoding.Case(4096, 64)]
    assert decoding.Case(1024, 64) in decoding.cases(None, several=False)


def test_a_profile_of_decoding_counts_by_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "cpu", "--no-compile", "--size", "32/1/2", "--rounds", "1", "--lengths", "16"]
    assert module("gpu").main(["decoding", *words, "--profile", "transformer++"]) == 0
    _, head, *kernels = map(json.loads, capsys.readouterr().out.splitlines())
    assert (head["contestant"], head["length"], head["batch"]) == ("transformer++", 16, 1)
    assert head["kernels"] > len(kernels)
    # As in training, but for the way back.
    assert {line["kernel"]: line for line in kernels}["aten::mm"]["count"] == 5


def test_other_packages_take_turns_when_all_others_have_been_measured() -> None:
    training = module("gpu_training")
    invited = training.invited(training.Case(4096))
    ours, guests, peers = training.in_groups(invited, training.GUESTS, training.PEERS)
    assert guests == ["fla-gated-deltanet", "mamba-ssm-mamba2"]
    assert peers == ["titans-pytorch", "titans-pytorch-bf16"]
    assert [*ours, *guests, *peers] == list(invited)
    assert training.in_groups(["mamba-ssm-mamba2", "gpt2"], training.GUESTS, training.PEERS) == [
        ["gpt2"],
        ["mamba-ssm-mamba2"],
    ]


@pytest.mark.parametrize(("measurement", "warmed"), [("training", "all_warmed"), ("decoding", "all_prepared")])
def test_groups_are_warmed_up_and_measured_one_after_the_other(
    measurement: str, warmed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = module(f"gpu_{measurement}")
    seen: list[tuple[str, list[str]]] = []
    for name in (warmed, "take_turns"):
        monkeypatch.setattr(measured, name, lambda names, *_, name=name: seen.append((name, list(names))))
    asked = argparse.Namespace(
        contestants=("titans-pytorch", "mamba-ssm-mamba2", "gpt2"), rounds=2, device=torch.device("cpu")
    )
    assert measured.measure(measured.Case(4096), asked, {}) == []
    groups = [["gpt2"], ["mamba-ssm-mamba2"], ["titans-pytorch"]]
    assert seen == [(name, group) for group in groups for name in (warmed, "take_turns", "take_turns")]


def test_decoding_takes_over_nothing_that_was_found_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "as it was")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    with module("rehearsal").nothing_found_before():
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert list(folder.iterdir()) == []
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / ".triton" / "cache"), "where Triton keeps its own"
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    assert not folder.exists()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "as it was"
    assert "TRITON_CACHE_DIR" not in os.environ


def test_what_was_found_beforehand_is_forgotten_and_what_was_compiled_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "aa").mkdir()
    earlier, inside, compiled = (tmp_path / "aa" / name for name in ("1.best_config", "2.best_config", "2.py"))
    earlier.touch()
    with suppress(KeyboardInterrupt), module("rehearsal").nothing_found_inside():
        inside.touch()
        compiled.touch()
        raise KeyboardInterrupt
    assert set(tmp_path.rglob("*.*")) == {earlier, compiled}


@pytest.mark.parametrize("measurement", ["training", "decoding"])
def test_processes_compile_beforehand_what_is_ours(measurement: str, capfd: pytest.CaptureFixture[str]) -> None:
    names = ("transformer++", *GUESTS, "titans-lmm", "titans-pytorch")
    few = ("--tokens", "64", "--steps", "1") if measurement == "training" else ()
    words = (*REHEARSED, "--lengths", "64", "--rounds", "1", "--contestants", ",".join(names))
    assert module("gpu").main([measurement, *words, *few]) == 0
    out, said = capfd.readouterr()
    assert "\n2 processes compile beforehand\n" in said
    beforehand = sorted(line for line in said.splitlines() if line.startswith("beforehand: "))
    assert [line.split()[1] for line in beforehand] == ["titans-lmm", "transformer++"]
    assert all(" at 64 is compiled after " in line for line in beforehand)
    assert {json.loads(line).get("contestant") for line in out.splitlines()} == {None, *names}


def test_processes_that_compile_beforehand_end_with_the_program() -> None:
    with two_of_ours("training", *REHEARSED, "--lengths", "64,262144", "--tokens", "64") as process:
        assert process.stderr is not None
        assert any("transformer++ at 64 is compiled" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        # Who lived on would hold its ends of the pipes for minutes.
        _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["transformer++", "titans-mac", "mamba", "samba"])
def test_a_layer_of_each_kind_is_all_that_is_compiled(name: str) -> None:
    contestants = module("gpu_contestants")
    whole, few = (contestants.specification(name, contestants.Size(), one_of_each) for one_of_each in (False, True))
    with torch.device("meta"):
        blocks, kinds = ([str(block) for block in spec.build().blocks] for spec in (whole, few))
    assert set(blocks) == set(kinds)
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize(("length", "rehearsed"), [(40, [16, 16, 8]), (80, [16, 16, 16]), (16, [16]), (20, [16, 4])])
def test_a_context_is_read_in_pieces_of_lengths_that_were_warmed_up(
    length: int, rehearsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding, read = module("gpu_decoding"), []
    whole = LanguageModel.step

    def step(model: LanguageModel, tokens: Tensor, state: Any) -> Any:
        read.append(tokens.shape[1])
        return whole(model, tokens, state)

    monkeypatch.setattr(LanguageModel, "step", step)
    monkeypatch.setattr(decoding, "PIECE", 16)
    small = ["decoding", "--device", "cpu", "--no-compile", "--size", "32/1/2", "--rounds", "1"]
    assert module("gpu").main([*small, "--lengths", str(length), "--contestants", "titans-mag"]) == 0
    pieces = [16] * (length // 16) + [length % 16] * bool(length % 16)
    several = [one for one in read if one > 1]
    # At last what had been decoded token by token.
    assert several == [*rehearsed, *pieces, decoding.DECODED]
    assert read[: len(several) - 1] == several[:-1]


def test_bars_judge_decoding() -> None:
    decoding = module("gpu_decoding")

    class Took:
        def __init__(self, *seconds: float) -> None:
            self.seconds_per_token = list(seconds)

    ready = {"transformer++": Took(1.0, 2.0, 9.0), "titans-lmm": Took(1.2, 2.4, 9.0), "mamba2": Took(1.0)}
    (beside,) = decoding.judged("titans-lmm", ready, decoding.Case(1024), {})
    assert beside == {"against": "transformer++", "ratio": 1.2, "bar": "<= 1.3", "met": True}
    (grown,) = decoding.judged("mamba2", ready, decoding.Case(decoding.FAR), {"mamba2": 0.9})
    assert not grown["met"]
    assert decoding.judged("mamba2", ready, decoding.Case(decoding.FAR), {}) == []


@pytest.mark.parametrize("measurement", ["training", "decoding"])
def test_guests_that_are_not_installed_say_so(
    measurement: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing in ("fla.layers", "mamba_ssm"):
        monkeypatch.setitem(sys.modules, missing, None)
    words = ["--device", "cpu", "--no-compile", "--size", "32/1/2", "--lengths", "96", "--rounds", "1"]
    assert module("gpu").main([measurement, *words, "--contestants", ",".join(GUESTS)]) == 1, "nobody is left"
    _, *lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["contestant"] for line in lines] == list(GUESTS)
    assert ["fla.layers" in lines[0]["error"], "mamba_ssm" in lines[1]["error"]] == [True, True]
    assert lines[0]["error"].endswith("pip install flash-linear-attention")
    assert lines[1]["error"].endswith("pip install mamba-ssm")


def test_guests_come_where_they_are_invited() -> None:
    training, decoding = module("gpu_training"), module("gpu_decoding")
    for measured in (training, decoding):
        at = [
            case.length
            for case in map(measured.Case, (1024, 4096, 16_384))
            if set(GUESTS) & set(measured.invited(case))
        ]
        assert at == [4096]
        assert set(GUESTS) <= set(measured.invited(measured.Case(4096)))


@pytest.mark.parametrize(("ours", "guest"), [("gated-deltanet", GUESTS[0]), ("mamba2", GUESTS[1])])
def test_bars_judge_rivals_beside_the_packages_that_have_them(ours: str, guest: str) -> None:
    contestants, training = module("gpu_contestants"), module("gpu_training")
    setting = contestants.Setting(contestants.Size(32, 1, 2), 64, 1, "nothing", CPU)
    ready = {ours: contestants.contestant(ours, setting), guest: contestants.contestant("plain-transformer", setting)}
    ready[ours].seconds_per_token, ready[guest].seconds_per_token = [1.0, 2.0], [1.5, 3.0]
    for case in training.CASES:
        bars = [bar for bar in training.judged(ours, ready, case) if bar["against"] == guest]
        assert bars == [{"of": "speed", "against": guest, "ratio": 1.5, "bar": ">= 1.0", "met": True}]


class AddingNorm(nn.RMSNorm):
    """In torch, what the packages' fused norms do."""

    def forward(  # type: ignore[override] # the packages' norms are given more than torch's
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        total = x if residual is None else x + residual
        return (super().forward(total), total) if prenorm else super().forward(total)


class Shifting(nn.Linear):
    """A mixer with the answer that fla's have."""

    def forward(  # type: ignore[override] # fla's mixers are given a cache too
        self, hidden_states: Tensor, past_key_values: Any = None, use_cache: bool = False
    ) -> tuple[Tensor, None, Any]:
        return super().forward(F.pad(hidden_states, (0, 0, 1, -1))), None, past_key_values


def test_a_guest_is_a_pre_norm_model_of_its_blocks() -> None:
    guests, fla = module("guests"), module("guests_fla")
    torch.manual_seed(0)
    blocks = [fla.Block(Shifting(8, 8), nn.Linear(8, 8), AddingNorm(8), AddingNorm(8)) for _ in range(3)]
    model = guests.Guest(16, 8, blocks, AddingNorm(8), {"version": "1.2"})
    tokens = torch.randint(16, (2, 5))
    x = model.tokens(tokens)
    for block in blocks:
        x = x + block.mixer(block.first(x))[0]
        x = x + block.mlp(block.second(x))
    torch.testing.assert_close(model(tokens), model.head(model.norm(x)))
    expected = 3 * (2 * (8 * 8 + 8) + 2 * 8) + 8
    assert model.facts == {"non_embedding_parameters": expected, "layers": 3, "compiled": "nothing", "version": "1.2"}


@pytest.fixture
def forgotten_modules() -> Iterator[None]:
    """What a test imports of mamba-ssm is not there before, and not left behind."""
    names = ("mamba_ssm", "selective_scan_cuda")
    before = {name: sys.modules.pop(name) for name in tuple(sys.modules) if name.partition(".")[0] in names}
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.usefixtures("forgotten_modules")
@pytest.mark.parametrize("compiled", [True, False])
def test_mamba_ssm_can_be_imported_without_its_extensions(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package like it on the disk: the bare one stands in only where the whole one fails."""
    modules = tmp_path / "mamba_ssm" / "modules"
    modules.mkdir(parents=True)
    (tmp_path / "mamba_ssm" / "__init__.py").write_text("import selective_scan_cuda\nwhole = True\n")
    (modules / "__init__.py").touch()
    (modules / "mamba2.py").write_text("causal_conv1d_fn = None\n")
    if compiled:
        (tmp_path / "selective_scan_cuda.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    module("guests_mamba").import_package()
    assert module("mamba_ssm.modules.mamba2").causal_conv1d_fn is None
    assert hasattr(module("mamba_ssm"), "whole") == compiled


def guest(name: str, size: Any) -> Any:
    """Built, or the test is left out where its package is not installed."""
    try:
        return module("gpu_contestants").guest(name, size)
    except ImportError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(("name", "millions"), [(GUESTS[0], 50.5), (GUESTS[1], 49.9)])
def test_guests_have_the_sizes_that_are_told(name: str, millions: float) -> None:
    with torch.device("meta"):
        model = guest(name, module("gpu_contestants").Size())
    assert model.facts["non_embedding_parameters"] == pytest.approx(millions * 1e6, rel=0.002)
    assert model.facts["version"]


@needs_gpu
@pytest.mark.filterwarnings("ignore:.*disable_tma_lower:DeprecationWarning")  # tilelang's, of what fla asks of it
@pytest.mark.parametrize("name", GUESTS)
def test_guests_learn_from_a_recording_what_they_learn_call_by_call(name: str) -> None:
    contestants = module("gpu_contestants")
    size = contestants.Size(512, 4, 8)
    guest(name, size)

    def found(compiled: str) -> tuple[Tensor, bool]:
        one = contestants.contestant(name, contestants.Setting(size, 256, 2, compiled, torch.device("cuda")))
        for _ in range(4):
            one.gradients.clear()
            one.gradients(one.learn, one.tokens)
        flat = [parameter.grad.flatten() for parameter in one.model.parameters()]
        return torch.cat(flat), bool(one.gradients.recordings)

    (replayed, recorded), (called, _) = found("blocks"), found("nothing")
    assert recorded
    assert (replayed - called).norm() < 1e-2 * called.norm()


@needs_gpu
@pytest.mark.parametrize("name", GUESTS)
@torch.inference_mode()
def test_guests_write_on_as_they_read(name: str) -> None:
    torch.manual_seed(0)
    model = guest(name, module("gpu_contestants").Size(512, 4, 8)).to("cuda", torch.bfloat16).eval()
    tokens = torch.randint(256, (2, 100), device="cuda")
    _, state = module("gpu_decoding").read(model, [tokens[:, :96]], 0)
    decoder = module("guests").OutsidersDecoder(model, state)
    written = torch.stack([decoder.step(tokens[:, place : place + 1]) for place in range(96, 100)], dim=1).float()
    whole = model(tokens)[:, 96:].float()
    assert (written - whole).norm() < 3e-2 * whole.norm()


def test_the_peer_writes_what_its_own_sample_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its cache, and the likeliest token each time."""
    monkeypatch.delitem(sys.modules, "titans_pytorch")
    pytest.importorskip("titans_pytorch", reason="titans-pytorch is not installed")
    model = module("peer_writing").WritingPeer().eval()
    prompt = torch.randint(256, (1, 40), generator=torch.Generator().manual_seed(0))
    settings = {"filter_fn": lambda logits: logits, "filter_kwargs": {}, "temperature": 1e-10}
    wanted = model.model.sample(prompt, 52, show_progress=False, use_cache=True, **settings)
    logits, state = model.step(prompt, model.initial_state(1, capacity=52))
    decoder, written = module("guests").OutsidersDecoder(model, state), [logits[:, -1:].argmax(dim=-1)]
    while len(written) < 12:
        written.append(decoder.step(written[-1]).argmax(dim=-1, keepdim=True))
    assert torch.equal(torch.cat(written, dim=1), wanted)
