"""The catalogue of hints: sentences that name a mistake, each under the id of that mistake.

`hints.toml` beside this file holds the hints that several exercises share. Code refers to ids, so a sentence can be
edited there without touching anything else. `{name}` in a sentence is filled in when the hint is given.
"""

import functools
import tomllib
from pathlib import Path

SHARED = Path(__file__).with_name("hints.toml")


class Hint(str):
    """A hint as the reader sees it, with the id of the mistake that it names."""

    id: str

    def __new__(cls, sentence: str, id: str) -> "Hint":
        """Return the sentence as a hint with this id."""
        hint = super().__new__(cls, sentence)
        hint.id = id
        return hint

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # as many as our __new__ takes
        """Return the arguments that copy and pickle need to recreate the hint."""
        return str(self), self.id


@functools.cache
def _shared() -> dict[str, str]:
    return tomllib.loads(SHARED.read_text(encoding="utf-8"))


def hint(id: str, **values: object) -> Hint:
    """Return the shared hint with that id, with the values filled in. Raises KeyError if there is none."""
    sentence = _shared()[id]
    return Hint(sentence.format(**values) if values else sentence, id)
