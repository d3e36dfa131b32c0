"""The architectures that come with Lockstep, one file per family; importing this registers them all."""

from lockstep.models.architectures import bert, gpt2, miras, recurrent, titans, transformer

__all__ = ["bert", "gpt2", "miras", "recurrent", "titans", "transformer"]
