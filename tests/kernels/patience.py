"""Reads in Triton's PTX what a kernel does before it waits for the one before it: what it loads, and nothing else."""

from __future__ import annotations

import re

WAIT, LET_IN = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
HASTY = re.compile(r"^\s*(?:@\S+\s+)?(st\.global|atom\.|red\.|cp\.async\.bulk|griddepcontrol\.launch)", re.MULTILINE)
"""What nobody may do before."""
POINTER = re.compile(r"ld\.param\.[bu]64\s+(%\w+), \[\w+_param_(\d+)\]")
CARRIED = re.compile(r"(?:add|sub|mad|mul|cvta|mov|cvt|selp|shl|or|and)\.\S+\s+(%\w+), (.*);")
TABLE = re.compile(r"mov\.\w+\s+(%\w+), (__cudart_\w+);")
"""Of CUDA's own library, by which it turns large angles."""
LOADED = re.compile(r"(?:ld\.global|cp\.async\.c[ag]\.)\S*\s.*\[\s*(%\w+)")
"""The last of its addresses is where from."""
EARLY = {
    "token_kernel": {
        *(f"{name}_{number}" for name in ("point", "weights", "velocity", "anchor") for number in (1, 2)),
        *("position", "gain", "shift", "weight", "tail", "gate_weight", "gate_bias", "read_norm"),
    },
    "token_recall_kernel": {"first", "second", "position", "gain", "shift", "weight", "tail"},
    "recur_kernel": {"state"},
    "token_rows_kernel": {"weight", "tail", "bias"},
    "joined_kernel": {"weight", "bias", "read_weight", "read_bias"},
    "gated_kernel": {"skip", "gain"},
    "look_kernel": {"keys", "values", "position", "rates"},
}
"""Of each kernel, what the model lends it, and what it wrote itself a token ago."""


def require_patience(name: str, parameters: list[str], text: str) -> None:
    """It waits, asks for nothing but that before, and writes nothing; others come in behind. Parameters as they lie."""
    before, waits, behind = text.partition(WAIT)
    assert waits, f"{name} does not wait"
    assert LET_IN in behind, f"{name} lets nobody begin early"
    hasty = HASTY.search(before)
    assert hasty is None, f"{name} has {hasty and hasty[1]} before it waits"
    sources: dict[str, set[str]] = {}
    for line in before.splitlines():
        if found := POINTER.search(line):
            sources[found[1]] = {parameters[int(found[2])]}
        elif found := TABLE.search(line):
            sources[found[1]] = {found[2]}
        elif found := CARRIED.search(line):
            sources[found[1]] = set().union(*(sources.get(one, set()) for one in re.findall(r"%\w+", found[2])))
        elif found := LOADED.search(line):
            asked = sources.get(found[1], set())
            known = EARLY[name] | {one for one in asked if one.startswith("__cudart_")}
            assert asked, f"{name} asks for what nobody knows: {line.strip()}"
            assert asked <= known, f"{name} asks for {sorted(asked)} before it waits: {line.strip()}"
