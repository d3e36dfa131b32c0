"""Lockstep trains sequence-model architectures side by side and says which is better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.models.registry import architectures, build
    from lockstep.study.compare import compare
    from lockstep.training.checkpoint import load

__all__ = ["__version__", "architectures", "build", "compare", "load"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import the public surface on first use, so that `lockstep --help` needs no torch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("lockstep-lm")
    if name in ("architectures", "build"):
        from lockstep.models import registry

        return getattr(registry, name)
    if name == "compare":
        from lockstep.study.compare import compare

        return compare
    if name == "load":
        from lockstep.training.checkpoint import load

        return load
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
