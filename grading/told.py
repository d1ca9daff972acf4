"""What the judge tells of a part, taken to pieces: one sentence, or what was tried, yours, expected, and a hint."""

import re
from dataclasses import dataclass

FOUR_LINES = re.compile(r"tried: +(.*?)\nyours: +(.*?)\nexpected: +(.*?)\nhint: +(.*)", re.DOTALL)


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
    lines = FOUR_LINES.fullmatch(message.strip())
    return Told("", *(piece.strip() for piece in lines.groups())) if lines else Told(message.strip())
