"""Who may import whom: the rooms of the house, and what stays outside the command line's doorstep."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "lockstep"

BASE = {"config", "errors"}
TOOLS = {"durable", "progress", "tables"}
"""Modules that any room with files or long work may use, and that know nothing of the rooms."""
ALLOWED = {
    "errors": set[str](),
    "durable": {"errors"},
    "progress": {"errors"},
    "tables": set[str](),
    "config": {"errors"},
    "kernels": BASE,
    "memory": BASE | {"kernels"},
    "models": BASE | {"memory", "kernels"},
    "data": BASE | TOOLS,
    "laws": BASE | {"models"},
    "evaluation": BASE | TOOLS | {"models", "memory", "data"},
    "training": BASE | TOOLS | {"models", "kernels", "data", "evaluation"},
    "report": BASE | TOOLS,
    "study": BASE | TOOLS | {"models", "memory", "kernels", "data", "laws", "evaluation", "training", "report"},
}
"""What each room may use besides itself. A report knows results alone; nothing uses the command line."""

HEAVY = {"torch", "numpy", "pydantic", "scipy", "tokenizers", "safetensors", "ruamel", "altair", "jinja2", "rich"}


def imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """The full names of all imported modules, inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            # `from lockstep import models` names the room in its aliases.
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))


def rooms_used(text: str, room: str) -> set[str]:
    """The other rooms that a module of `room` imports from."""
    names = [name.split(".") for name in imported_modules(ast.parse(text), f"lockstep.{room}")]
    return {parts[1] for parts in names if parts[0] == "lockstep" and len(parts) > 1} - {room}


def violations(source: Path) -> list[str]:
    """Each forbidden import, as `file: room`."""
    found = []
    for path in sorted(source.rglob("*.py")):
        inside = path.relative_to(source)
        room = inside.parts[0].removesuffix(".py")
        if room in ("__init__", "cli"):
            continue
        allowed = ALLOWED.get(room, set())
        found += [f"{inside}: {used}" for used in sorted(rooms_used(path.read_text(), room) - allowed)]
    return found


def test_every_room_keeps_to_its_neighbours() -> None:
    assert violations(SOURCE) == []


def test_every_room_has_a_rule() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert rooms <= ALLOWED.keys()
    assert {"config", "data", "models", "laws", "evaluation", "training", "study", "report"} <= rooms


def test_the_rules_have_no_circle() -> None:
    left = dict(ALLOWED)
    while left:
        free = {room for room, uses in left.items() if not uses & left.keys()}
        assert free, left
        left = {room: uses for room, uses in left.items() if room not in free}


PLANTED = {
    "plain": "import lockstep.training.loop\n",
    "from": "from lockstep.training.loop import Trainer\n",
    "from the package": "from lockstep import training\n",
    "in a function": "def f() -> None:\n    from lockstep.training import loop\n",
    "for types only": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lockstep.training.plan\n",
    "relative": "from ..training.loop import Trainer\n",
    "by name": "import importlib\nimportlib.import_module('lockstep.training.loop')\n",
}


@pytest.mark.parametrize("text", PLANTED.values(), ids=PLANTED.keys())
def test_the_guard_sees_a_planted_violation(text: str, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "sound.py").write_text("from lockstep.models.spec import ModelSpec\nimport torch\n")
    assert violations(tmp_path) == []
    (tmp_path / "models" / "planted.py").write_text(text)
    assert violations(tmp_path) == ["models/planted.py: training"]


def test_the_guard_sees_a_room_that_has_no_rule(tmp_path: Path) -> None:
    (tmp_path / "attic").mkdir()
    (tmp_path / "attic" / "box.py").write_text("from lockstep.cli import main\n")
    assert violations(tmp_path) == ["attic/box.py: cli"]


def top_level_imports(text: str) -> set[str]:
    """The first names of what a module imports when it is imported itself."""
    return {
        name.split(".")[0]
        for node in ast.parse(text).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imported_modules(node, "lockstep")
    }


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_a_tool_needs_little(tool: str) -> None:
    """The standard library and, only once a bar is shown, rich."""
    text = (SOURCE / f"{tool}.py").read_text()
    used = {name.split(".")[0] for name in imported_modules(ast.parse(text), "lockstep")}
    assert used <= sys.stdlib_module_names | {"rich", "lockstep"}
    assert not top_level_imports(text) & HEAVY


def test_the_command_line_imports_nothing_heavy_at_its_top() -> None:
    text = (SOURCE / "cli.py").read_text()
    assert not top_level_imports(text) & HEAVY
    at_the_top = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    ours = {name for node in at_the_top for name in imported_modules(node, "lockstep") if name.startswith("lockstep")}
    assert ours == {"lockstep.errors.UserError"}
    assert top_level_imports("import torch.nn\n" + text) & HEAVY == {"torch"}
