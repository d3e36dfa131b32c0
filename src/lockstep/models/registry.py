"""Names of architectures, and what stands behind them."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from lockstep.config.spec import nearest, validate
from lockstep.errors import UserError
from lockstep.models.language_model import LanguageModel
from lockstep.models.spec import ModelSpec

_SPECS: dict[str, type[ModelSpec]] = {}

S = TypeVar("S", bound=type[ModelSpec])


def architecture(name: str) -> Callable[[S], S]:
    """Class decorator: register a specification under `name`."""

    def register(spec: S) -> S:
        known = _SPECS.get(name)
        if known is not None and known.__module__ != spec.__module__:
            raise ValueError(f"architecture {name} is already registered by {known.__module__}")
        spec.architecture = name
        spec.source = _source_digest(spec)
        _SPECS[name] = spec
        return spec

    return register


def architectures() -> tuple[str, ...]:
    """The names of all registered architectures."""
    importlib.import_module("lockstep.models.architectures")
    return tuple(sorted(_SPECS))


def find(name: str) -> type[ModelSpec]:
    """The specification behind a name; `file.py:name` or `package.module:name` brings an outsider's."""
    place, colon, registered = name.rpartition(":")
    if colon:
        own = _registered_by(_import(place))
        if registered not in architectures():
            raise UserError(f"{place}: registers no architecture {registered}{nearest(registered, own)}")
        return _SPECS[registered]
    if name.endswith(".py"):
        raise UserError(f"{name}: name the architecture in that file too, as in {name}:NAME")
    if name not in architectures():
        raise UserError(f"unknown architecture {name}{nearest(name, architectures())}")
    return _SPECS[name]


def _registered_by(module: ModuleType) -> list[str]:
    return [name for name, spec in _SPECS.items() if spec.__module__ == module.__name__]


def absolute(name: str) -> str:
    """A name that does not depend on the working directory: an outsider's file in full."""
    place, colon, registered = name.rpartition(":")
    return f"{Path(place).resolve()}:{registered}" if colon and place.endswith(".py") else name


def specify(name: str, fields: Mapping[str, Any], source: str = "model") -> ModelSpec:
    """A validated specification, or one line that names the offending field."""
    return validate(find(name), dict(fields), f"{source}: {name}")


def build(name: str, **fields: Any) -> LanguageModel:
    """A model by name. Every architecture accepts vocab_size, dim, depth and heads."""
    return specify(name, fields).build()


def _source_digest(spec: type[ModelSpec]) -> str | None:
    """Taken when the file is imported: what is edited later is not what runs."""
    file = getattr(sys.modules.get(spec.__module__), "__file__", None)
    if file is None or spec.__module__.startswith("lockstep."):
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _import(place: str) -> ModuleType:
    """A module by its name or its file; whatever an outsider's code raises is told in one line."""
    if place.endswith(".py") and not Path(place).is_file():
        raise UserError(f"{place}: no such file; check the path")
    try:
        return _import_file(Path(place).resolve()) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{place}: cannot be imported: {told}") from None


def _import_file(path: Path) -> ModuleType:
    name = f"lockstep_outsider_{path.stem}_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        # Half a module must not pass for a whole one when it is asked for again.
        del sys.modules[name]
        raise
    return module
