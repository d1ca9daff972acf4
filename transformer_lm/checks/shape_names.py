"""What the names in the shape comments of one call stand for: what the code says, else what most comments agree on."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from transformer_lm.checks.shape_notation import ANY, Group, Remark, Shape, Size

Pairs = list[tuple[Size, int]]  # written sizes with the axes they stand for

MOST_LEFT_OUT, MOST_WORK = 30, 50_000


@dataclass(frozen=True)
class Statement:
    """A statement of a function, with what its comments say.

    Those `above` it and those it has in common with its neighbours (`shared`) can only help.
    """

    node: ast.stmt
    remarks: tuple[Remark, ...]
    above: tuple[Remark, ...]
    shared: tuple[Remark, ...]
    last_line: int  # of its comments


@dataclass(frozen=True)
class Execution:
    """One execution of a statement: the shapes of what it assigns or returns, and of all tensors that take part."""

    statement: Statement
    kind: str  # of the value: tensor, tuple, list or other
    shapes: tuple[Shape, ...]
    parts: tuple[Shape, ...]

    @cached_property
    def readings(self) -> list[Pairs]:
        """The ways in which the comments can be about the assigned tensors; the line itself goes first."""
        statement = self.statement
        inside = [pairs for remark in statement.remarks if not remark.is_below for pairs in self._readings(remark)]
        others = [remark for remark in statement.remarks if remark.is_below]
        others += [] if inside else [*statement.above, *statement.shared]
        return inside + [pairs for remark in others for pairs in self._readings(remark)]

    @cached_property
    def befores(self) -> list[Group]:
        """The shapes of what the assigned tensors are made from."""
        return list(dict.fromkeys(group for remark in self.statement.remarks for group in remark.before))

    def _readings(self, remark: Remark) -> Iterator[Pairs]:
        in_turn = [remark.claims] if len(remark.claims) == len(self.shapes) > 1 else []
        for groups in [*in_turn, *([group] * len(self.shapes) for group in remark.claims)]:
            aligned = [group.aligned(shape) for group, shape in zip(groups, self.shapes, strict=True)]
            if aligned and None not in aligned:
                yield [pair for pairs in aligned for pair in pairs]


@dataclass(frozen=True)
class Given:
    """Sizes of names by the code alone: `certain` ones, `likely` ones, and names that are `free` to be several."""

    certain: dict[str, int]
    likely: dict[str, int]
    free: frozenset[str]


class Names:
    """Tells whether written shapes fit, by the sizes that names have in one call.

    Numbers are meant as they are, unless they are the sizes of an example of the student's own. Then each axis has one
    number: `examples` holds it by the axis.
    """

    def __init__(self, executions: list[Execution], given: Given) -> None:
        self.executions, self.given = executions, given
        self.known = dict(given.certain)
        self.examples: dict[int, set[int]] | None = None
        self.varying = self._varying()
        self.known = self._most_consistent()
        self._find_examples()
        self._bind_by_parts()

    def fits(self, group: Group, shape: Shape, statement: Statement) -> bool:
        """Tell whether a written shape can be this one."""
        pairs = group.aligned(shape)
        if pairs is None:
            return False
        free = self.given.free | self.varying[id(statement)]
        known = dict(self.known) if group.names - self.known.keys() else self.known  # a copy that may be added to
        return all(size.names & free or self._fits(size, axis, known) for size, axis in pairs)

    def fits_any(self, group: Group, execution: Execution) -> bool:
        """Tell whether a written shape is that of some tensor that takes part in a statement."""
        shapes = (*execution.shapes, *execution.parts)
        return any(self.fits(group, shape, execution.statement) for shape in shapes)

    def _fits(self, size: Size, axis: int, known: dict[str, int]) -> bool:
        """Tell whether a size fits an axis; add what that means for a name that was not known."""
        number, unknown = size.number, size.names - known.keys()
        if size is ANY:
            return True
        if number is not None:
            is_example = self.examples is not None and number > 1
            return number in self.examples.get(axis, {number}) if is_example else number == axis
        if size.is_unclear(unknown):  # then it is one name
            return known.setdefault(size.text, axis) == axis
        if unknown:
            (name,) = unknown
            value = size.solved(axis, known, name)
            known |= {name: value} if value else {}
            return value is not None
        return size.value(known) == axis

    def _varying(self) -> dict[int, set[str]]:
        """Return by statement the names that change there from one turn of a loop to the next."""
        axes: dict[tuple, set[int]] = defaultdict(set)
        for each in self.executions:
            for number, pairs in enumerate(each.readings):
                for place, (size, axis) in enumerate(pairs):
                    axes[id(each.statement), number, place, size].add(axis)
        varying: dict[int, set[str]] = defaultdict(set)
        for (statement, _, _, size), several in axes.items():
            varying[statement] |= size.names - self.given.certain.keys() if len(several) > 1 else set()
        return varying

    def _most_consistent(self) -> dict[str, int]:
        """Return the sizes of names by which most comments are right, where one statement may be left out as wrong."""
        commented = [each for each in self.executions if each.readings]
        best: tuple[int, dict[str, int]] = (-1, {})
        work = sum(len(each.readings) + len(each.befores) * len(each.parts) for each in commented)
        most = min(MOST_LEFT_OUT, MOST_WORK // (work + 1))
        for left_out in [None, *dict.fromkeys(id(each.statement) for each in commented)][: most + 1]:
            self.known = dict(self.given.certain)
            for _ in range(2):  # what is known tells which of several shapes is meant, and the other way round
                kept = [each for each in commented if id(each.statement) != left_out]
                self.known = self._agreed([pair for each in kept for pair in self._best_reading(each)])
            outcomes = [outcome for each in commented for outcome in self._outcomes(each)]
            best = max(best, (sum(outcomes), self.known), key=lambda pair: pair[0])
            if all(outcomes):
                break
        return best[1]

    def _outcomes(self, execution: Execution) -> Iterator[bool]:
        """Yield whether some reading of the comments is right, numbers aside, and for each shape before an arrow."""
        free = self.varying[id(execution.statement)] | self.given.free
        yield any(
            all(size.names & free or not size.names or self._fits(size, axis, known) for size, axis in pairs)
            for pairs, known in ((pairs, dict(self.known)) for pairs in execution.readings)
        )
        for group in execution.befores:
            yield self.fits_any(group, execution)

    def _best_reading(self, execution: Execution) -> Pairs:
        """Return the reading that agrees most with what is known, without names that are free or vary."""

        def agreement(pairs: Pairs) -> int:
            values = [(size.value(self.known), axis) for size, axis in pairs]
            return sum(1 if value == axis else -1 for value, axis in values if value is not None)

        free = self.varying[id(execution.statement)] | self.given.free
        best = max(execution.readings, key=agreement, default=[])
        return list(dict.fromkeys((size, axis) for size, axis in best if not size.names & free))

    def _agreed(self, pairs: Pairs) -> dict[str, int]:
        """Return the sizes of names: each gets what most comments say, once it is the only unknown in some."""
        known = dict(self.given.certain)
        while True:
            votes: dict[str, Counter] = defaultdict(Counter)
            for size, axis in pairs:
                unknown = size.names - known.keys()
                if len(unknown) == 1 and not size.is_unclear(unknown):
                    (name,) = unknown
                    votes[name][size.solved(axis, known, name)] += 1
            elected = {name: self._elected(name, counts) for name, counts in votes.items()}
            elected = {name: size for name, size in elected.items() if size is not None}
            if not elected:
                break
            known |= elected
        unclear: dict[str, Counter] = defaultdict(Counter)
        for size, axis in pairs:
            if size.is_unclear(size.names - known.keys()):
                unclear[size.text][axis] += 1
        return known | {text: counts.most_common(1)[0][0] for text, counts in unclear.items()}

    def _elected(self, name: str, counts: Counter) -> int | None:
        """Return the size that most agree on. What a class is made with has a vote too, and wins a tie."""
        likely = self.given.likely.get(name)
        votes = Counter({size: count for size, count in counts.items() if size is not None})
        if likely:
            votes = Counter({likely: 1}) + votes
        return votes.most_common(1)[0][0] if votes else None

    def _find_examples(self) -> None:
        """Find out whether numbers are those of an example of the student's own, and what they stand for."""
        readings = [self._best_reading(each) for each in self.executions]
        claims = [[(size.number, axis) for size, axis in pairs if (size.number or 0) > 1] for pairs in readings]
        claims = [pairs for pairs in claims if pairs]
        sizes = {axis for each in self.executions for shape in (*each.shapes, *each.parts) for axis in shape}
        is_among = all(number in sizes for pairs in claims for number, _ in pairs)
        some_right = any(all(number == axis for number, axis in pairs) for pairs in claims)
        if 2 * sum(map(_is_meant, claims)) >= len(claims) or (is_among and some_right):
            return
        counts: dict[int, Counter] = defaultdict(Counter)
        for pairs in claims:
            for number, axis in set(pairs):
                counts[axis][number] += 1
        self.examples = {
            axis: {number for number, uses in each.items() if uses > 1 or number == each.most_common(1)[0][0]}
            for axis, each in counts.items()
        }

    def _bind_by_parts(self) -> None:
        """Bind names that only stand before arrows, where just one size is possible."""
        votes: dict[str, Counter] = defaultdict(Counter)
        for each in self.executions:
            for group in each.befores:
                possible: dict[str, set[int]] = defaultdict(set)
                for shape in each.parts if group.names - self.known.keys() else ():
                    known, pairs = dict(self.known), group.aligned(shape)
                    if pairs and all(self._fits(size, axis, known) for size, axis in pairs):
                        for name in known.keys() - self.known.keys():
                            possible[name].add(known[name])
                for name, sizes in possible.items():
                    votes[name].update(sizes if len(sizes) == 1 else ())
        self.known |= {name: self._elected(name, counts) for name, counts in votes.items() if counts}


def _is_meant(pairs: list[tuple[int, int]]) -> bool:
    """Tell whether numbers look like the axes themselves: in another order, or with few mistakes."""
    right = sum(number == axis for number, axis in pairs)
    return sorted(number for number, _ in pairs) == sorted(axis for _, axis in pairs) or 3 * right >= 2 * len(pairs)
