"""Memory that learns at test time: what it is (structure, bias, retention, rule) and the ways to run it."""

from lockstep.memory.memorize import Form, memorize
from lockstep.memory.spec import MemorySpec
from lockstep.memory.streaming import MemoryState, begin, recollect, stream
from lockstep.memory.types import Gates, Memory, Outer

__all__ = ["Form", "Gates", "Memory", "MemorySpec", "MemoryState", "Outer", "begin", "memorize", "recollect", "stream"]
