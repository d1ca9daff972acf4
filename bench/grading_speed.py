"""Compare the grading speed of stock nbgrader and of this project on the same class, and memory as the class grows.

python bench/grading_speed.py [CLASS] [LARGER]        (default: 60 and 600 submissions)
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import nbformat
import psutil

from grading.authoring.demo import ASSIGNMENT, DUE, edited, solved_notebook, write_submission

ROOT = Path(__file__).parents[1]
STOCK = 'c = get_config()\nc.CourseDirectory.course_id = "stock"\nc.ClearMarkScheme.enforce_metadata = False\n'
CHANGES = (
    lambda notebook: None,
    edited("attention-scores", " / math.sqrt(dh)", ""),
    edited("self-attention", "softmax(dim=-1)", "softmax(dim=1)"),
    edited("kqv", "return keys, queries, values", "return queries, keys, values"),
)


def course_with(folder: Path, config: str, students: int) -> Path:
    """Create a course folder with a class, a quarter of it without mistakes."""
    shutil.copytree(ROOT / "source", folder / "source")
    (folder / "nbgrader_config.py").write_text(config)
    run(folder, "nbgrader", "generate_assignment", ASSIGNMENT, "--create")
    for number in range(students):
        notebook = solved_notebook(folder)
        CHANGES[number % len(CHANGES)](notebook)
        write_submission(folder, f"student-{number:04}", nbformat.writes(notebook), DUE)
    return folder


def run(folder: Path, *arguments: str) -> tuple[float, float]:
    """Run a module; return the seconds it took and its peak memory in MB, including its children."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    watch = _MemoryWatch(process.pid)
    watch.start()
    _, errors = process.communicate()
    seconds = time.perf_counter() - start
    watch.join()
    if process.returncode:
        sys.exit(f"{' '.join(arguments)} must succeed, got {errors.decode()[-2000:]}")
    return seconds, watch.most / 2**20


class _MemoryWatch(threading.Thread):
    """Samples the memory of a process and its children every half second, counting memory that they share once."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid, self.most = pid, 0

    def run(self) -> None:
        while psutil.pid_exists(self._pid):
            try:
                process = psutil.Process(self._pid)
                if process.status() == psutil.STATUS_ZOMBIE:
                    return
                self.most = max(self.most, sum(_memory(each) for each in (process, *process.children(recursive=True))))
            except psutil.NoSuchProcess:
                return
            time.sleep(0.5)


def _memory(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def main() -> None:
    """Print seconds per submission, their ratio, and memory."""
    small, large = (int(text) for text in (sys.argv[1:3] + ["60", "600"][len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as scratch:
        ours_config = (ROOT / "nbgrader_config.py").read_text()
        stock = course_with(Path(scratch) / "stock", STOCK, small)
        ours = course_with(Path(scratch) / "ours", ours_config, small)
        larger = course_with(Path(scratch) / "larger", ours_config, large)
        stock_seconds, _ = run(stock, "nbgrader", "autograde", ASSIGNMENT)
        our_seconds, memory = run(ours, "grading", "run", ASSIGNMENT)
        print(f"stock nbgrader   {stock_seconds / small:6.2f} s a submission, {small} of them")
        print(f"grading run      {our_seconds / small:6.2f} s a submission")
        print(f"ratio            {stock_seconds / our_seconds:6.1f}")
        larger_seconds, larger_memory = run(larger, "grading", "run", ASSIGNMENT)
        print(f"grading run      {larger_seconds / large:6.2f} s a submission, {large} of them")
        print(f"memory           {memory:6.0f} MB for {small}, {larger_memory:.0f} MB for {large}")
        print(f"ratio            {larger_memory / memory:6.2f}")


if __name__ == "__main__":
    main()
