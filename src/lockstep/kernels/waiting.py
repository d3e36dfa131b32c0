"""What kernels that begin early wait for, see `succession`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def await_the_one_before(OVERLAPS: tl.constexpr) -> None:
    """All that the kernel before this one has written is there; and the next may begin."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
