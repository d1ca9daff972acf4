"""What the judge tells of a part, taken to pieces: one sentence, or what was tried, yours, expected, and a hint."""

from dataclasses import dataclass

LINES = ("tried: ", "yours: ", "expected: ", "hint: ")  # how those of a failed try begin


@dataclass(frozen=True)
class Told:
    """A message of the judge. Without a failed try, all of it is `sentence`; else that is empty."""

    sentence: str
    tried: str = ""
    yours: str = ""
    expected: str = ""
    hint: str = ""

    @property
    def mistake(self) -> str:
        """What to count the message by: the hint, which names the mistake, or else all that is said."""
        return self.hint or self.sentence


def told(message: str) -> Told:
    """Return the pieces of a message."""
    rest, pieces = f"\n{message.strip()}", []
    for start in LINES:
        piece, found, rest = rest.partition(f"\n{start}")
        if not found:
            return Told(message.strip())
        pieces.append(piece.strip())
    return Told("", *pieces[1:], rest.strip()) if not pieces[0] else Told(message.strip())
