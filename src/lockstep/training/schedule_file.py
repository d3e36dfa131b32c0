"""The checkpoint schedule inside a user's YAML file: that one value is changed, every other byte stays.

The parser only says where the value lies; the text is spliced. (A round trip through a YAML emitter keeps
comments, but not indentation, line ends, the spacing of comments or the folding of long lines.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from lockstep.config.files import parse_yaml, read_yaml
from lockstep.durable import whole_file
from lockstep.errors import UserError

SECTION = "training"
KEY = "checkpoint_schedule"


def read_schedule(path: Path) -> tuple[int, ...]:
    """The steps of training.checkpoint_schedule; none when the file does not give any."""
    section = read_yaml(path).get(SECTION) or {}
    if not isinstance(section, dict):
        raise UserError(f"{path}: {SECTION} is not a section of keys and values")
    steps = section.get(KEY) or []
    if not isinstance(steps, list):
        raise UserError(f"{path}: {SECTION}.{KEY}: expected a list of steps such as [1, 100, 1000], not {steps!r}")
    for step in steps:
        if type(step) is not int or step < 1:
            raise UserError(f"{path}: {SECTION}.{KEY}: {step!r} is not a step; steps are whole numbers from 1")
    return tuple(steps)


def write_schedule(path: Path, steps: Sequence[int]) -> None:
    """Set training.checkpoint_schedule; the file is replaced as a whole or not at all."""
    data = read_yaml(path)
    section = data.get(SECTION)
    if section is not None and not isinstance(section, dict):
        raise UserError(f"{path}: {SECTION} is not a section of keys and values")
    text = path.read_bytes().decode("utf-8")
    wanted = {**data, SECTION: {**(section or {}), KEY: list(steps)}}
    replacement = _edited(text, f"[{', '.join(map(str, steps))}]")
    if replacement is None or not _says(replacement, wanted):
        # Aliases, tags and other rarities: better to ask than to guess.
        raise UserError(f"{path}: {SECTION}.{KEY} cannot be edited in place; set it by hand to {list(steps)}")
    if replacement != text:
        _replace(path, replacement)


def _edited(text: str, flow: str) -> str | None:
    """`text` with the schedule set to the flow-style list `flow`, or None where its shape is not understood."""
    root = YAML(pure=True).compose(text)
    found = _pair(root, SECTION)
    if found is None:
        return _with_section(text, root, flow)
    key, section = found
    if section.start_mark.index < key.end_mark.index:  # an alias: the node stands elsewhere
        return None
    if isinstance(section, ScalarNode):  # null, or nothing at all
        if root.flow_style or section.start_mark.index != section.end_mark.index:
            return _with_value(text, key, section, f"{{{KEY}: {flow}}}")
        return _with_line_below(text, key, key.start_mark.column + 2, flow)
    if not isinstance(section, MappingNode):
        return None
    entry = _pair(section, KEY)
    if entry is not None:
        return _with_value(text, *entry, flow)
    if section.flow_style:
        return _with_first_entry(text, section, f"{KEY}: {flow}")
    return _with_line_below(text, key, section.value[0][0].start_mark.column, flow)


def _pair(mapping: MappingNode, name: str) -> tuple[Node, Node] | None:
    """The nodes of a key and of its value."""
    return next(((key, value) for key, value in mapping.value if key.value == name), None)


def _with_value(text: str, key: Node, value: Node, replacement: str) -> str | None:
    """Put `replacement` in the place of `value`, right behind its key's colon."""
    colon = re.compile(r"\s*:").match(text, key.end_mark.index)
    start, end = value.start_mark.index, value.end_mark.index
    if colon is None or start < key.end_mark.index:
        return None
    after = colon.end()
    if start == end:  # no value: its mark may lie as far away as the next key
        return f"{text[:after]} {replacement}{text[after:]}"
    if isinstance(value, SequenceNode) and not value.flow_style:
        # A block sequence's mark ends at the next key, behind comments that are not its own.
        comment = text[after:start].rstrip()
        return f"{text[:after]} {replacement}{comment}{text[value.value[-1].end_mark.index :]}"
    return text[:start] + replacement + text[end:]


def _with_line_below(text: str, key: Node, column: int, flow: str) -> str:
    """Add the schedule as the first line of the block section that `key` opens."""
    line_end = text.find("\n", key.end_mark.index)
    head, tail = (text, "") if line_end < 0 else (text[: line_end + 1], text[line_end + 1 :])
    newline = _newline(text)
    gap = "" if head.endswith("\n") else newline
    return f"{head}{gap}{' ' * column}{KEY}: {flow}{newline}{tail}"


def _with_section(text: str, root: MappingNode, flow: str) -> str:
    """Add a training section: at the end of a block file, at the start of a flow one."""
    if root.flow_style:
        return _with_first_entry(text, root, f"{SECTION}: {{{KEY}: {flow}}}")
    newline, indent = _newline(text), " " * root.value[0][0].start_mark.column
    gap = "" if text.endswith("\n") else newline
    return f"{text}{gap}{indent}{SECTION}:{newline}{indent}  {KEY}: {flow}{newline}"


def _with_first_entry(text: str, mapping: MappingNode, entry: str) -> str:
    inside = text.index("{", mapping.start_mark.index) + 1
    return f"{text[:inside]}{entry}{', ' if mapping.value else ''}{text[inside:]}"


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _says(text: str, wanted: dict[str, Any]) -> bool:
    """Whether `text` is YAML for `wanted`: the proof that a splice changed what it should and nothing else."""
    try:
        # By representation, because a NaN is not equal to itself.
        return bool(_plain(parse_yaml(text, "")) == _plain(wanted))
    except UserError:
        return False


def _plain(value: Any) -> Any:
    """A value in which equality means the same keys, types and contents, in any order of keys."""
    if isinstance(value, dict):
        return {repr(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return repr(value)


def _replace(path: Path, text: str) -> None:
    """Replacing a file asks for nothing but its folder; a file that was made read-only is not meant to change."""
    try:
        if not os.access(path, os.W_OK):
            raise PermissionError(0, "the file is not writable")
        whole_file(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
