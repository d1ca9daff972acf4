"""Grade the same class here and on a cluster, in SQLite and in PostgreSQL: four gradebooks that must be equal.

python bench/four_gradebooks.py [CLASS] [WORKERS]        (default: 24 submissions, 4 workers)

In the middle of the runs on the cluster, one of its workers is killed. PostgreSQL must be installed; the script starts
it.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from class_size import new_class

from grading.authoring.demo import ASSIGNMENT
from grading.runs.class_run import ClassRun

if TYPE_CHECKING:
    from local_servers import LocalCluster

ROOT = Path(__file__).parents[1]


def graded(course: Path, cluster: "LocalCluster | None") -> float:
    """Grade a class, here or on a cluster where a worker is killed in the middle; return the seconds it took."""
    start, names = time.perf_counter(), []
    run = ClassRun(course, ASSIGNMENT)
    for student in run.grade(run.to_do(), cluster=cluster and cluster.address):
        names.append(student)
        if cluster and len(names) == len(run.students) // 2:
            cluster.judging()[0].kill()
    if sorted(names) != run.students:
        sys.exit(f"each student must be graded once, got {len(names)} grades for {len(run.students)} students.")
    return time.perf_counter() - start


def main() -> None:
    """Print the time of each of the four runs, and whether the gradebooks are equal."""
    sys.path.append(str(ROOT / "tests"))
    from local_servers import LocalCluster, PostgresServer
    from sample_class import gradebook

    students, workers = (int(text) for text in (sys.argv[1:3] + ["24", "4"][len(sys.argv) - 1 :]))
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYTHONPATH"] = str(ROOT)
    books, seconds = {}, {}
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as data:
        server = PostgresServer(Path(data))
        cluster = LocalCluster(Path(scratch)).add_workers(workers, "--nthreads", "1")
        try:
            for place in ("here", "cluster"):
                for database, url in (("SQLite", None), ("PostgreSQL", server.new_database(place))):
                    course = new_class(Path(scratch) / place / database, students, url)
                    seconds[place, database] = graded(course, cluster if place == "cluster" else None)
                    books[place, database] = gradebook(course)
                    print(f"{place:8} {database:11} {1000 * seconds[place, database] / students:6.0f} ms a submission")
        finally:
            cluster.stop()
            server.stop()
    first = books["here", "SQLite"]
    if any(book != first for book in books.values()) or len(first) != students:
        sys.exit("the four gradebooks must be equal, but they differ.")
    print(f"four gradebooks of {students} students are equal; a worker was killed in each run on the cluster")
    for database in ("SQLite", "PostgreSQL"):
        print(f"ratio here / cluster, {database}: {seconds['here', database] / seconds['cluster', database]:.2f}")


if __name__ == "__main__":
    main()
