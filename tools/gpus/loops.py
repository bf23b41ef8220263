"""Instruction mix of loops in assembly text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Syntax:
    """Syntax of an assembly language.

    Attributes:
        label: Matches a line that defines the label of group 1.
        instruction: Matches one with an instruction; group 1 is its name, group 2 what follows.
        branch: Matches names of instructions that jump to a label among their operands.
        target: Finds the labels in operands.
        fused: Matches fused multiply-adds of floats, with their operands.
        paired: Matches instructions of a dual-issue unit; None if there is none.
    """

    label: re.Pattern[str]
    instruction: re.Pattern[str]
    branch: re.Pattern[str]
    target: re.Pattern[str]
    fused: re.Pattern[str]
    paired: re.Pattern[str] | None = None


AMD = Syntax(
    re.compile(r"(\.LBB\w+):"),
    re.compile(r"\t([vsdgbf][a-z0-9]*_\w+)(.*)"),
    re.compile(r"s_c?branch"),
    re.compile(r"\.LBB\w+"),
    re.compile(r"v_(dual_|pk_)?fm(a|ac|aak|amk)_f(32|16)|v_mfma|v_wmma|v_dot"),
)
# Two floats, in one instruction of a pair.
AMD_PAIRED = replace(AMD, paired=re.compile("v_"))
NVIDIA = Syntax(
    re.compile(r"\s*(\.L_x_\d+):"),
    re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?\s*([A-Z0-9_.]+)(.*?);"),
    re.compile(r"BRA"),
    re.compile(r"\.L_x_\d+"),
    re.compile(r"FFMA|HFMA2|HMMA|IMMA"),
)
INTEL = Syntax(
    re.compile(r"(\w+):"),
    re.compile(r"(?:\([^)]*\))?\s+([a-z][a-z0-9_.]*) (.*?)(?://.*)?$"),
    re.compile(r"jmpi|while|goto"),
    re.compile(r"\b(?:L\d+|_\d+_\d+)\b"),
    re.compile(r"ma[dc] .*?>:h?f\b|dpas"),
)


@dataclass(frozen=True)
class Loop:
    """Instruction counts of a loop.

    Attributes:
        instructions: Number of instructions.
        fused: Number of multiply-add instructions.
        multiplied: Multiply-adds they perform; an instruction may do two.
        slots: Two per instruction of a dual-issue unit; 0 without one.
    """

    instructions: int
    fused: int
    multiplied: int = 0
    slots: int = 0

    @property
    def share(self) -> float:
        """Fraction of instructions that are multiply-adds."""
        return self.fused / self.instructions

    @property
    def filled(self) -> float:
        """Fraction of slots filled with multiply-adds; 0 without slots."""
        return self.multiplied / self.slots if self.slots else 0.0

    @property
    def reached(self) -> float:
        """Maximum fraction of the data sheet's rate, which counts all slots."""
        return self.filled if self.slots else self.share


def main_loop(lines: Iterable[str], syntax: Syntax) -> Loop | None:
    """The loop with the largest share of multiplications, of those with half of the most or more.

    Of loops inside each other that is the innermost; None where no loop multiplies and adds. A
    branch to a label that stands before it ends a loop.
    """
    labels: dict[str, int] = {}
    seen: list[str] = []
    found: list[Loop] = []
    for line in lines:
        if match := syntax.label.match(line):
            labels[match[1]] = len(seen)
        elif match := syntax.instruction.match(line):
            seen.append(f"{match[1]} {match[2]}")
            if syntax.branch.match(match[1]):
                starts = [labels[t] for t in syntax.target.findall(match[2]) if t in labels]
                found += [_loop(seen[start:], syntax) for start in starts]
    with_most = max((loop.fused for loop in found), default=0)
    best = [loop for loop in found if loop.fused and 2 * loop.fused >= with_most]
    return max(best, key=lambda loop: loop.share, default=None)


def _loop(instructions: list[str], syntax: Syntax) -> Loop:
    paired = sum(1 for x in instructions if syntax.paired and syntax.paired.match(x))
    return Loop(
        len(instructions),
        sum(1 for x in instructions if syntax.fused.match(x)),
        sum(len(syntax.fused.findall(x)) for x in instructions),
        2 * paired,
    )
