"""The command line: verbs only. Whatever is heavy is imported inside the verb that needs it."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.errors import UserError

if TYPE_CHECKING:
    from lockstep.report.results import Measurements, Results

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="A run's YAML file.")]
ConfigOrRun = Annotated[Path, typer.Argument(metavar="CONFIG", help="A run's YAML file, or its run folder.")]
Study = Annotated[Path, typer.Argument(metavar="STUDY", help="A study's YAML file.")]
StudyFolder = Annotated[Path | None, typer.Option("--output-dir", help="output/<study_name> by default.")]
Overrides = Annotated[
    list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="Such as training.learning_rate=3e-4.")
]


def show_version(asked: bool) -> None:
    """Answer `--version` before anything else is looked at."""
    if asked:
        from importlib.metadata import version

        typer.echo(f"lockstep {version('lockstep-lm')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train sequence-model architectures side by side, on the same tokens in the same order."""


@app.command()
def compare(
    study: Annotated[
        Path | None, typer.Argument(metavar="[STUDY]", help="A study's YAML file; the quick study by default.")
    ] = None,
    contestants: Annotated[str | None, typer.Option(help="Architectures, such as transformer++,titans-mac.")] = None,
    scale: Annotated[str | None, typer.Option(help="tiny, small, medium or large: sizes are solved for.")] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Width; sizes given by hand are not matched.")] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Layers.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Heads.")] = None,
    dim_head: Annotated[int | None, typer.Option(min=1, help="Width of a head, instead of --heads.")] = None,
    segment_len: Annotated[int | None, typer.Option(min=1, help="Titans: segment, and window of attention.")] = None,
    use_memory: Annotated[bool | None, typer.Option("--use-memory/--no-memory", help="Titans: its memory.")] = None,
    use_flex_attn: Annotated[bool | None, typer.Option("--use-flex-attn", help="Titans: flex_attention.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A corpus; wikitext means WikiText-103.")] = None,
    wikitext_version: Annotated[str | None, typer.Option(help="2 or 103.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="A type, or a tokenizer.json.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where corpora are looked for first.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Sequences per step.")] = None,
    eval_batch_size: Annotated[int | None, typer.Option(min=1, help="Sequences scored at once.")] = None,
    seq_len: Annotated[int | None, typer.Option(min=1, help="Tokens per sequence.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", "--num-batches", min=1, help="Optimizer steps.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of all contestants.")] = None,
    warmup_steps: Annotated[int | None, typer.Option(min=0, help="Steps of warm-up.")] = None,
    log_interval: Annotated[int | None, typer.Option(min=1, help="Steps between lines of the log.")] = None,
    eval_interval: Annotated[int | None, typer.Option(min=1, help="Steps between evaluations.")] = None,
    eval_steps: Annotated[int | None, typer.Option(min=1, help="Batches of each evaluation.")] = None,
    save_interval: Annotated[int | None, typer.Option(min=1, help="Steps between checkpoints to resume from.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repeats; an interval over seeds needs two.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    output_dir: StudyFolder = None,
    override: Overrides = None,
) -> None:
    """Plan, train, evaluate and report; started again, it goes on where it stopped."""
    given = locals()
    from dataclasses import fields

    from lockstep.study.compare import compare as compare_study
    from lockstep.study.flags import Flags, study_from

    flags = Flags(**{item.name: given[item.name] for item in fields(Flags)})
    if data_dir is not None:
        searched = (str(data_dir.expanduser()), os.environ.get("LOCKSTEP_DATA", ""))
        os.environ["LOCKSTEP_DATA"] = os.pathsep.join(one for one in searched if one)
    spec = study_from(study, flags, override or ())
    folder = output_dir or spec.folder
    _say_verdict(compare_study(spec, folder, _tell), folder)


@app.command()
def tune(study: Study, output_dir: StudyFolder = None, override: Overrides = None) -> None:
    """Tune every contestant of a study with as many trials, and keep the whole sweep."""
    from lockstep.config.files import load_study
    from lockstep.study.compare import tune_study
    from lockstep.study.tune import sweep_table

    spec = load_study(study, override or ())
    folder = output_dir or spec.folder
    typer.echo(sweep_table(tune_study(spec, folder, _tell)))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A study's folder, finished or not.")],
) -> None:
    """Write a study's report from its results: report.html, figures, tables, summary.md; also while it runs."""
    from lockstep.study.compare import report as report_study

    _say_verdict(report_study(folder), folder)


@app.command()
def train(
    config: Config,
    output_dir: Annotated[
        Path | None, typer.Option(help="The run folder; output/<experiment_name> by default.")
    ] = None,
    override: Overrides = None,
) -> None:
    """Train one run; started again, it goes on from its newest sound checkpoint."""
    from lockstep.config.files import load_run
    from lockstep.training.run import train as train_run
    from lockstep.training.summary import summary

    run = load_run(config, override or ())
    folder = output_dir or run.folder
    context = train_run(run, folder)
    if context.world.is_main:
        typer.echo(summary(folder))


@app.command()
def evaluate(
    config: ConfigOrRun,
    checkpoint: Annotated[
        str | None, typer.Option(help="Such as checkpoint-5000, or its step; the newest sound one by default.")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Where results go; <run folder>/evaluations by default.")
    ] = None,
    split: Annotated[list[str] | None, typer.Option(help="valid or test; both by default.")] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Also probe and ablate the model's memory.")] = False,
    task: Annotated[
        list[str] | None, typer.Option(help="Test by this instead: recall, or 'needles: {lengths: [1024, 4096]}'.")
    ] = None,
    override: Overrides = None,
) -> None:
    """Score a checkpoint on held-out text: loss, perplexity, bits per byte, accuracy; or test it by tasks."""
    from lockstep.evaluation.memory import memory_table
    from lockstep.study.evaluate import evaluate_run, score_table

    folder = run_folder(config, override)
    if task:
        from lockstep.study.run_tests import asked_for, run_tests, tests_table

        typer.echo(tests_table(run_tests(folder, checkpoint, asked_for(task), output_dir, override or ())))
        if split is None and not memory:
            return
    results = evaluate_run(folder, checkpoint, tuple(split or ("valid", "test")), output_dir, override or (), memory)
    typer.echo(score_table(results))
    if memory:
        typer.echo(memory_table(results))


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Architectures, run folders or study folders; transformer++ and titans-mac."
        ),
    ] = None,
    lengths: Annotated[str, typer.Option(help="Tokens of a sequence.")] = "128,256,512,1024",
    batch_sizes: Annotated[str, typer.Option(help="Sequences read or trained on at once.")] = "1,10",
    decoded: Annotated[int, typer.Option(min=1, help="Tokens written after each context.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each is measured, after a warm-up.")] = 5,
    streamed: Annotated[str | None, typer.Option(help="Lengths of a stream, such as 65536,1048576.")] = None,
    dim: Annotated[int, typer.Option(min=1, help="Width of untrained models.")] = 128,
    depth: Annotated[int, typer.Option(min=1, help="Their layers.")] = 2,
    heads: Annotated[int, typer.Option(min=1, help="Their heads.")] = 4,
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    output_dir: Annotated[Path, typer.Option(help="Where numbers and picture go.")] = Path("output", "bench"),
) -> None:
    """Time and memory of reading, writing and training over lengths and batch sizes; perplexity of trained models."""
    from lockstep.study.bench import bench as bench_models
    from lockstep.study.bench import numbers
    from lockstep.study.bench import precision as precision_of
    from lockstep.study.bench_cells import BenchSettings
    from lockstep.study.bench_tables import bench_tables

    settings = BenchSettings(
        numbers(lengths, "--lengths", 2),
        numbers(batch_sizes, "--batch-sizes", 1),
        decoded,
        rounds,
        () if streamed is None else numbers(streamed, "--streamed", 1),
        precision_of(precision),
    )
    sizes = {"dim": dim, "depth": depth, "heads": heads}
    cells, written = bench_models(names or (), settings, sizes, device, output_dir)
    typer.echo(bench_tables(cells))
    if all(cell.value is None for cell in cells if cell.quantity == "perplexity"):
        typer.echo("\nNothing here is scored, so that the picture has no panel for perplexity.")
    typer.echo("\n" + "\n".join(map(str, written)))


@app.command()
def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or one of its checkpoints.")],
    prompt: Annotated[str, typer.Option(help="The text to continue.")],
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to write.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0 always takes the likeliest token.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from the k likeliest tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="Draw from the likeliest mass p only.")] = None,
    min_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Drop tokens under this share of the likeliest.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="The same seed writes the same text.")] = None,
) -> None:
    """Continue a text with the cached step."""
    from lockstep.models.sampling import Sampling
    from lockstep.study.generate import continue_from

    for name, value in (("--temperature", temperature), ("--top-p", top_p), ("--min-p", min_p)):
        if value is not None and not math.isfinite(value):
            raise UserError(f"{name} {value}: expected a finite number")
    # Bytes of the command line that are no UTF-8 are shown as U+FFFD.
    prompt = os.fsencode(prompt).decode("utf-8", "replace")
    typer.echo(prompt + continue_from(run, prompt, tokens, Sampling(temperature, top_k, top_p, min_p, seed)))


@app.command()
def schedule(
    words: Annotated[list[str], typer.Argument(metavar="CONFIG | sync SOURCE CONFIG...")],
    first_epoch: Annotated[int | None, typer.Option(min=1, help="Checkpoints in the first epoch.")] = None,
    spacing: Annotated[str | None, typer.Option(help="log or linear, in later epochs.")] = None,
    min_per_epoch: Annotated[int | None, typer.Option(min=1, help="At least so many in each later epoch.")] = None,
    override: Overrides = None,
) -> None:
    """Write a checkpoint schedule into CONFIG, or copy SOURCE's into other files; comments stay."""
    from lockstep.study.schedule import generate_schedule, sync_schedules

    if words[0] == "sync":
        if len(words) < 3:
            raise UserError("schedule sync: name the file to copy from and at least one to copy to")
        source, *targets = map(Path, words[1:])
        steps, written, notes = sync_schedules(source, targets)
        typer.echo(f"copied {len(steps)} steps from {source} to {len(written)} other files")
        for note in notes:
            typer.echo(f"note: {note}")
        return
    if len(words) > 1:
        raise UserError(f"schedule: one CONFIG at a time, not {len(words)}; `schedule sync` copies to many")
    options = {"first_epoch_checkpoints": first_epoch, "subsequent_epochs_spacing": spacing}
    options["min_checkpoints_per_epoch"] = min_per_epoch
    changes = [f"training.{key}={value}" for key, value in options.items() if value is not None]
    steps = generate_schedule(Path(words[0]), [*(override or ()), *changes])
    typer.echo(f"{words[0]}: {len(steps)} checkpoints from step {steps[0]} to step {steps[-1]}")


@app.command()
def audit(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN... | STUDY_DIR", help="Run folders, or a folder of them.")],
    step: Annotated[int | None, typer.Option(min=1, help="Compare here; the newest common step by default.")] = None,
    varies: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A difference that is intended, such as tokenizer.")
    ] = None,
) -> None:
    """Equal tokens, equal stream, equal everything that is not declared to differ; exit status 1 otherwise."""
    from lockstep.study.audit import audit as audit_runs
    from lockstep.study.audit_tables import pivot_table, token_table

    if len(runs) == 1 and (runs[0] / "study.yaml").is_file():
        if step is not None or varies:
            raise UserError(f"{runs[0]}: a study declares what varies, and is audited at its end; leave out the option")
        _audit_study(runs[0])
        return
    result = audit_runs(runs, step, varies or ())
    typer.echo(token_table(result))
    typer.echo(f"\n{pivot_table(result)}\n")
    fair = "audit passed" if len(result.runs) > 1 else "audit passed: one run, sound in itself"
    _say_audit(result.notes, [finding.message for finding in result.findings], fair)


@app.command()
def plan(study: Study, override: Overrides = None) -> None:
    """The matched sizes of a study, their FLOPs and states, and an estimate of time and memory."""
    from lockstep.config.files import load_study
    from lockstep.study.plan import plan_study, plan_table

    typer.echo(plan_table(plan_study(load_study(study, override or ()))))


@app.command()
def check(
    architecture: Annotated[str, typer.Argument(help="A registered name, or file.py:name for your own.")],
) -> None:
    """Run the laws that every architecture must obey; exit status 1 if one is broken."""
    from lockstep.laws import check as check_laws

    broken = 0
    for verdict in check_laws(architecture):
        line = f"{verdict.outcome:14s} {verdict.law.name:22s} {verdict.subject.label}"
        typer.echo(f"{line}: {verdict.message}" if verdict.message else line)
        broken += not verdict.passed
    typer.echo(f"{architecture} breaks the laws in {broken} cases" if broken else f"{architecture} obeys the laws")
    if broken:
        raise typer.Exit(1)


@app.command()
def prepare(
    corpus: Annotated[str, typer.Argument(help="A corpus name, a text file or folder, or hub:OWNER/NAME.")],
    tokenizer: Annotated[str, typer.Option(help="Its type, as `lockstep list` names them.")] = "bytes",
    vocab_size: Annotated[int | None, typer.Option(min=1, help="For a tokenizer that is trained.")] = None,
    tokenizer_path: Annotated[Path | None, typer.Option(help="For types gpt2 and file: where it lies.")] = None,
) -> None:
    """Find or fetch a corpus, verify it, and tokenize it into memory-mapped files."""
    from lockstep.config.data import DataSpec
    from lockstep.config.spec import validate
    from lockstep.config.tokenizer import TokenizerSpec
    from lockstep.data.prepare import prepare as prepare_corpus

    asked = {"tokenizer_type": tokenizer, "vocab_size": vocab_size}
    asked["path"] = None if tokenizer_path is None else str(tokenizer_path)
    spec = validate(TokenizerSpec, asked, "--tokenizer")
    data = validate(DataSpec, {"training_corpus": corpus}, "CORPUS")
    prepared = prepare_corpus(data, spec, verify=True)
    typer.echo(f"{prepared.folder}")
    for split, facts in prepared.manifest.splits.items():
        sizes = f"{facts.tokens:>13,} tokens  {facts.documents:>8,} documents  {facts.bytes:>13,} bytes"
        typer.echo(f"  {split:5s} {sizes}")
    typer.echo(f"  vocabulary {prepared.tokenizer.vocab_size:,}, corpus {prepared.corpus_digest[:12]}")


@app.command("list")
def list_() -> None:
    """What there is: architectures, corpora, tasks, tokenizers, scales."""
    from typing import get_args

    from lockstep.config.evaluate import EvaluateSpec
    from lockstep.config.match import SCALES
    from lockstep.config.tokenizer import TokenizerType
    from lockstep.data.corpora import CORPORA
    from lockstep.models.registry import architectures, find
    from lockstep.tables import in_short

    typer.echo("architectures")
    for name in architectures():
        typer.echo(f"  {name:17s} {(find(name).__doc__ or '').strip().partition(chr(10))[0]}")
    typer.echo("corpora")
    for name, corpus in CORPORA.items():
        typer.echo(f"  {name:17s} {corpus.description}")
    typer.echo("tasks")
    for name, field in EvaluateSpec.model_fields.items():
        typer.echo(f"  {name:17s} {field.description}")
    typer.echo(f"tokenizers\n  {', '.join(get_args(TokenizerType))}")
    typer.echo("scales")
    for name, scale in SCALES.items():
        typer.echo(f"  {name:17s} {in_short(scale.target)} {scale.quantity}")


@app.command()
def doctor() -> None:
    """What this machine has: versions, devices, backends usable and why not, data found."""
    from lockstep.study.doctor import report

    typer.echo(report())


def _say_verdict(found: tuple[Results, Measurements], folder: Path) -> None:
    """In plain sentences, and where the page lies; exit status 1 where the audit leaves no verdict."""
    from lockstep.report.findings import verdict

    results, measured = found
    typer.echo("\n".join(sentence.text for sentence in verdict(results, measured).sentences))
    typer.echo(f"\n{folder / 'report.html'}")
    if results.audit is not None and not results.audit.passed:
        raise typer.Exit(1)


def _audit_study(folder: Path) -> None:
    """Repeat by repeat, against what the study itself states."""
    from lockstep.study.audit_tables import token_table
    from lockstep.study.place import StudyPlace, seed_of
    from lockstep.study.study_audit import audit_study

    place = StudyPlace(folder)
    result = audit_study(place, place.read())
    for repeat in result.repeats:
        typer.echo(f"repeat with data seed {seed_of(repeat.runs[0].folder)}")
        typer.echo(token_table(repeat))
    if not result.repeats:
        raise UserError(f"{folder}: no run is finished yet; nothing to audit")
    fair = f"audit passed: {len(result.runs)} runs, repeats: {len(result.repeats)}"
    _say_audit(result.notes, result.findings, fair)


def _say_audit(notes: Sequence[str], findings: Sequence[str], passed: str) -> None:
    """What was found, and exit status 1 where that is anything."""
    for note in notes:
        typer.echo(f"note: {note}")
    for finding in findings:
        typer.echo(f"finding: {finding}")
    if findings:
        typer.echo(f"audit failed, findings: {len(findings)}")
        raise typer.Exit(1)
    typer.echo(passed)


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def run_folder(config: Path, override: list[str] | None) -> Path:
    """The run folder that a YAML file or the folder itself stands for."""
    from lockstep.config.files import load_run

    if config.is_dir():
        return config
    return load_run(config, override or ()).folder


def main() -> None:
    """Run a verb; bad input is one line on standard error and exit status 2."""
    warnings.showwarning = _one_line_warning
    try:
        code = app(args=sys.argv[1:] or ["--help"], prog_name="lockstep", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except UserError as error:
        code = _fail(str(error))
    except BrokenPipeError:
        # The reader went away, as `| head` does; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        code = _fail(*_expected(error))
    _leave(code or 0)


def _leave(code: int) -> None:
    """End the process; one of several at once, because torch's communication threads may outlive the interpreter, which
    then aborts although all is done."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _expected(error: Exception) -> tuple[str, int]:
    """Message and status of a run that stopped early or of a wrong option; anything else is a bug and goes on."""
    if hasattr(error, "status"):
        return str(error), error.status
    if hasattr(error, "format_message"):
        # typer's own usage errors, whose class differs between its versions.
        context = getattr(error, "ctx", None)
        message = " ".join(error.format_message().split()).rstrip(".")
        remedy = f"see `{context.command_path} --help`" if context else ""
        return f"{message}{' ' if message.endswith('?') else '; '}{remedy}" if remedy else message, 2
    if isinstance(error, OSError) and error.filename is not None:
        # A folder that is a file, a name that is too long, a permission that is missing.
        return f"{error.filename}: {error.strerror}", 2
    raise error


def _fail(message: str, status: int = 2) -> int:
    from lockstep.config.spec import one_line

    sys.stderr.write(f"lockstep: {one_line(message)}\n")
    return status


def _one_line_warning(message: Warning | str, *_: object, **__: object) -> None:
    sys.stderr.write(f"lockstep: warning: {' '.join(str(message).splitlines())}\n")


if __name__ == "__main__":
    main()
