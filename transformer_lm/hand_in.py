"""Check a notebook before you submit it: run it in a fresh kernel, and see whether it will be accepted.

    python -m transformer_lm check release/01_self_attention/01_self_attention.ipynb
    hand_in.check("01_self_attention")        at the end of an assignment, the same for the saved notebook

It runs the set-up, your answers, your own cells and the released checks, but no demonstrations, so that it takes only
seconds. Grading runs the same checks with other numbers.
"""

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from transformer_lm.checks.engine.failure import CHECKING, FAILURE
from transformer_lm.checks.engine.source import cells_run, defined_names
from transformer_lm.checks.engine.verdict import Failure
from transformer_lm.checks.topic_04_language_model.training_run import FILE as MODEL_FILE
from transformer_lm.checks.topic_04_language_model.training_run import LARGEST as LARGEST_MODEL
from transformer_lm.course.outlines import Outline, assignments, fingerprint, load_outline
from transformer_lm.course.progress import note_result, progress

CELL_SECONDS = 60
LARGEST = 20_000_000  # bytes, as in grading
WIDTH = 96  # characters in a line of a report


@dataclass(frozen=True)
class Problem:
    """The reason why a cell has stopped: one line, the name of the error, and the failure if a check has failed."""

    text: str
    error: str = ""
    failure: Failure | None = None


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; `problem` is None if it passes."""

    name: str
    points: float
    problem: Problem | None

    @property
    def earned(self) -> float:
        """All points, none, or some if the check gives partial credit."""
        if not self.problem:
            return self.points
        return (self.problem.failure and self.problem.failure.earned) or 0.0


@dataclass(frozen=True)
class Report:
    """The report on a notebook before it is submitted.

    `problems` keep the file from being accepted as it is; `notes` do not. `written` holds the manually graded
    questions, with their points and whether there is an answer.
    """

    assignment: str
    problems: list[str]
    notes: list[str]
    checks: list[CheckResult]
    written: list[tuple[str, float, bool]]

    @property
    def passed(self) -> list[str]:
        """The names of the checks that pass."""
        return [check.name for check in self.checks if not check.problem]

    @property
    def answered(self) -> list[str]:
        """The names of the written questions that have an answer."""
        return [name for name, _, is_there in self.written if is_there]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do."""
        return not self.problems and len(self.passed + self.answered) == len(self.checks + self.written)

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [_line(check, width) for check in self.checks]
        earned = sum(check.earned for check in self.checks)
        possible = sum(check.points for check in self.checks)
        lines += ["", f"Points so far: {earned:g} of {possible:g} by checks."]
        if any(check.problem and not check.points for check in self.checks):
            lines.append("A check of 0 points that fails takes points off: the assignment says how many.")
        if self.written:
            empty = [name for name, _, is_there in self.written if not is_there]
            points = sum(points for _, points, _ in self.written)
            lines.append(f"{points:g} more by manual grading of your written answers; {_empty(empty)}.")
        lines += ["", *self.notes]
        if self.problems:
            lines += ["It would not be accepted as it is:", *(f"- {problem}" for problem in self.problems)]
        elif self.is_complete:
            lines.append("The file is complete and will be accepted.")
        else:
            lines.append("The file will be accepted as it is.")
        return "\n".join(lines)


def _line(check: CheckResult, width: int) -> str:
    sign = "✗" if check.problem else "✓"
    points = f"{check.earned:g} of {check.points:g}" if check.points else ""
    head = f"{sign} {check.name.ljust(width)}  {points.ljust(8)}  "
    text = head + (check.problem.text if check.problem else "")
    return textwrap.fill(text, WIDTH, subsequent_indent=" " * len(head)).rstrip()


def _empty(names: list[str]) -> str:
    return f"still empty: {', '.join(names)}" if names else "all answers are there"


def check(assignment: str) -> None:
    """Check the saved notebook of an assignment in this folder, and show your progress in the course.

    Raises ValueError for an assignment that this copy of the course does not have.
    """
    outline = load_outline(assignment)
    file = Path(f"{assignment}.ipynb")
    if os.environ.get(CHECKING):
        return
    if os.environ.get("NBGRADER_EXECUTION"):
        print("Grading does its own checks.")
        return
    if not file.is_file():
        print(f"There is no {file} in {Path.cwd()}: give the notebook its released name, and run this cell again.")
        return
    unsaved = _unsaved(outline, file)
    if unsaved:
        print(f"The saved file does not have your latest answer to {unsaved}.")
        print("Run the cell of that answer, save the notebook (Ctrl+S), then run this cell again.")
        return
    command = [sys.executable, "-m", "transformer_lm", "check", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if not done.stdout:
        print(done.stderr.strip())
        return
    print(_read_report(done.stdout))
    if sys.modules.get("IPython"):
        from IPython.display import display

        display(progress())


def _read_report(text: str) -> Report:
    table = json.loads(text)
    return Report(**table | {"checks": [_read_result(each) for each in table["checks"]]})


def _read_result(table: dict) -> CheckResult:
    problem = table["problem"]
    if problem:
        failure = problem["failure"] and Failure(**problem["failure"])
        problem = Problem(problem["text"], problem["error"], failure)
    return CheckResult(table["name"], table["points"], problem)


def as_json(report: Report) -> str:
    """Return a report for programs."""
    return json.dumps(asdict(report))


def _unsaved(outline: Outline, file: Path) -> str:
    """Return the name of an answer whose last run differs from the saved file; empty if there is none."""
    import __main__

    inputs = cells_run(vars(__main__))
    saved = {cell["source"].strip() for cell in _read(file)["cells"]}
    for answer in outline.of_kind("answer"):
        names = defined_names(answer.source)
        run = [text for text in inputs if names and names <= defined_names(text)]
        if run and run[-1].strip() not in saved:
            return answer.name
    return ""


def _read(file: Path) -> dict:
    """Return a notebook, with the source of each cell as one text. Raises ValueError if the file is not a notebook."""
    if not file.is_file():
        raise ValueError(f"NOTEBOOK must be a file, got {file}.")
    if file.stat().st_size > LARGEST:
        raise ValueError(f"NOTEBOOK must have at most {LARGEST // 1_000_000} MB, got {file}. Clear its outputs.")
    try:
        notebook = json.loads(file.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
            cell["metadata"].get("nbgrader", {}).get("grade_id")
        return notebook
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"NOTEBOOK must be a Jupyter notebook, got {file}: {error}.") from error


def report_of(file: Path) -> Report:
    """Run a notebook's answers with the released checks, and save the result for the table of progress.

    Raises ValueError if the file is not a notebook, or its assignment is unknown.
    """
    notebook = _read(file)
    outline = load_outline(_assignment_of(file, notebook))
    found, problems, notes = _matched(notebook, outline)
    if file.name != f"{outline.assignment}.ipynb":
        problems.append(f"Its name must be {outline.assignment}.ipynb, got {file.name}.")
    problems += _files_beside(file, outline)
    cells = _to_run(notebook, outline, found)
    outcomes = _outcomes([source for _, _, source in cells], file.resolve().parent)
    problem_of = {}
    for (number, name, _), problem in zip(cells, outcomes, strict=True):
        problem_of[name] = problem
        if problem and not name:
            unknown = problem.error == "NameError"
            notes.append(
                f"Cell {number + 1}, one of your own, stops with {problem.text}"
                + (" (demonstrations, which may define it, are not run here)" if unknown else "")
            )
    checks = [
        CheckResult(each.name, each.points, problem_of.get(each.name, Problem("not run")))
        for each in outline.of_kind("check")
    ]
    for answer in outline.of_kind("answer"):
        names = {each.name for each in outline.checks_of(answer.name)}
        # An answer that is a file counts even if the cell that may have written it fails.
        if outline.names_of(answer.name) and _is_blank(answer.source, found.get(answer.name)):
            checks = [
                replace(each, problem=Problem("not answered yet")) if each.problem and each.name in names else each
                for each in checks
            ]
        elif problem := problem_of.get(answer.name):  # an error in its cell comes before those of its checks
            checks = [
                replace(each, problem=problem) if each.problem and each.name in names else each for each in checks
            ]
    written = [
        (each.name, each.points, not _is_blank(each.source, found.get(each.name)))
        for each in outline.of_kind("written")
    ]
    report = Report(outline.assignment, problems, notes, checks, written)
    try:
        note_result(outline.assignment, report.passed, report.answered)
    except OSError as error:
        notes.append(f"Your progress could not be saved: {error}.")
    return report


def _is_blank(released: str, found: str | None) -> bool:
    """Return whether an answer is missing, empty, or as it was released."""
    return found is None or found.strip() in ("", released.strip())


def _assignment_of(file: Path, notebook: dict) -> str:
    """Return the assignment that a notebook's cells belong to, whatever the file's name."""
    if file.stem in assignments():
        return file.stem
    names = {_name(cell) for cell in notebook["cells"]}
    shared = Counter({each: len(names & {cell.name for cell in load_outline(each).cells}) for each in assignments()})
    assignment, count = shared.most_common(1)[0]
    if count < len(load_outline(assignment).cells) / 4:
        raise ValueError(f"NOTEBOOK must be one of {', '.join(assignments())}, got {file}.")
    return assignment


def _name(cell: dict) -> str:
    """Return the name of a released cell: nbgrader's, or if an editor has lost that, the cell's id."""
    known = cell["metadata"]
    return known.get("nbgrader", {}).get("grade_id") or cell.get("id") or known.get("id", "")  # Colab stores it there


def _matched(notebook: dict, outline: Outline) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the sources of the named cells, the problems with them, and those that grading corrects by itself."""
    names = [_name(cell) for cell in notebook["cells"]]
    found = {name: cell["source"] for name, cell in zip(names, notebook["cells"], strict=True)}
    problems, notes = [], []
    for cell in outline.of_kind("answer", "written"):
        if cell.name not in found:
            problems.append(f"The cell {cell.name} is gone: copy it from a fresh notebook, with all its metadata.")
        elif names.count(cell.name) > 1:
            problems.append(f"The cell {cell.name} occurs {names.count(cell.name)} times: delete all but one.")
    others = [cell.name for cell in outline.of_kind("text", "setup", "check") if cell.name not in found]
    if others:
        notes.append(f"Grading will put back what you have deleted: {', '.join(others)}.")
    return found, problems, notes


def _files_beside(file: Path, outline: Outline) -> list[str]:
    """Return the problems with files that are submitted beside the notebook."""
    if not any(MODEL_FILE in cell.source for cell in outline.of_kind("check")):
        return []
    model = file.parent / MODEL_FILE
    if not model.is_file():
        return [f"{MODEL_FILE} is not beside it."]
    size = model.stat().st_size
    return [f"{MODEL_FILE} must have at most {LARGEST_MODEL:,} bytes, got {size:,}."] if size > LARGEST_MODEL else []


def _to_run(notebook: dict, outline: Outline, found: dict[str, str]) -> list[tuple[int, str, str]]:
    """Return the index, name and source of each cell to run; the student's own cells have no name."""
    released = {cell.name: cell for cell in outline.cells if cell.kind in ("setup", "check")}
    # An answer that is not passed to any check is a file; the cell that writes it may take long.
    answers = {cell.name: cell.source for cell in outline.of_kind("answer") if outline.names_of(cell.name)}
    files = {cell.name for cell in outline.of_kind("answer")} - answers.keys()
    demonstrations = {cell.source for cell in outline.of_kind("free")}
    cells = []
    for number, cell in enumerate(notebook["cells"]):
        name, source = _name(cell), cell["source"]
        if name in released:
            cells.append((number, name, released[name].source))
        elif name in answers:  # left out if unchanged, as in grading: the answer may be in another cell
            cells += [] if _is_blank(answers[name], source) else [(number, name, source)]
        elif cell["cell_type"] == "code" and name not in files and fingerprint(source) not in demonstrations:
            cells.append((number, "", source))
    missing = [cell for name, cell in released.items() if name not in found]
    setup, checks = ([cell for cell in missing if cell.kind == kind] for kind in ("setup", "check"))
    return [
        *((0, cell.name, cell.source) for cell in setup),
        *cells,
        *((len(notebook["cells"]), cell.name, cell.source) for cell in checks),
    ]


def _outcomes(sources: list[str], folder: Path) -> list[Problem | None]:
    """Run cells in a fresh kernel, in order; return the problem of each, or None if there is none."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from nbformat import v4
    from tqdm import tqdm
    from traitlets.config import Config

    notebook = v4.new_notebook(cells=[v4.new_code_cell(source) for source in sources])
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=CELL_SECONDS,
        interrupt_on_timeout=True,
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),  # else each kernel warns about listeners
    )
    problems: list[Problem | None] = []
    dead = False
    with client.setup_kernel(env=os.environ | {CHECKING: "1"}):
        for number, cell in enumerate(tqdm(notebook.cells, unit="cell", leave=False, disable=None)):
            if dead:
                problems.append(Problem("not run: the kernel had died"))
                continue
            try:
                client.execute_cell(cell, number)
                problems.append(_problem(cell))
            except CellTimeoutError:
                problems.append(Problem(f"it was stopped after {CELL_SECONDS} seconds"))
            except DeadKernelError:
                dead = True
                problems.append(Problem("it killed the kernel"))
    return problems


def _problem(cell: dict) -> Problem | None:
    """Return the reason why a cell has stopped, in one line; the hint if a check has failed."""
    shown = [output["data"][FAILURE] for output in cell["outputs"] if FAILURE in output.get("data", {})]
    for output in cell["outputs"]:
        if output["output_type"] == "error":
            name, lines = output["ename"], [line for line in output["evalue"].splitlines() if line.strip()] or [""]
            if name == "KeyboardInterrupt":
                return Problem(f"it was stopped after {CELL_SECONDS} seconds", name)
            if shown:
                failure = Failure.from_table(shown[-1])
                yours = f"{failure.yours[:1].upper()}{failure.yours[1:]}. " if failure.earned is not None else ""
                return Problem(yours + failure.hint, name, failure)
            return Problem(f"{name}: {lines[0]}".rstrip(": "), name)
    return None
