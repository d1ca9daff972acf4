"""The catalogue of hints: sentences that name a mistake, each under the id of that mistake.

`hints.toml` in a topic's folder holds the hints of its exercises: a table for each, and first those that several of
them share. `hints.toml` beside this file holds what exercises of several topics share. Code and frozen files refer to
ids, so a sentence can be edited there without touching anything else. `{name}` in a sentence is filled in when the hint
is given.
"""

import functools
import tomllib
from pathlib import Path

CHECKS = Path(__file__).parents[1]
FILE = "hints.toml"
SHARED = Path(__file__).with_name(FILE)


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
def hints_of(file: Path) -> dict:
    """Return the hints of a file, with a table for each exercise."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


@functools.cache
def _known_to(exercise: str) -> tuple[dict, ...]:
    """Return the tables in which an exercise's hints are looked up, in order."""
    topics = [module.parent for module in CHECKS.glob(f"topic_*/{exercise.replace('-', '_')}.py")]
    tables = [hints_of(topic / FILE) for topic in topics]
    return (*(table.get(exercise, {}) for table in tables), *tables, hints_of(SHARED))


def hint(id: str, exercise: str = "", **values: object) -> Hint:
    """Return the hint with that id, of an exercise or else of its topic or else shared, with the values filled in.

    Raises ValueError if there is none.
    """
    sentence = next((table[id] for table in _known_to(exercise) if isinstance(table.get(id), str)), None)
    if sentence is None:
        whose = f" for {exercise}" if exercise else ""
        raise ValueError(f"id must be that of a hint in {FILE}, got {id!r}{whose}.")
    return Hint(sentence.format(**values) if values else sentence, id)
