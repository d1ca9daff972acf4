"""The exercises of the course, found by path: `topic_NN_name/exercise_id.py` holds the record of one exercise."""

import functools
from collections.abc import Callable, Iterable
from types import ModuleType

from grading.isolation.student_edition import marked_answers
from grading.judging.record import Record, ValueRecord
from transformer_lm.answers import hidden_while_open, sealed_while_open
from transformer_lm.checks.engine.places import modules_by_topic
from transformer_lm.course.outlines import assignments, load_outline


@functools.cache
def topics() -> dict[str, tuple[Record, ...]]:
    """Return the records of each topic by its name, such as `01_self_attention`, in the order of the course.

    Within a topic, records are in the order of the cells of the released assignment. Unreleased exercises come last.
    """
    found = {}
    for topic, modules in modules_by_topic(__name__).items():
        cells = [cell.name for cell in load_outline(topic).cells] if topic in assignments() else []
        records = [record for record in map(_record_in, modules) if record]
        found[topic] = tuple(sorted(records, key=functools.partial(_place_in, cells)))
    return found


def _place_in(cells: list[str], record: Record) -> int:
    """Return the index of an exercise's first check among an assignment's cells, or their number if it has none."""
    return min((cells.index(part.name) for part in record.parts if part.name in cells), default=len(cells))


def _record_in(module: ModuleType) -> Record | None:
    """Return the record of the exercise that a module is named after, or None for a module that exercises share.

    Raises ValueError if the module holds an exercise with another name.
    """
    exercise = module.__name__.rpartition(".")[2].replace("_", "-")
    found = {value.id: value for value in vars(module).values() if isinstance(value, Record)}
    if found and exercise not in found:
        raise ValueError(f"{module.__name__} must be named after its exercise, got a record of {', '.join(found)}.")
    return found.get(exercise)


@functools.cache
def records() -> dict[str, Record]:
    """Return every exercise's record by its id, in the order of the course."""
    return {record.id: record for topic in topics().values() for record in topic}


def value_records() -> dict[str, ValueRecord]:
    """Return the records of the exercises whose answers compute numbers, by their ids."""
    return {exercise: record for exercise, record in records().items() if isinstance(record, ValueRecord)}


def topic_of(exercise: str) -> str:
    """Return the topic that an exercise belongs to."""
    return next(topic for topic, found in topics().items() if exercise in {record.id for record in found})


def hidden_from(topic: str) -> dict[str, str]:
    """Return the names that the students' package must not hold while a topic is open, with the exercises they answer.

    Answers to this topic and later ones are hidden; answers to earlier topics can be used. Answers to this topic that
    the package itself needs are sealed instead.
    """
    later = [name for name in topics() if name > topic]
    return _marked(hidden_while_open, [topic, *later]) | _marked(sealed_while_open, later)


def sealed_in(topic: str) -> dict[str, str]:
    """Return the names that the students' package runs but hides while a topic is open, with the exercises they answer.

    Nothing is sealed in the assignments of other courses.
    """
    return _marked(sealed_while_open, [topic])


def hidden_from_answers(topic: str) -> dict[str, str]:
    """Return the names that the package must not contain where answers to a topic are judged, sealed ones included."""
    return hidden_from(topic) | sealed_in(topic)


def _marked(mark: Callable, open_topics: Iterable[str]) -> dict[str, str]:
    """Return the marked names that answer exercises of these topics, each with the last of these exercises."""
    marked = marked_answers(mark.__name__)
    answered = {exercise for exercises in marked.values() for exercise in exercises}
    if unknown := answered - records().keys():
        raise ValueError(f"{mark.__name__} must name exercises, got {', '.join(sorted(unknown))}.")
    still_open = [record.id for topic in open_topics for record in topics().get(topic, ())]
    return {
        name: max(set(exercises) & set(still_open), key=still_open.index)
        for name, exercises in marked.items()
        if set(exercises) & set(still_open)
    }
