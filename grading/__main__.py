"""The commands for instructors and for authors of exercises."""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from grading.exercises import records, topic_of, value_records
from grading.isolation.answers import Cell
from grading.isolation.sandbox import IsolationIncomplete, missing_walls
from grading.processes.workers import answer_server

if TYPE_CHECKING:
    from grading.runs.class_run import ClassRun

REDUCED = "--reduced-isolation"
KEPT = "Finished work is kept; run the same command again to continue."


def main() -> None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(prog="python -m grading", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(commands.add_parser("run", help="grade an assignment of a class"))
    _add_report(commands.add_parser("report", help="count the mistakes of a class"))
    _add_try(commands.add_parser("try", help="say what an answer would get, and why"))
    _add_new(commands.add_parser("new", help="write the files and cells of a new exercise"))
    _add_prove(commands.add_parser("prove", help="prove that wrong answers are refused and right ones accepted"))
    _add_mutate(commands.add_parser("mutate", help="find machine-made wrong answers that are accepted"))
    _add_freeze(commands.add_parser("freeze", help="write the frozen values that students check against"))
    _add_totals(commands.add_parser("totals", help="write each assignment's points and minutes where people read them"))
    _add_outline(commands.add_parser("outline", help="write the outlines of the release that students' own checks use"))
    _add_bundle(commands.add_parser("bundle", help="write the zip that students get"))
    arguments = parser.parse_args()
    if getattr(arguments, "reduced_isolation", False) and missing_walls():
        print(f"REDUCED ISOLATION: this machine lacks {'; '.join(missing_walls())}.", file=sys.stderr)
    try:
        sys.exit(arguments.command_function(arguments))
    except IsolationIncomplete as incomplete:
        sys.exit(f"{incomplete} To go on without it, trusting every submission: {REDUCED}")
    except KeyboardInterrupt:
        sys.exit("Interrupted.")


def _add_reduced(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(REDUCED, action="store_true", help="go on where students' code can't be isolated fully")


def _add_workers(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--workers", type=_positive, metavar="N", help="number of worker processes (default: one per core)"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}.")
    return number


def _exercise(text: str) -> str:
    if text not in records():
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(records())}, got {text}.")
    return text


def _add_exercises(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("exercises", nargs="*", type=_exercise, metavar="EXERCISE", help="default: all of them")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="ASSIGNMENT", help="such as 01_self_attention")
    parser.add_argument("--students", nargs="+", metavar="STUDENT", help="only these")
    parser.add_argument("--force", action="store_true", help="grade again even if already graded")
    parser.add_argument("--rerun", action="store_true", help="execute each notebook again for fresh outputs")
    parser.add_argument("--csv", type=Path, metavar="FILE", default=Path("grades.csv"), help="default: grades.csv")
    where = parser.add_mutually_exclusive_group()
    _add_workers(where)
    where.add_argument("--cluster", metavar="ADDRESS", help="judge on the workers of this dask scheduler instead")
    _add_reduced(parser)
    parser.set_defaults(command_function=_run)


def _run(arguments: argparse.Namespace) -> int:
    from traitlets import TraitError

    from grading.isolation.faults import MachineFault
    from grading.nbgrader_steps.gradebook import GradebookLost
    from grading.nbgrader_steps.late import renew_penalties_of_course
    from grading.runs.class_run import ClassRun
    from grading.runs.cluster import ClusterUnusable

    if missing_walls() and not arguments.reduced_isolation and not arguments.cluster:
        raise IsolationIncomplete(list(missing_walls()))
    try:
        run = ClassRun(
            Path.cwd(), arguments.assignment, arguments.students, arguments.reduced_isolation, arguments.rerun
        )
        renew_penalties_of_course(Path.cwd(), arguments.assignment)  # grades of submissions that are already graded
    except (ValueError, TraitError, GradebookLost) as error:
        sys.exit(str(error))
    try:
        return _grade(run, arguments)
    except (ClusterUnusable, GradebookLost, MachineFault) as error:
        sys.exit(f"{error} {KEPT}")
    except KeyboardInterrupt:
        sys.exit(f"Interrupted. {KEPT}")


def _grade(run: "ClassRun", arguments: argparse.Namespace) -> int:
    """Grade the submissions that need it, then print all grades and write them to a file."""
    from grading.nbgrader_steps.late import why_no_penalty
    from grading.results.pages import printable
    from grading.runs.class_run import table

    to_do = run.to_do(arguments.force)
    if len(to_do) < len(run.students):
        print(f"{len(run.students) - len(to_do)} of {len(run.students)} are graded already; --force grades them again.")
    if run.outdated:
        print(f"The grading of {run.assignment} has changed. Grading {len(run.outdated)} again.")
    with tqdm(total=len(to_do), unit="submission", disable=None if to_do else True) as bar:
        for student in run.grade(to_do, arguments.workers, arguments.cluster):
            bar.update()
            bar.set_postfix_str(printable(student))
    print(table(run.rows()))
    for sentence in why_no_penalty(run.root, run.assignment):
        print(sentence)
    for student, reason in run.left.items():
        print(printable(f"Not graded: {student}: {reason}"))
    if run.left:
        print(f"{len(run.left)} of {len(to_do)} could not be graded. Run the same command to try again.")
    try:
        run.write_csv(arguments.csv)
    except OSError as error:
        sys.exit(f"--csv must be a file that can be written, got {arguments.csv}: {error.strerror}. Grades are saved.")
    print(f"Grades: {arguments.csv}. Feedback: nbgrader generate_feedback {arguments.assignment}")
    return 1 if run.left else 0


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="ASSIGNMENT", help="such as 01_self_attention")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write it as a page")
    parser.add_argument("--names", action="store_true", help="list who made each mistake")
    parser.set_defaults(command_function=_report)


def _report(arguments: argparse.Namespace) -> int:
    from grading.nbgrader_steps.gradebook import GradebookLost
    from grading.results.class_report import as_page, as_text, class_report

    try:
        report = class_report(Path.cwd(), arguments.assignment)
    except (ValueError, GradebookLost) as error:
        sys.exit(str(error))
    print(as_text(report, arguments.names))
    if arguments.html:
        arguments.html.write_text(as_page(report, arguments.names), encoding="utf-8")
        print(f"\nPage: {arguments.html}")
    return 0


def _add_try(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("exercise", type=_exercise, metavar="EXERCISE", help=f"one of {', '.join(records())}")
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE.py",
        help="the text of the solution cell with its imports; files submitted with it must be in the same folder",
    )
    parser.add_argument("--json", action="store_true", help="print points and messages as JSON")
    parser.add_argument("--seed", type=int, help="draw the same inputs again")
    _add_reduced(parser)
    parser.set_defaults(command_function=_try)


def _try(arguments: argparse.Namespace) -> int:
    from grading.judging.judge import judge
    from grading.results.pages import printable

    try:
        source = arguments.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"FILE.py must be a text file, got {arguments.file}: {error}.")
    server = answer_server(topic_of(arguments.exercise), arguments.reduced_isolation)
    folder = arguments.file.absolute().parent
    result = judge(records()[arguments.exercise], [Cell(0, source)], server, arguments.seed, folder=folder)
    if arguments.json:
        print(json.dumps(result.as_table(), indent=2, ensure_ascii=False))
        return 0
    print(f"{result.exercise}: {result.points:g} of {result.max_points:g} points")
    for part in result.parts:
        message = "\n".join(map(printable, part.message.split("\n")))
        print(f"\n{part.name}: {part.points:g} of {part.max_points:g}\n{message}")
    return 0


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("exercise", metavar="EXERCISE", help="its id, such as causal-mask")
    parser.add_argument("--topic", required=True, metavar="TOPIC", help="such as 02_multi_head_attention")
    parser.set_defaults(command_function=_new)


def _new(arguments: argparse.Namespace) -> int:
    from grading.authoring.new import write_exercise

    try:
        files = write_exercise(arguments.exercise, arguments.topic, Path.cwd())
    except ValueError as error:
        sys.exit(str(error))
    print("Files to edit:")
    for file in files:
        print(f"  {file.relative_to(Path.cwd())}")
    commands = [f"python -m grading {command} {arguments.exercise}" for command in ("freeze", "prove")]
    print("\n".join(["Then:", *(f"  {command}" for command in commands), "  make release"]))
    return 0


def _add_prove(parser: argparse.ArgumentParser) -> None:
    _add_exercises(parser)
    parser.add_argument("--every-seed", action="store_true", help="try wrong answers with every seed, too")
    _add_workers(parser)
    _add_reduced(parser)
    parser.set_defaults(command_function=_prove)


def _prove(arguments: argparse.Namespace) -> int:
    from grading.authoring.prove import SEEDS, prove, trials

    exercises = arguments.exercises or list(records())
    tried = list(trials(exercises, arguments.reduced_isolation, arguments.every_seed))
    faults = []
    for trial, fault in tqdm(prove(tried, arguments.workers), total=len(tried), unit="answer", disable=None):
        if fault:
            faults.append(f"{trial.exercise}, {trial.kind} answer {trial.name!r}, seed {trial.seed}: {fault}")
    for exercise in exercises:
        answers = {(trial.kind, trial.name) for trial in tried if trial.exercise == exercise}
        counts = Counter(kind for kind, _ in answers)
        print(f"{exercise}: {counts['wrong']} wrong, {counts['right']} right, {counts['blank']} blank answers")
    print("\n".join(faults) or f"All {len(tried)} grades are right, over {len(SEEDS)} seeds.")
    if faults:
        print(f"{len(faults)} of {len(tried)} grades are wrong.")
    return 1 if faults else 0


def _add_mutate(parser: argparse.ArgumentParser) -> None:
    _add_exercises(parser)
    parser.add_argument(
        "--sample", type=_positive, metavar="N", help="try about N mutants of each exercise (default: all)"
    )
    parser.add_argument("--turn", type=int, default=0, help="which mutants --sample takes; each turn takes others")
    parser.add_argument("--verbose", action="store_true", help="also list the equivalent mutants")
    parser.add_argument("--json", action="store_true", help="print the table and the survivors as JSON")
    _add_workers(parser)
    _add_reduced(parser)
    parser.set_defaults(command_function=_mutate)


def _mutate(arguments: argparse.Namespace) -> int:
    from grading.authoring.mutate import SURVIVOR, as_json, as_text, is_mutated, judged, tasks

    chosen = arguments.exercises or list(records())
    exercises = [exercise for exercise in chosen if is_mutated(records()[exercise])]
    left_out = [exercise for exercise in chosen if exercise not in exercises]
    if left_out:
        print(f"Left out, because their answers are results and not code: {', '.join(left_out)}.", file=sys.stderr)
    tried = [
        task
        for exercise in exercises
        for task in tasks(exercise, arguments.reduced_isolation, arguments.sample, arguments.turn)
    ]
    found, survivors, interrupted = [], 0, False
    with tqdm(total=len(tried), unit="mutant", disable=None) as bar:
        try:
            for task, verdict in judged(tried, arguments.workers):
                found.append((task, verdict))
                survivors += verdict.kind == SURVIVOR
                bar.update()
                bar.set_postfix(survivors=survivors)
        except KeyboardInterrupt:
            interrupted = True
    print(as_json(found) if arguments.json else as_text(found, arguments.verbose))
    if interrupted:
        sys.exit(f"Interrupted after {len(found)} of {len(tried)} mutants. Name exercises to try only those.")
    return 1 if survivors else 0


def _add_freeze(parser: argparse.ArgumentParser) -> None:
    _add_exercises(parser)
    parser.set_defaults(command_function=_freeze)


def _freeze(arguments: argparse.Namespace) -> int:
    from grading.authoring.freeze import freeze

    for exercise, record in value_records().items():
        if arguments.exercises and exercise not in arguments.exercises:
            continue
        try:
            path = freeze(record)
        except ValueError as error:
            sys.exit(str(error))
        print(f"{path.name}: {path.stat().st_size:,} bytes")
    return 0


def _add_totals(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command_function=_totals)


def _totals(arguments: argparse.Namespace) -> int:
    from grading.authoring.totals import write_totals

    for path in write_totals(Path.cwd()):
        print(f"{path}: points and minutes")
    return 0


def _add_outline(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command_function=_outline)


def _outline(arguments: argparse.Namespace) -> int:
    from grading.authoring.outline import write_outlines
    from transformer_lm.course.outlines import FOLDER

    print(f"{len(write_outlines(Path('release'), FOLDER))} outlines in {FOLDER.name}/")
    return 0


def _add_bundle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--through", required=True, metavar="ASSIGNMENT", help="the last assignment in the zip")
    parser.add_argument("--to", type=Path, metavar="FILE", help="default: course-through-ASSIGNMENT.zip")
    parser.add_argument("--self-study", action="store_true", help="include the answers, shown after honest attempts")
    parser.set_defaults(command_function=_bundle)


def _bundle(arguments: argparse.Namespace) -> int:
    from grading.authoring.bundle import write_bundle

    path = arguments.to or Path(f"course-through-{arguments.through}.zip")
    try:
        count = write_bundle(Path.cwd(), arguments.through, path, arguments.self_study)
    except ValueError as error:
        sys.exit(str(error))
    print(f"{path}: {count} files, {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    main()
