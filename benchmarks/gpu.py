"""What the memory architectures cost beside a Transformer++ of the same size, on one GPU; prints JSON lines.

    python benchmarks/gpu.py training
    python benchmarks/gpu.py training --contestants transformer++,titans-lmm --lengths 4096,16384 --rounds 3
    python benchmarks/gpu.py training --profile titans-lmm --lengths 4096
    python benchmarks/gpu.py decoding --contestants transformer++,titans-lmm --lengths 1024,65536
    python benchmarks/gpu.py decoding --profile titans-lmm --lengths 1024
    python benchmarks/gpu.py training --device cpu --no-compile --size 32/1/2 --tokens 256 --lengths 128 \
        --rounds 1 --contestants transformer++,titans-lmm

training  tokens per second and peak memory of forward, loss, backward and AdamW, and the share that the FLOPs which
          `cost` counts have of a large bfloat16 product's, measured in the same run. Masked scores count as FLOPs, so
          that attention over a long sequence looks up to twice as busy as it is
decoding  a context is read, and the likeliest tokens are written after it, each step a replayed CUDA graph:
          milliseconds a token, tokens per second of reading, bytes of a sequence's state

Models of equal non-embedding parameters (the width of the SwiGLU gives way, or the depth where there is none),
torch.compile; training under bfloat16 autocast, decoding with weights in bfloat16. First everybody is warmed up; then
contestants take turns inside a round, and a ratio is the median of the rounds' own ratios. Other packages' contestants
are warmed up and take turns when all others have been measured, so that a ratio with one of them is of rounds minutes
apart: their kernels may be tried out for minutes, and where titans-pytorch, which gets 4096 tokens a step at most,
reads beyond its tensors the device is lost to the program. Cut off, by Ctrl-C or by a limit of time, the program prints
what was measured.
A contestant that fails gets a line that says why, and where all of them fail the program does. Progress and a table go
to stderr. The last of the commands above needs no GPU, and measures nothing worth knowing: it tries the program out.

A plain Transformer, titans-pytorch, and the layers that flash-linear-attention and mamba-ssm have for two of the
rivals, where these are installed, come to sequences of 4096 tokens, and wherever they are named; their lines say
their version and their size. The latter two, the guests, run as their packages have them, not compiled, and train from
a recording as everybody does; as writers they start kernel by kernel, and so does titans-pytorch, in float32 and with
its own cache. Contexts are read as they come, nothing compiled.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import platform
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import gpu_decoding
import gpu_training
import torch
from device import found, measured_peaks, release
from gpu_contestants import (
    BASELINE,
    CHUNK,
    EXPANSION,
    LONGEST,
    NAMES,
    OTHERS,
    SEGMENT,
    VOCABULARY,
    Size,
    specification,
)
from gpu_training import (
    ALONE,
    CASES,
    GUESTS_AT,
    LONG,
    MORE_TOKENS,
    TOKENS,
    TOP_KERNELS,
    Case,
    invited,
    measure,
    show_kernels,
    table,
)
from rehearsal import nothing_found_before, nothing_found_inside, rehearse
from side_by_side import emit, say

from lockstep.config.spec import nearest
from lockstep.errors import UserError

T = TypeVar("T")

CUTS = (signal.SIGINT, signal.SIGTERM)
BARS = 'The column "bars" says what a contestant is to reach beside another, where both ran and a limit is set:'


def main(words: Sequence[str] | None = None) -> int:
    """The exit status: 1 where every contestant failed."""
    asked = parsed(words)
    if not found(asked.device):
        say(f"gpu.py needs a GPU, and torch finds no device {asked.device} here; --device cpu tries the program out")
        return 2
    # A forward that contestants share is compiled once for each; beyond a few, torch would leave it as it is.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1024
    say("measuring a large product and a large copy")
    peaks = measured_peaks(asked.device)
    introduce(asked, peaks)
    lines = asked.measurement(asked, peaks["bf16_matmul_tflops"])
    return int(all("error" in line for line in lines))


def train(asked: argparse.Namespace, tflops: float) -> list[dict[str, Any]]:
    """The table of training, or the kernels of one contestant."""
    lines = []
    if asked.profile is None:
        with nothing_found_inside():
            rehearse(gpu_training.rehearsed, parts(asked, asked.cases, gpu_training.invited), asked)
    for case in asked.cases:
        if asked.profile is not None:
            lines.append(show_kernels(asked.profile, case, asked))
        else:
            lines += measure(case, asked, tflops)
        torch._dynamo.reset()
        release(asked.device)
    if asked.profile is None:
        say("\n".join(table(lines)))
    return lines


def decode(asked: argparse.Namespace, _: float) -> list[dict[str, Any]]:
    """The table of decoding, or the kernels of one contestant."""
    cases = gpu_decoding.cases(asked.lengths, asked.several)
    if asked.profile is None:
        rehearse(gpu_decoding.rehearsed, parts(asked, cases, gpu_decoding.invited), asked)
    with nothing_found_before():
        return decoded(asked, cases)


def parts(asked: argparse.Namespace, cases: Sequence[T], invited: Callable[[T], Sequence[str]]) -> list[tuple[str, T]]:
    """Who is measured, case by case."""
    return [(name, case) for case in cases for name in asked.contestants or invited(case)]


def decoded(asked: argparse.Namespace, cases: Sequence[gpu_decoding.Case]) -> list[dict[str, Any]]:
    """Case by case."""
    if asked.profile is not None:
        return [gpu_decoding.show_kernels(asked.profile, case, asked) for case in cases]
    lines: list[dict[str, Any]] = []
    for case in cases:
        shortest = [line for line in lines if line["length"] == 1024 and line["batch"] == 1 and "error" not in line]
        before = {line["contestant"]: line["milliseconds_per_token"] / 1e3 for line in shortest}
        # What was compiled stays: states that do not grow have the same shapes at every length.
        lines += gpu_decoding.measure(case, asked, before)
        release(asked.device)
    say("\n".join(gpu_decoding.table(lines)))
    return lines


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with what was asked."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        description=f"{(__doc__ or '').partition(';')[0]}. Without one, --device cpu tries the program out.",
        epilog="Each has its own options, and says who competes: gpu.py training --help",
    )
    measurements = parser.add_subparsers(title="measurements", required=True, metavar="MEASUREMENT")
    add_training(measurements)
    add_decoding(measurements)
    asked = parser.parse_args(words)
    if asked.measurement is train:
        asked.cases = [Case(length) for length in asked.lengths or ()] + [ALONE] * asked.batch1 or list(CASES)
    return asked


def add_training(measurements: Any) -> None:
    training = added(
        measurements,
        "training",
        "tokens per second and peak memory of whole steps of training",
        *who_competes(NAMES, invited(ALONE)),
        f'{BARS} "speed 0.87 of titans-lmm >= 0.85 met" is 0.87 times as many tokens per second as titans-lmm, and at '
        'least 0.85 are wanted; of "memory", the peak, a limit is the most that is wanted.',
    )
    training.set_defaults(measurement=train)
    usual = ",".join(str(case.length) for case in CASES if not case.alone)
    add_shared(training, NAMES, f"of a sequence (default: {usual}, and what --batch1 adds)")
    training.add_argument("--batch1", action="store_true", help=f"one sequence of {LONGEST} tokens, after --lengths")
    tokens = f"{TOKENS}, and {MORE_TOKENS} from a length of {LONG} on"
    training.add_argument(
        "--tokens", type=number, help=f"of a step, in whole sequences, one at least (default: {tokens})"
    )
    training.add_argument("--steps", type=number, default=5, help="of a turn; fewer where slow (default: %(default)s)")
    training.add_argument(
        "--compile-model", dest="compiled", action="store_const", const="model", help="as one graph, not block by block"
    )


def add_decoding(measurements: Any) -> None:
    decoding = added(
        measurements,
        "decoding",
        "milliseconds a token after a context, tokens per second of reading it, bytes of a state",
        *who_competes(gpu_decoding.NAMES, gpu_decoding.invited(gpu_decoding.Case(LONGEST))),
        f"To contexts beyond {LONGEST} {BASELINE} comes only where named.",
        f'{BARS} "time 1.2 of {BASELINE} <= 1.3 met" is 1.2 times the milliseconds of a token that {BASELINE} takes, '
        "and at most 1.3 are wanted.",
    )
    decoding.set_defaults(measurement=decode)
    lengths = (*gpu_decoding.LENGTHS, gpu_decoding.FAR, GUESTS_AT)
    usual, batch = ",".join(map(str, lengths)), f"a batch of {gpu_decoding.SEVERAL}"
    add_shared(decoding, gpu_decoding.NAMES, f"of a context (default: {usual}, and {batch} at 1024)")
    decoding.add_argument("--several", action="store_true", help=f"after --lengths {batch}, at the first or at 1024")


def added(measurements: Any, name: str, summary: str, *paragraphs: str) -> argparse.ArgumentParser:
    """The paragraphs stand at the end of its help; names in them keep their hyphens."""
    epilog = "\n".join(textwrap.fill(paragraph, 100, break_on_hyphens=False) for paragraph in paragraphs)
    parser: argparse.ArgumentParser = measurements.add_parser(
        name, help=summary, description=summary, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return parser


def add_shared(parser: argparse.ArgumentParser, known: Sequence[str], lengths: str) -> None:
    """The options that every measurement has."""
    add = parser.add_argument
    add("--contestants", type=each_once(one_of(known)), metavar="NAME,...", help="only these (default: see below)")
    add("--lengths", type=each_once(number), metavar="NUMBER,...", help=lengths)
    add("--profile", type=one_of(known), metavar="NAME", help="only its kernels, by time")
    add("--top", type=number, default=TOP_KERNELS, help="kernels that a profile lists (default: %(default)s)")
    add("--rounds", type=number, default=5, help="turns that each contestant takes (default: %(default)s)")
    beforehand = "that compile side by side before anybody is measured (default: none do)"
    add("--processes", type=number, default=1, help=beforehand)
    full = "/".join(map(str, Size()))
    add("--size", type=size, default=full, help="dim/depth/heads, for a trial (default: %(default)s)")
    add("--device", type=device, default="cuda", help="cuda, cuda:1, or cpu for a trial (default: %(default)s)")
    add(
        "--no-compile",
        dest="compiled",
        action="store_const",
        const="nothing",
        default="blocks",
        help="no torch.compile, and nothing recorded (default: block by block)",
    )
    parser.set_defaults(one_of_each=False)


def who_competes(names: Sequence[str], usual: Sequence[str]) -> tuple[str, str, str]:
    guests = (name for name in names if name not in (*usual, *OTHERS))
    return (
        f"Contestants by default: {', '.join(usual)}.",
        f"At a length of {GUESTS_AT} also, and elsewhere only where named: {', '.join(guests)}.",
        f"Only where named: {', '.join(OTHERS)}.",
    )


def number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def one_of(known: Sequence[str]) -> Callable[[str], str]:
    def name(text: str) -> str:
        if text in known:
            return text
        why = f"{text} only trains" if text in NAMES else f"unknown contestant {text}{nearest(text, known)}"
        raise argparse.ArgumentTypeError(why)

    return name


def listed(one: Callable[[str], T], between: str = ",") -> Callable[[str], tuple[T, ...]]:
    def all_of(text: str) -> tuple[T, ...]:
        parts = [part.strip() for part in text.split(between)]
        if "" in parts:
            raise argparse.ArgumentTypeError(f"{text!r} has nothing before or after a {between!r}")
        return tuple(map(one, parts))

    return all_of


def each_once(one: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Listed: what stood there twice would be measured twice, and shown once."""

    def all_of(text: str) -> tuple[T, ...]:
        found = listed(one)(text)
        if len(set(found)) < len(found):
            raise argparse.ArgumentTypeError(f"{text!r} names one twice")
        return found

    return all_of


def size(text: str) -> Size:
    parts = listed(number, "/")(text)
    if len(parts) != len(Size._fields):
        raise argparse.ArgumentTypeError(f"{text!r} is not dim/depth/heads, such as 512/16/8")
    try:
        specification(BASELINE, Size(*parts))
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Size(*parts)


def device(text: str) -> torch.device:
    if not re.fullmatch(r"cpu|cuda(:\d)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither cuda, nor one of several such as cuda:1, nor cpu")
    return torch.device(text)


def introduce(asked: argparse.Namespace, peaks: Mapping[str, float]) -> None:
    on_gpu = asked.device.type == "cuda"
    triton = importlib.util.find_spec("triton") and importlib.import_module("triton").__version__
    shape = {"vocabulary": VOCABULARY, "chunk": CHUNK, "memory_expansion": EXPANSION, "segment": SEGMENT}
    emit(
        {
            "benchmark": "gpu",
            "machine": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton,
            "device": torch.cuda.get_device_name(asked.device) if on_gpu else "cpu",
            **peaks,
            "shape": {**asked.size._asdict(), **shape},
            "compiled": asked.compiled,
            "rounds": asked.rounds,
        }
    )


def cut_off(number: int, _: object) -> NoReturn:
    """Who is cut off, by a limit of time too, still tells what was measured, and no more.

    Undisturbed: `timeout` sends its signal to the program, and once more to all that it has started.
    """
    for one in CUTS:
        signal.signal(one, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    for cut in CUTS:
        signal.signal(cut, cut_off)
    sys.exit(main())
