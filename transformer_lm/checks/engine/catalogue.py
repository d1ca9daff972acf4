"""The catalogue of hints that exercises share: sentences that name a mistake, by the id of the mistake.

They are in `hints.toml` beside this file. Code names ids, so a sentence can be edited there without touching anything
else. `{name}` in a sentence is filled in where the hint is given. Those of one exercise are in its check and record.
"""

import functools
import tomllib
from pathlib import Path

SHARED = Path(__file__).with_name("hints.toml")


class Hint(str):
    """A hint as a reader sees it, which knows the id of the mistake that it names."""

    id: str

    def __new__(cls, sentence: str, id: str) -> "Hint":
        """Return the sentence, with the id."""
        hint = super().__new__(cls, sentence)
        hint.id = id
        return hint

    def __getnewargs__(self) -> tuple[str, str]:
        """Return what a copy, or another process, makes it from."""
        return str(self), self.id


@functools.cache
def _shared() -> dict[str, str]:
    return tomllib.loads(SHARED.read_text(encoding="utf-8"))


def hint(id: str, **values: object) -> Hint:
    """Return the shared hint with that id, with the values filled in. Raises KeyError if there is none."""
    sentence = _shared()[id]
    return Hint(sentence.format(**values) if values else sentence, id)
