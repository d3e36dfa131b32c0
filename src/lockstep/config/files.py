"""Reading specifications from YAML files, with `-o key=value` overrides, and writing them back."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from lockstep.config.run import RunSpec
from lockstep.config.spec import S, one_line, validate
from lockstep.config.study import StudySpec
from lockstep.errors import UserError


def load_run(path: Path, overrides: Sequence[str] = ()) -> RunSpec:
    """The run that a YAML file describes, with dotted overrides such as `training.learning_rate=3e-4`."""
    return load(RunSpec, path, overrides)


def load_study(path: Path, overrides: Sequence[str] = ()) -> StudySpec:
    """The study that a YAML file describes."""
    return load(StudySpec, path, overrides)


def load(kind: type[S], path: Path, overrides: Sequence[str]) -> S:
    data = read_yaml(path)
    for override in overrides:
        apply_override(data, override)
    refuse_the_other_kind(kind, data, path)
    return validate(kind, data, str(path))


def refuse_the_other_kind(kind: type[S], data: Mapping[str, Any], path: Path) -> None:
    """A study where a run is expected, or the other way round, is told by the verb that takes it."""
    if kind is RunSpec and "contestants" in data:
        raise UserError(f"{path}: a study, not a run; compare its contestants with `lockstep compare {path}`")
    if kind is StudySpec and "model" in data and "contestants" not in data:
        raise UserError(f"{path}: a run, not a study; train it with `lockstep train {path}`")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's top-level mapping."""
    return parse_yaml(read_text(path), str(path))


def read_text(path: Path) -> str:
    """A text file, or one line that says why it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a folder; name a file in it") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """The mapping that a YAML text holds; duplicate keys are refused."""
    try:
        data = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0] or type(error).__name__
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark is not None else ""
        raise UserError(one_line(f"{source}:{line} not valid YAML: {reason}")) from None
    if not isinstance(data, dict):
        raise UserError(f"{one_line(source)}: expected a mapping of keys to values at the top level")
    return data


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set one dotted key of `data` in place."""
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UserError(one_line(f"-o {override}: expected key=value, such as training.learning_rate=3e-4"))
    *parents, last = path
    for part in parents:
        if data.get(part) is None:
            data[part] = {}
        data = data[part]
        if not isinstance(data, dict):
            raise UserError(one_line(f"-o {override}: {part} is not a section"))
    data[last] = parse_yaml(f"value: {text}", f"-o {override}").get("value")


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Plain YAML, keys in the given order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment] # ruamel's own switch for order
    stream = io.StringIO()
    yaml.dump(dict(data), stream)
    return stream.getvalue()
