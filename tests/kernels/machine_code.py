"""Reads in Hopper's machine code what no source says: first operands of products that do not survive a loop.

ptxas of CUDA 12.8 to 13.0 may take the registers of a first operand that was computed before a loop for something else
inside of it. The first round is right, all others are not, and nobody is told.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import triton

LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+ )?\s*([A-Z]\w*(?:\.\w+)*)\s*(.*?)\s*;")
LABEL = re.compile(r"(\.L_x_\d+):")
PRODUCT = re.compile(r"R\d+, R(\d+), gdesc")
"""A product whose first operand is in registers, four to a thread."""
SILENT = re.compile(r"U|ST|RED|BAR|BRA|BS|EXIT|NOP|DEPBAR|MEMBAR|FENCE|SYNCS|WARP|VOTE|ELECT|[A-Z]*SETP|R2UR|CCTL")
"""What leaves the registers of threads as they are."""


class Instruction(NamedTuple):
    name: str
    arguments: str
    conditional: bool

    @property
    def written(self) -> range:
        """Registers."""
        result = re.match(r"(?:P\w+, )?R(\d+)", self.arguments)
        if result is None or SILENT.match(self.name):
            return range(0)
        first = int(result[1])
        return range(first, first + self.size)

    @property
    def size(self) -> int:
        """How many registers a result takes."""
        tile = re.match(r"[A-Z]GMMA\.64x(\d+)x", self.name)
        if tile:
            return int(tile[1]) // 2  # 64 rows among 128 threads, in 32 bits
        if ".128" in self.name or (self.name.startswith("LDSM") and self.name.endswith(".4")):
            return 4
        return 2 if re.search(r"\.(64|WIDE)|LDSM.*\.2$", self.name) else 1


def overwritten(cubin: Path) -> list[str]:
    """First operands from before a loop whose registers the loop writes to, and has not yet when it multiplies."""
    code, labels = read(disassembled(cubin))
    found = []
    for start, end in loops(code, labels):
        body = code[start : end + 1]
        ever = {register for one in body for register in one.written}
        so_far: set[int] = set()
        for one in body:
            operand = PRODUCT.match(one.arguments) if "GMMA" in one.name else None
            if operand:
                first = int(operand[1])
                if ever & set(range(first, first + 4)) - so_far:
                    found.append(f"{one.name} {one.arguments}")
            so_far.update(one.written)
    return found


def loops(code: list[Instruction], labels: dict[str, int]) -> list[tuple[int, int]]:
    """First and last instructions. Jumps back under no condition return from where a thread waited: no loop."""
    found = []
    for place, one in enumerate(code):
        target = re.search(r"\.L_x_\d+", one.arguments)
        if one.name.startswith("BRA") and one.conditional and target and labels[target[0]] <= place:
            found.append((labels[target[0]], place))
    return found


def read(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """The instructions, and at which of them labels stand."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(code)
        elif found := LINE.search(line):
            condition, name, arguments = found.groups()
            code.append(Instruction(name, arguments, condition is not None or "UP" in arguments))
    return code, labels


def disassembled(cubin: Path) -> str:
    command = [triton.knobs.nvidia.nvdisasm.path, "-c", str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
