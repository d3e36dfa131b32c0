"""The documentation is true: its commands run, its links lead somewhere, its tables are complete."""

from __future__ import annotations

import glob
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic.fields import FieldInfo

from lockstep import cli
from lockstep.config.measurements import MeasurementsSpec
from lockstep.config.run import RunSpec
from lockstep.config.seeds import SeedsSpec
from lockstep.config.spec import Spec
from lockstep.config.study import StudySpec
from lockstep.config.tuning import TuningSpec
from lockstep.laws import LAWS, check
from lockstep.models import registry
from lockstep.models.registry import architectures, find

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE = ROOT / "docs" / "examples" / "ema.py"

SMALL_DATA = ("data.batch_size=2", "data.max_sequence_length=32")
SMALL_MODEL = ("model.dim=16", "model.depth=1", "model.heads=2")
SMALL_RUN = (*SMALL_DATA, *SMALL_MODEL, "data.training_corpus=text.txt", "evaluation.sample_tokens=8")
SMALL_STUDY = (
    *SMALL_DATA,
    "data.training_corpus=text.txt",
    "seeds=1",
    "training.train_steps=8",
    "training.cooled_at=[0.5]",
    "evaluation.sequences=4",
    "measurements={sequences: 2, lengths: [16], contexts: [8], decoded: 2, rounds: 1}",
)
SMALLER: dict[str, tuple[str, ...]] = {
    "train": SMALL_RUN,
    # The pages' corpus of ten million tokens is a small text here, and gives few tokens.
    "schedule": (*SMALL_DATA, "tokenizer.vocab_size=400"),
    "compare": SMALL_STUDY,
    "tune": SMALL_STUDY,
}
"""Overrides that make a documented command short; every other verb runs exactly as it is written."""

RUNS = {
    "quick-transformer++": (),
    "short": (),
    "quick-lstm": ("model.architecture=lstm",),
    "quick-slow": ("model.architecture=lstm", "training.learning_rate=1e-3"),
    "quick-bert": ("model.architecture=bert",),
    "quick-titans-mac": ("model.architecture=titans-mac", "model.chunk=8", "model.segment=16"),
}
"""Runs that a page finds in place if it trains none itself."""

FORBIDDEN = ("/tmp/", "TODO", "FIXME")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """One line of a bash block."""

    words: tuple[str, ...]
    status: int
    """What it must exit with."""

    @property
    def verb(self) -> str:
        """The verb of a lockstep command, also behind torchrun."""
        place = self.words.index("lockstep.cli") if "lockstep.cli" in self.words else 0
        return self.words[place + 1]

    @property
    def made_smaller(self) -> list[str]:
        """Its words, with overrides that shorten it."""
        overrides = () if "sync" in self.words else SMALLER.get(self.verb, ())
        return [*self.words, *(word for override in overrides for word in ("-o", override))]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(fence[1], fence[2]) for fence in fences]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def commands(block: Block) -> Iterator[Command]:
    for line in block.text.replace("\\\n", " ").splitlines():
        noted = re.search(r"# exit status (\d+)$", line)
        words = shlex.split(line, comments=True)
        if words:
            yield Command(tuple(expanded(words)), int(noted[1]) if noted else 0)


def expanded(words: Sequence[str]) -> Iterator[str]:
    """Wildcards as a shell in the checkout would read them."""
    for word in words:
        yield from sorted(glob.glob(word, root_dir=ROOT)) or [word] if "*" in word else [word]


def all_commands(page: Path) -> list[Command]:
    return [command for block in blocks(page) if block.language == "bash" for command in commands(block)]


# How each kind of command is tried. What a test must not do (install, or run the tests) is checked for its form.


def run_verb(command: Command) -> tuple[int, str]:
    """Run a verb in this process: status, and whatever it wrote."""
    return run_in_process(command.made_smaller[1:])


def run_in_process(words: Sequence[str]) -> tuple[int, str]:
    written = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        patch.setattr(sys, "argv", ["lockstep", *words])
        forget_outsiders(patch)
        with redirect_stdout(written), redirect_stderr(written), pytest.raises(SystemExit) as ended:
            cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, written.getvalue()


def forget_outsiders(patch: pytest.MonkeyPatch) -> None:
    """Know the architectures that a fresh process knows."""
    patch.setattr(registry, "_SPECS", {one: find(one) for one in own_architectures()})
    for module in [module for module in sys.modules if module.startswith("lockstep_outsider_")]:
        patch.delitem(sys.modules, module)


def own_architectures() -> list[str]:
    return [one for one in architectures() if find(one).__module__.startswith("lockstep.")]


def run_torchrun(command: Command) -> tuple[int, str]:
    """With processes of its own, and a port that nobody else has."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", *command.made_smaller[1:]]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def check_target(command: Command) -> tuple[int, str]:
    """`make test` in a test would never end: make only says what it would do."""
    target = command.words[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"the Makefile has no {target}"
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def check_installation(command: Command) -> tuple[int, str]:
    """Installing needs a network: only the line that the checkout supports is accepted."""
    return int(command.words != ("pip", "install", "-e", ".")), f"unknown form: {shlex.join(command.words)}"


def check_activation(command: Command) -> tuple[int, str]:
    """The environment that `make` sets up lies there; activating it in a child process would change nothing."""
    return int(command.words != ("source", ".venv/bin/activate")), f"unknown form: {shlex.join(command.words)}"


HOW: dict[str, Callable[[Command], tuple[int, str]]] = {
    "lockstep": run_verb,
    "torchrun": run_torchrun,
    "make": check_target,
    "pip": check_installation,
    "source": check_activation,
}


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Path) -> Path:
    """A folder such as a reader has: configurations, examples, a text, and a few small runs."""
    folder = tmp_path_factory.mktemp("documentation")
    shutil.copytree(ROOT / "configs", folder / "configs")
    shutil.copytree(ROOT / "studies", folder / "studies")
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    shutil.copy(tiny_corpus, folder / "text.txt")
    (folder / "data" / "raw" / "10M_tokens").mkdir(parents=True)
    shutil.copy(tiny_corpus, folder / "data" / "raw" / "10M_tokens")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for run, fields in RUNS.items():
            overrides = (f"experiment_name={run}", "training.train_steps=20", *fields, *SMALL_RUN)
            words = [word for override in overrides for word in ("-o", override)]
            status, output = run_in_process(["train", "configs/quick/transformer.yaml", *words])
            assert status == 0, output
    return folder


@pytest.fixture
def workplace(furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to stand in."""
    folder = tmp_path / "workplace"
    shutil.copytree(furnished, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if all_commands(page)], ids=name)
def test_the_commands_of_a_page_run(page: Path, workplace: Path) -> None:
    if any("train" in command.words for command in all_commands(page)):
        shutil.rmtree(workplace / "output")
    page_blocks = blocks(page)
    for block, following in zip(page_blocks, [*page_blocks[1:], Block("", "")], strict=True):
        if block.language == "bash":
            for command in commands(block):
                run_and_compare(command, following.text if following.language == "text" else "")
        elif block.text.startswith("import lockstep"):
            exec(block.text.replace("print(", "str("), {})


def run_and_compare(command: Command, shown: str) -> None:
    """The status must be as noted; a failure must also say what the page shows."""
    assert command.words[0] in HOW, f"no way is known to try {shlex.join(command.words)}"
    status, output = HOW[command.words[0]](command)
    assert status == command.status, f"{shlex.join(command.words)}: {output}"
    if command.status:
        for line in shown.splitlines():
            assert line in output.splitlines()


def test_the_list_is_shown_as_it_is(workplace: Path) -> None:
    status, output = run_in_process(["list"])
    (shown,) = (block.text for block in blocks(ROOT / "docs" / "verbs" / "list.md") if block.language == "text")
    assert status == 0
    assert [line.rstrip() for line in output.splitlines()] == shown.splitlines()


def test_every_verb_has_a_page() -> None:
    verbs = {command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback}
    pages = {page.stem for page in (ROOT / "docs" / "verbs").glob("*.md")}
    assert verbs == pages
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"(docs/verbs/{verb}.md)" in readme for verb in verbs)


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "verbs"], ids=name)
def test_every_option_is_explained(page: Path) -> None:
    _, output = run_in_process([page.stem, "--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", output)) - {"--help"}
    text = page.read_text(encoding="utf-8")
    assert {option for option in options if option not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose(page))
    for target in targets:
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_voice_is_plain(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [word for word in FORBIDDEN if word in text] == []
    assert re.findall(r"\w+!", prose(page)) == []
    assert [character for character in text if ord(character) > 0xFFFF] == []


def test_the_example_is_what_the_readme_shows() -> None:
    example = EXAMPLE.read_text(encoding="utf-8")
    assert example in [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
    assert len(example.splitlines()) < 50


def test_the_example_obeys_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_outsiders(monkeypatch)
    broken = [verdict.message for verdict in check(f"{EXAMPLE}:ema") if verdict.outcome != "passed"]
    assert broken == []


def test_the_configuration_page_is_complete() -> None:
    rows = table(ROOT / "docs" / "configuration.md")
    fields = dict(run_fields(RunSpec))
    own = {f"model.{field}" for kind in map(find, own_architectures()) for field in kind.model_fields}
    assert {row[0] for row in rows} == {*fields, *own}
    assert len(rows) == len({row[0] for row in rows})
    for key, _, default, *_ in rows:
        if key in fields:
            assert default == in_yaml(fields[key]), key


def run_fields(kind: type[Spec], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """The dotted keys of a specification and of its sections."""
    for key, field in kind.model_fields.items():
        candidates = (field.annotation, *get_args(field.annotation))
        sections = [one for one in candidates if isinstance(one, type) and issubclass(one, Spec)]
        if sections:
            yield from run_fields(sections[0], f"{prefix}{key}.")
        else:
            yield prefix + key, field


def in_yaml(field: FieldInfo) -> str:
    """A default as the page writes it."""
    if field.is_required():
        return "required"
    written: dict[Any, str] = {None: "null", True: "true", False: "false", (): "[]"}
    special = field.default is None or isinstance(field.default, bool | tuple)
    return f"`{written[field.default] if special else field.default}`"


def test_the_study_page_is_complete() -> None:
    text = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    assert (ROOT / "studies" / "quick.yaml").read_text(encoding="utf-8") in text
    sections: dict[str, type[Spec]] = {
        "": StudySpec,
        "seeds.": SeedsSpec,
        "tuning.": TuningSpec,
        "measurements.": MeasurementsSpec,
    }
    keys = [f"{section}{name}" for section, spec in sections.items() for name in spec.model_fields]
    for key in (*keys, "architecture", "size", "settings"):
        assert f"| `{key}` |" in text, key
    for study in (ROOT / "studies").glob("*.yaml"):
        assert f"`studies/{study.name}`" in text or f"`-{study.stem.rpartition('-')[2]}`" in text, study.name


def test_the_page_of_laws_is_complete() -> None:
    rows = table(ROOT / "docs" / "laws.md")
    assert [(row[0], row[1]) for row in rows] == [(law.name, law.statement) for law in LAWS]


def test_the_metadata_is_described(furnished: Path) -> None:
    described = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    metadata = json.loads((furnished / "output" / "quick-lstm" / "checkpoint-20" / "metadata.json").read_bytes())
    sections = (metadata[key] for key in ("token_metrics", "training_config", "model_config"))
    keys = [*metadata, *(key for section in sections for key in section)]
    assert [key for key in keys if not re.search(rf"[`.]{key}[`.]", described)] == []


def table(page: Path) -> list[list[str]]:
    """The rows of a page's tables whose first cell is a name in code; that name without its quotes."""
    rows = re.findall(r"^\| `([\w.-]+)` \| (.*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [[first, *rest.split(" | ")] for first, rest in rows]
