"""A verdict on an answer, as data. It becomes text only where it is displayed."""

from dataclasses import asdict, dataclass

LONGEST = 2000  # characters of each text that another process may send


@dataclass(frozen=True)
class Failure:
    """A description of a wrong answer: what was tried, what came out, what should have, and the likely mistake.

    `mistake` is the id of the hint in the catalogue. If the answer raised an error or ended its process, `error` is
    what Python, torch or the system said. Where a check gives partial credit, `earned` is the number of points.
    """

    tried: str
    yours: str
    expected: str
    hint: str
    mistake: str | None = None
    error: str = ""
    earned: float | None = None

    def __str__(self) -> str:
        return f"tried:    {self.tried}\nyours:    {self.yours}\nexpected: {self.expected}\nhint:     {self.hint}"

    def as_table(self) -> dict[str, object]:
        """Return the failure as a table that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_table(cls, table: dict[str, object]) -> "Failure":
        """Return the failure that another process has sent; long texts are cut, and other values become texts."""
        texts = {name: str(table.get(name, ""))[:LONGEST] for name in ("tried", "yours", "expected", "hint", "error")}
        mistake, earned = table.get("mistake"), table.get("earned")
        return cls(
            **texts,
            mistake=mistake[:LONGEST] if isinstance(mistake, str) else None,
            earned=earned if isinstance(earned, int | float) else None,
        )


@dataclass(frozen=True)
class Mark:
    """The result of one part of an exercise: points, and what is good (`praise`) or wrong (`failure`).

    Negative points are subtracted from those of the other parts. The mark is not `complete` if the part is right but
    something else about the answer is not.
    """

    points: float
    praise: str = ""
    failure: Failure | None = None
    complete: bool = True

    @classmethod
    def from_table(cls, table: dict) -> "Mark":
        """Return the mark that was written as a table: see `PartResult.as_table` of the grading."""
        failure = table.get("failure")
        return cls(
            table["points"],
            table.get("praise", ""),
            Failure.from_table(failure) if failure else None,
            table.get("complete", True),
        )

    @property
    def is_right(self) -> bool:
        """Whether no mistake at all was found."""
        return self.complete and self.failure is None

    @property
    def message(self) -> str:
        """The message of the mark for a reader."""
        return str(self.failure) if self.failure else self.praise
