"""Reads and repairs a submission, so that grading finds each released cell once, in order, as it was released.

A cell is marked if nbgrader knows it by a `grade_id`. Marked texts and checks are locked; answers are the student's.
All other cells are the student's too, including the released demonstrations.
"""

import difflib
import json
import math
import re
import stat
from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.validator import get_validator
from nbgrader.utils import is_locked

from grading.isolation.faults import is_machines

# No honest notebook reaches these limits. Without them, reading a small file could take hours or all memory.
MAX_BYTES = 20_000_000
MAX_BRACKETS = 2_000_000  # { and [, each of which may become a list or a dict
MAX_CELLS = 2_000
MAX_OUTPUTS = 5_000  # of all cells
MAX_METADATA = 100_000  # characters of one entry
MAX_OLD_CHARACTERS = 2_000_000  # of a notebook in a format before 4, which takes long to convert
MAX_DEPTH = 100  # deeper nesting can be read, but then copying or writing may fail
OUTPUT_CHARACTERS = 1_000_000
# Metadata that is kept. Other entries could mislead the programs that turn notebooks into pages.
CELL_METADATA = ("nbgrader", "tags", "deletable", "editable", "collapsed", "scrolled", "jupyter", "name", "format")
METADATA = ("kernelspec", "language_info", "title", "authors", "widgets", "grading")
OUTPUT_FIELDS: dict[str, dict[str, Any]] = {
    "stream": {"name": "stdout", "text": ""},
    "display_data": {"data": {}, "metadata": {}},
    "execute_result": {"data": {}, "metadata": {}, "execution_count": None},
    "error": {"ename": "", "evalue": "", "traceback": []},
}
HIDING_TAGS = {f"remove{dash}{part}" for dash in "-_" for part in ("cell", "input", "output")}
STOPPING_TAGS = {"skip-execution", "raises-exception", "nbval-skip"} | HIDING_TAGS
# Unlike a parser, this also finds the names in answers with magics or syntax errors.
DEFINITION = re.compile(r"^(async def|def|class)[ \t]+(\w+)|^(\w+)[ \t]*=(?!=)", re.MULTILINE)

# Each works for one cell or many, and quotes nothing that a student wrote.
SENTENCES = {
    "language": "The notebook was set to a language other than Python: it has the released kernel again.",
    "lost": "{} had lost the nbgrader metadata: marked again as released.",
    "guessed": "{} had lost the id and the nbgrader metadata: recognised by text, names or position.",
    "remarked": "{} had other nbgrader metadata: set back as released.",
    "deleted": "{} had been deleted: put back as released.",
    "answers": "{} occurred more than once: the last one that was changed counts, others are now ordinary cells.",
    "copies": "{} occurred more than once: the copies are dropped.",
    "retyped": "{} had another cell type: set back as released.",
    "edited": "{} had been edited, though locked: set back as released.",
    "moved": "{} had been moved: put back in the released order, with the added cells that followed.",
    "invented": "Added cells had nbgrader metadata: removed, so that only released cells are graded.",
    "tags": "Some cells had tags that stop or hide them: these tags are removed.",
}

Cells = list[NotebookNode]
Marked = dict[str, NotebookNode]  # the marked cells of the release, by grade_id
Found = dict[str, list[int]]  # for each of them, its positions in the submission
Notes = defaultdict[str, list[str]]  # for each kind of problem, the affected cells


@dataclass(frozen=True)
class Seen:
    """The features by which a submitted cell is recognised."""

    cell_type: str
    text: str
    definitions: frozenset[tuple[str, ...]]


class UnreadableSubmission(Exception):
    """The submitted file is not a notebook; the text tells the instructor why."""


def read_submission(path: Path, limit: int = OUTPUT_CHARACTERS, is_ours: bool = False) -> NotebookNode:
    """Return a submitted notebook in format 4.5, with invalid parts repaired or left out.

    The outputs of a cell are cut after `limit` characters, with a line that says so. A notebook that `is_ours`, because
    it was repaired before, may have any size.

    Raises UnreadableSubmission if the file is not a notebook.
    """
    try:
        notebook = _upgraded(_parsed(path, is_ours))
        if len(notebook["cells"]) > MAX_CELLS and not is_ours:
            raise UnreadableSubmission(f"a notebook of more than {MAX_CELLS:,} cells")
    except UnreadableSubmission as reason:
        raise UnreadableSubmission(f"{path.name} must be a Jupyter notebook, got {reason}.") from reason.__cause__
    cells, outputs_left = [], MAX_OUTPUTS
    for cell in (cell for cell in notebook["cells"] if isinstance(cell, dict)):
        cells.append(_mended_cell(cell, limit, outputs_left))
        outputs_left = max(0, outputs_left - len(cells[-1].get("outputs", ())))
    _make_ids_unique(cells)
    metadata = _known(notebook.get("metadata"), METADATA)
    valid = {key: value for key, value in metadata.items() if _is_valid([], {key: value})}
    return nbformat.v4.to_notebook_json(_notebook(cells, valid))


def repair(submitted: NotebookNode, released: NotebookNode) -> list[str]:
    """Repair a submission in place and return the repairs, one sentence for each kind of problem.

    Afterwards it has the released marked cells once each, in the released order and with the released metadata, and the
    student's cells after the same cells as before. Both notebooks are in format 4.5, as returned by `read_submission`.
    """
    notes: Notes = defaultdict(list)
    marked = {_grade_id(cell): cell for cell in released.cells if _grade_id(cell)}
    found = _find(submitted.cells, marked, notes)
    _unmark_others(submitted.cells, found, notes)
    counting, older = _choose(submitted.cells, found, marked, notes)
    _note_moved(counting, notes)
    for grade_id, position in counting.items():
        _restore(submitted.cells[position], marked[grade_id], notes)
    copies = {*chain(*found.values())} - {*counting.values(), *older}
    submitted.cells = _in_order(submitted.cells, released.cells, counting, older, copies)
    _make_ids_unique(sorted(submitted.cells, key=lambda cell: _grade_id(cell) is None))  # marked cells keep theirs
    _set_metadata(submitted.cells, released.cells, notes)
    _note_language(submitted.metadata, notes)
    submitted.metadata = deepcopy(released.metadata)
    return [sentence.format(_in_words(notes[kind], len(marked))) for kind, sentence in SENTENCES.items() if notes[kind]]


# Reading.


def _parsed(path: Path, is_ours: bool) -> Any:
    """Return the JSON of a file, without lone surrogates: JSON may hold them, a file may not."""
    try:
        return json.loads(_sound_json(_content(path, is_ours), is_ours))
    except FileNotFoundError as error:
        raise UnreadableSubmission("no file") from error
    except OSError as error:
        if is_machines(error):
            raise
        raise UnreadableSubmission(f"a file that cannot be opened ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UnreadableSubmission("a file that is not text") from error
    except ValueError as error:
        raise UnreadableSubmission(f"broken JSON ({error})") from error
    except (RecursionError, MemoryError) as error:
        raise UnreadableSubmission("JSON that is too large or too deeply nested") from error


def _content(path: Path, is_ours: bool) -> bytes:
    """Return the content of a file, unless it is too large or not a regular file: a pipe would never end."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise UnreadableSubmission("a link to another file")
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableSubmission("no file")
    if status.st_size > MAX_BYTES and not is_ours:
        raise UnreadableSubmission(f"a file of more than {MAX_BYTES // 1_000_000} MB")
    with path.open("rb") as file:
        return file.read()


def _sound_json(data: bytes, is_ours: bool) -> bytes:
    """Return JSON without lone surrogates and non-finite numbers, and not too deeply nested."""
    if not data.strip():
        raise UnreadableSubmission("an empty file")
    if data.count(b"{") + data.count(b"[") > MAX_BRACKETS and not is_ours:
        raise MemoryError
    parsed = json.loads(data)
    if _is_deeper(parsed, MAX_DEPTH):
        raise RecursionError
    return json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def _is_deeper(value: Any, depth: int) -> bool:
    """Return, without recursion, whether lists and dicts are nested more deeply than this."""
    level: list[dict | list] = [[value]]
    for _ in range(depth + 1):
        inner = chain.from_iterable(part.values() if isinstance(part, dict) else part for part in level)
        level = [part for part in inner if isinstance(part, dict | list)]
    return bool(level)


def _upgraded(notebook: Any) -> dict[str, Any]:
    """Return a notebook of the formats 1 to 3 in format 4, and any other as it is."""
    version = _dict(notebook).get("nbformat")
    if type(version) is int and 1 <= version <= 3:
        if len(json.dumps(notebook)) > MAX_OLD_CHARACTERS:
            raise UnreadableSubmission(
                f"a notebook of format {version} with more than {MAX_OLD_CHARACTERS:,} characters"
            )
        try:
            notebook = nbformat.convert(nbformat.versions[version].to_notebook_json(notebook), 4)
            for cell in notebook["cells"]:
                del cell["id"]  # ids are random, and reading twice must give the same
        except Exception as error:  # nbformat may raise anything
            raise UnreadableSubmission(f"a notebook of format {version} that cannot be converted") from error
    if not isinstance(_dict(notebook).get("cells"), list):
        raise UnreadableSubmission("JSON without a list of cells")
    return notebook


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _notebook(cells: list[dict[str, Any]], metadata: dict[str, Any]) -> dict[str, Any]:
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _is_valid(cells: list[dict[str, Any]], metadata: dict[str, Any] | None = None) -> bool:
    """Return whether a notebook with these cells and this metadata follows the schema."""
    return not get_validator(4, 5, name="fastjsonschema").iter_errors(_notebook(cells, metadata or {}))


def _known(metadata: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the entries with these names that are not too large."""
    found = {name: metadata[name] for name in names if name in _dict(metadata)}
    return {name: value for name, value in found.items() if len(json.dumps(value)) <= MAX_METADATA}


def _mended_cell(cell: dict[str, Any], limit: int, most_outputs: int) -> dict[str, Any]:
    """Return the valid parts of a cell; an unknown type becomes raw, and a missing id becomes "cell"."""
    kind = cell["cell_type"] if cell.get("cell_type") in ("code", "markdown") else "raw"
    mended: dict[str, Any] = {"id": "cell", "cell_type": kind, "metadata": {}, "source": _joined(cell.get("source"))}
    if kind == "code":
        mended |= {"outputs": [], "execution_count": None}
    fields = {"id": _dict(cell.get("metadata")).get("id")} | cell  # Colab may write the id there
    fields = {field: fields[field] for field in ("id", "execution_count", "attachments") if field in fields}
    # Each entry is validated in an otherwise empty cell, because validating all together takes quadratic time.
    bare = mended | {"source": ""}
    valid = {field: value for field, value in fields.items() if _is_valid([bare | {field: value}])}
    metadata = _known(cell.get("metadata"), CELL_METADATA)
    metadata = {key: value for key, value in metadata.items() if _is_valid([bare | {"metadata": {key: value}}])}
    if kind == "code" and isinstance(cell.get("outputs"), list):
        mended["outputs"] = _mended_outputs(cell["outputs"], bare, limit, most_outputs)
    return mended | valid | {"metadata": metadata}


def _mended_outputs(outputs: list[Any], cell: dict[str, Any], limit: int, most: int) -> list[dict[str, Any]]:
    """Return the outputs that are allowed in this cell, up to a number of outputs and of characters."""
    kept: list[dict[str, Any]] = []
    left = limit
    for number, output in enumerate(map(_dict, outputs)):
        if number >= most:
            return [*kept, _cut(f"{MAX_OUTPUTS:,} outputs of all cells")]
        kind = str(output.get("output_type"))
        mended = {field: output.get(field, default) for field, default in OUTPUT_FIELDS.get(kind, {}).items()}
        if kind == "stream":
            mended["text"] = _joined(mended["text"])
        size = len(json.dumps(mended, ensure_ascii=False))
        if size > left:
            return [*kept, _cut(f"{limit:,} characters", mended.get("text", "")[:left])]
        if _is_valid([cell | {"outputs": [{"output_type": kind} | mended]}]):
            kept.append({"output_type": kind} | mended)
            left -= size
    return kept


def _cut(limit: str, text: str = "") -> dict[str, Any]:
    """Return the output that says why others are missing, after the beginning of the first missing one."""
    note = f"{text}\n[The outputs of this cell are cut here: {limit}.]\n"
    return {"output_type": "stream", "name": "stdout", "text": note}


def _joined(text: Any) -> str:
    """Return a text that may be stored as a list of lines."""
    return "".join(part for part in (text if isinstance(text, list) else [text]) if isinstance(part, str))


def _make_ids_unique(cells: list[dict[str, Any]]) -> None:
    """Give a new id to each cell whose id is used by an earlier cell."""
    taken, seen = {cell["id"] for cell in cells}, set()
    fresh = (name for name in map("cell-{}".format, count(1)) if name not in taken)
    for cell in cells:
        if cell["id"] in seen:
            cell["id"] = next(fresh)
        seen.add(cell["id"])


# Repairing.


def _grade_id(cell: Any) -> Any:
    return _dict(cell.metadata.get("nbgrader")).get("grade_id")


def _text(cell: NotebookNode) -> str:
    """Return the source without trailing spaces and without empty lines at its ends, which editors change."""
    return "\n".join(line.rstrip() for line in cell.source.split("\n")).strip("\n")


def _find(cells: Cells, marked: Marked, notes: Notes) -> Found:
    """Return the positions of each marked cell, by the most reliable evidence available."""
    # In JupyterLab, a grade_id can be edited, but not an id. If they disagree, the id is right.
    by_id = {original.id: grade_id for grade_id, original in marked.items()}
    names = [by_id.get(cell.id, _grade_id(cell)) for cell in cells]
    found = {grade_id: [at for at, name in enumerate(names) if name == grade_id] for grade_id in marked}
    if all(found.values()):
        return found
    seen = [Seen(cell.cell_type, _text(cell), _definitions(cell)) for cell in cells]  # once, however many are missing
    for look in (_by_content, _by_place):
        for grade_id in [grade_id for grade_id in marked if not found[grade_id]]:
            taken = {*chain(*found.values())}
            free = {at: cell for at, cell in enumerate(seen) if at not in taken}
            found[grade_id] = look(marked[grade_id], free, found)
            notes["guessed"] += [grade_id] if found[grade_id] else []
    return found


def _definitions(cell: NotebookNode) -> frozenset[tuple[str, ...]]:
    return frozenset(DEFINITION.findall(cell.source)) if cell.cell_type == "code" else frozenset()


def _by_content(original: NotebookNode, free: dict[int, Seen], found: Found) -> list[int]:
    """Find the first cell with a locked cell's text, or all cells that define the names an answer must define."""
    if is_locked(original):
        text = _text(original)
        return [at for at, cell in free.items() if cell.text == text][:1]
    asked = _definitions(original)
    return [at for at, cell in free.items() if not asked.isdisjoint(cell.definitions)]


def _by_place(original: NotebookNode, free: dict[int, Seen], found: Found) -> list[int]:
    """Find a written answer between its neighbours, as the last changed text there."""
    if is_locked(original) or original.cell_type != "markdown":
        return []
    index = list(found).index(_grade_id(original))
    places = list(found.values())
    start = next((positions[-1] for positions in reversed(places[:index]) if positions), -1)
    end = next((positions[0] for positions in places[index:] if positions), math.inf)
    between = [at for at, cell in free.items() if start < at < end and cell.cell_type == "markdown"]
    text = _text(original)
    return sorted(between, key=lambda at: free[at].text != text)[-1:]


def _unmark_others(cells: Cells, found: Found, notes: Notes) -> None:
    """Remove the marks of the cells that the student added."""
    known = {*chain(*found.values())}
    for cell in [cell for at, cell in enumerate(cells) if at not in known]:
        notes["invented"] += [cell.id] if _grade_id(cell) else []
        cell.metadata.pop("nbgrader", None)


def _choose(cells: Cells, found: Found, marked: Marked, notes: Notes) -> tuple[dict[str, int], dict[int, str]]:
    """Return the position that counts for each marked cell; its other answers become ordinary cells."""
    counting: dict[str, int] = {}
    older: dict[int, str] = {}
    for grade_id, positions in found.items():
        original = marked[grade_id]
        changed = [at for at in positions if not is_locked(original) and _text(cells[at]) != _text(original)]
        running = [at for at in changed if cells[at].cell_type == original.cell_type]
        released = [at for at in positions if cells[at].id == original.id]
        if positions:
            counting[grade_id] = (running or changed or released or positions)[-1]
        older |= {at: grade_id for at in changed if at != counting[grade_id]}
        if len(positions) != 1:
            notes["deleted" if not positions else "answers" if len(changed) > 1 else "copies"].append(grade_id)
    for at in older:
        cells[at].metadata.pop("nbgrader", None)
    return counting, older


def _note_moved(counting: dict[str, int], notes: Notes) -> None:
    """Note the cells that were moved, relative to most of the others."""
    released, submitted = list(counting), sorted(counting, key=counting.__getitem__)
    blocks = difflib.SequenceMatcher(None, released, submitted, autojunk=False).get_matching_blocks()
    stayed = {grade_id for start, _, size in blocks for grade_id in released[start : start + size]}
    notes["moved"] += [grade_id for grade_id in released if grade_id not in stayed]


def _restore(cell: NotebookNode, original: NotebookNode, notes: Notes) -> None:
    """Give a marked cell its released id, type and marks, and its released text if it is locked."""
    grade_id, marks = _grade_id(original), cell.metadata.get("nbgrader")
    if cell.cell_type != original.cell_type:
        notes["retyped"].append(grade_id)
        for field in ("attachments",) if original.cell_type == "code" else ("outputs", "execution_count"):
            cell.pop(field, None)
        cell.update({"outputs": [], "execution_count": None} if original.cell_type == "code" else {})
        cell.cell_type = original.cell_type
    if is_locked(original):
        notes["edited"] += [grade_id] if _text(cell) != _text(original) else []
        cell.source = original.source
    if marks != original.metadata.nbgrader and grade_id not in notes["guessed"]:
        notes["remarked" if marks else "lost"].append(grade_id)
    cell.metadata["nbgrader"] = deepcopy(original.metadata.nbgrader)
    cell.id = original.id


def _in_order(
    cells: Cells, released: Cells, counting: dict[str, int], older: dict[int, str], copies: set[int]
) -> Cells:
    """Return all cells but the copies: marked cells in the released order, each with the cells that followed it."""
    ranks = {_grade_id(cell): rank for rank, cell in enumerate(released)}
    heads = {position: ranks[grade_id] for grade_id, position in counting.items()}
    places: list[tuple[float, float]] = []  # after which released cell, and in which order there
    for position in range(len(cells)):
        places.append((heads.get(position, places[-1][0] if places else -1), position))
    for position, grade_id in older.items():
        if position < counting[grade_id] and places[position][0] > ranks[grade_id]:  # it would override that answer
            places[position] = (ranks[grade_id] - 0.5, position)
    placed = [(places[position], cell) for position, cell in enumerate(cells) if position not in copies]
    last: tuple[float, float] = (-1, -1)
    for cell in released:
        grade_id = _grade_id(cell)
        if grade_id in counting:
            last = places[counting[grade_id]]
        elif grade_id:
            placed.append(((last[0], last[1] + 0.5), deepcopy(cell)))
        else:  # a demonstration: cells deleted after it are put back after it, if it is still there
            last = max([last, *(place for place, other in placed if other.id == cell.id and place[0] == last[0])])
    return [cell for _, cell in sorted(placed, key=lambda item: item[0])]


def _set_metadata(cells: Cells, released: Cells, notes: Notes) -> None:
    """Give released cells their released metadata, and leave others only their tags.

    Many other entries affect how a page shows a cell, and one of them could hide an answer, or all cells, from the
    instructor.
    """
    ours = {(cell.id, cell.cell_type): cell.metadata for cell in released}
    for cell in cells:
        original = ours.get((cell.id, cell.cell_type), {})
        tags = cell.metadata.get("tags", [])
        kept = [tag for tag in tags if tag not in STOPPING_TAGS or tag in original.get("tags", [])]
        notes["tags"] += [cell.id] if kept != tags else []
        cell.metadata = NotebookNode(deepcopy(original) or ({"tags": kept} if kept else {}))


def _note_language(metadata: NotebookNode, notes: Notes) -> None:
    """Note if the language was not Python."""
    languages = (metadata.get("kernelspec", {}).get("language"), metadata.get("language_info", {}).get("name"))
    notes["language"] += [language for language in languages if language and "python" not in str(language).lower()]


def _in_words(grade_ids: list[str], total: int) -> str:
    """Return the subject of a sentence."""
    names = ", ".join(f"`{grade_id}`" for grade_id in grade_ids[:3])
    if len(grade_ids) == 1:
        return f"The cell {names}"
    if len(grade_ids) == total:
        return f"All {total} marked cells"
    return f"The cells {names}" if len(grade_ids) <= 3 else f"{len(grade_ids)} of {total} marked cells ({names}, …)"
