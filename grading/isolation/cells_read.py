"""Finds the cells that count for the form of an answer: the one that defines it, and those with its helpers."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from transformer_lm.checks.engine.source import assigned_names, defined_names, used_names

LONGEST_READ = 10_000  # characters of the cells that count for one answer
MOST_SEARCHED = 200_000  # characters of the cells that are searched for them


@dataclass(frozen=True)
class Cell:
    """A code cell of a submission, with its position in the notebook; `given` are the names that exercises ask for."""

    number: int
    source: str
    given: frozenset[str] = frozenset()


def cells_read(name: str, cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Return the last cell that defines a function or class, with the cells whose helpers it uses, in order.

    Helpers are names that other cells define and no exercise asks for. If a later cell assigns the name to something
    else, that cell and all that define the name are included. Empty if no cell defines the name, if the cells are too
    long to be read or searched, or if a later cell that is too long may define it again.
    """
    cells = list(cells)
    short = {cell.number: cell for cell in cells if len(cell.source) <= LONGEST_READ}
    if sum(len(cell.source) for cell in short.values()) > MOST_SEARCHED:
        return ()
    defining: dict[str, list[int]] = defaultdict(list)
    for number, cell in short.items():
        for defined in defined_names(cell.source):
            if defined == name or defined not in cell.given:
                defining[defined].append(number)
    if not defining[name]:
        return ()
    last = max(defining[name])
    later = [cell for cell in cells if cell.number > last]
    if any(cell.number not in short and re.search(rf"\b{name}\b", cell.source) for cell in later):
        return ()
    given_away = [cell.number for cell in later if cell.number in short and name in assigned_names(cell.source)]
    first = [*given_away, *defining[name]] if given_away else [last]
    return _with_helpers(first, short, defining)


def _with_helpers(first: list[int], cells: dict[int, Cell], defining: dict[str, list[int]]) -> tuple[Cell, ...]:
    """Return cells with all cells that define what they use, directly or not; empty if they are too long together."""
    waiting, taking_part, length = list(first), set(), 0
    while waiting:
        number = waiting.pop()
        if number in taking_part:
            continue
        taking_part.add(number)
        length += len(cells[number].source)
        if length > LONGEST_READ:
            return ()
        for used in used_names(cells[number].source):
            waiting += defining.pop(used, ())  # each is looked up once
    return tuple(cells[number] for number in sorted(taking_part))
