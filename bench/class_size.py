"""Grade classes of growing size: time, memory and disk per submission, and an estimate for 100,000 submissions.

python bench/class_size.py [--sizes 60 600]        in turn; 6000 take half an hour on two cores
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat

from grading.authoring.demo import ASSIGNMENT, edited, solved_notebook, write_submission

ROOT = Path(__file__).parents[1]
CHANGES = (
    lambda notebook: None,
    edited("attention-scores", " / math.sqrt(dh)", ""),
    edited("self-attention", "softmax(dim=-1)", "softmax(dim=1)"),
    edited("kqv", "return keys, queries, values", "return queries, keys, values"),
)
LARGE = 100_000
ALONE = 20  # submissions that are judged with nothing else running


def new_class(folder: Path, students: int, db_url: str | None = None) -> Path:
    """Create a course folder with a class, a quarter of it without mistakes; its gradebook is SQLite without a URL."""
    shutil.copytree(ROOT / "source" / ASSIGNMENT, folder / "source" / ASSIGNMENT)
    setting = f"\nc.CourseDirectory.db_url = {db_url!r}\n" if db_url else ""
    (folder / "nbgrader_config.py").write_text((ROOT / "nbgrader_config.py").read_text() + setting)
    _python("-m", "nbgrader", "generate_assignment", ASSIGNMENT, "--create", folder=folder)
    handed_in = []
    for change in CHANGES:
        notebook = solved_notebook(folder)
        change(notebook)
        handed_in.append(nbformat.writes(notebook))
    for number in range(students):
        write_submission(folder, f"student-{number:06}", handed_in[number % len(handed_in)])
    return folder


def _python(*arguments: str, folder: Path) -> str:
    """Run Python in a folder; return its output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} must succeed, got {done.stderr[-2000:]}")
    return done.stdout


def measure() -> None:
    """Grade the class in this folder; print the resources used as JSON."""
    from grading.results.class_report import class_report
    from grading.runs.class_run import ClassRun, judge_submission, table

    took: dict[str, float] = {}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        took[part] = time.perf_counter() - start

    with timed("start"):
        run = ClassRun(Path.cwd(), ASSIGNMENT)
    with timed("to do"):
        to_do = run.to_do()
    processor = time.process_time()
    with timed("grade"):
        for _ in run.grade(to_do):
            pass
    took["save"] = time.process_time() - processor
    with timed("nothing to do"):
        run.to_do()
    with timed("table"):
        table(run.rows())
    with timed("csv"):
        run.write_csv(Path("grades.csv"))
    with timed("report"):
        class_report(Path.cwd(), ASSIGNMENT)
    most = {
        "main": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
    }
    jobs = [run._job(student) for student in run.students[:ALONE]]
    judge_submission(jobs[0])  # starts the answer process
    with timed("judge"):
        for job in jobs:
            judge_submission(job)
    took["judge"] *= len(to_do) / len(jobs)
    print(json.dumps({"seconds": took, "kilobytes": most}))


def size_of(path: Path) -> int:
    """Return the disk space in bytes of a file, or of a folder with everything in it."""
    paths = [path, *path.rglob("*")] if path.is_dir() else [path]
    return sum(each.stat().st_blocks * 512 for each in paths)


def main() -> None:
    """Print a column for each size, the ratio of the last to the first, and an estimate for a large class."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[60, 600], metavar="N", help="default: 60 600")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        return measure()
    columns = []
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as scratch:
            course = new_class(Path(scratch) / "course", size)
            found = json.loads(_python(str(Path(__file__).resolve()), "--measure", folder=course))
            column = {f"{part}, ms each": 1000 * value / size for part, value in found["seconds"].items()}
            column |= {f"memory of {part}, MB": value / 1024 for part, value in found["kilobytes"].items()}
            for part in ("gradebook.db", "submitted", "autograded"):
                column[f"{part}, kB each"] = size_of(course / part) / 1000 / size
            columns.append(column)
    print(f"{'submissions':24}" + "".join(f"{size:>10,}" for size in arguments.sizes) + "     ratio")
    for name in columns[0]:
        values = [column[name] for column in columns]
        print(f"{name:24}" + "".join(f"{value:10.1f}" for value in values) + f"{values[-1] / values[0]:10.2f}")
    _foresee(columns[-1])


def _foresee(column: dict[str, float]) -> None:
    """Print an estimate for a large class, from the resources per submission of the largest class measured."""
    judge, save, grade = (column[f"{part}, ms each"] / 1000 for part in ("judge", "save", "grade"))
    around = sum(column[f"{part}, ms each"] / 1000 for part in ("to do", "nothing to do", "table", "csv"))
    disk = sum(value for name, value in column.items() if name.endswith("kB each"))
    print(f"\n{LARGE:,} submissions:")
    print(f"  here, on {os.cpu_count()} cores: {LARGE * (grade + around) / 3600:.1f} hours")
    for workers in (4, 16, 64):
        hours = LARGE * (max(judge / workers, save) + around) / 3600
        print(f"  {workers} workers elsewhere: {hours:.1f} hours")
    print(f"  one process saves, so more than {judge / save:.0f} workers do not help for this assignment")
    print(f"  disk: {LARGE * disk / 1e6:.1f} GB")


if __name__ == "__main__":
    main()
