"""A cluster and a database on this machine, with the same programs that instructors start elsewhere."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
from sample_class import wait_for

PASSWORD = "open-sesame"


class LocalCluster:
    """A scheduler and its workers, started with the commands that instructors type."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._workers = folder, []
        address = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", str(address))
        wait_for(lambda: address.exists() and address.read_text().endswith("}"), self.scheduler)
        self.address = json.loads(address.read_text())["address"]

    def _start(self, *arguments: str) -> subprocess.Popen:
        here = Path(__file__).parent
        paths = os.pathsep.join([os.environ["PYTHONPATH"], str(here), str(here / "runs")])  # what tests send to workers
        # Give up a task after the second worker that ends at it; by default, it would be the fourth.
        settings = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1", "PYTHONPATH": paths}
        with (self._folder / "log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments, "--host", "127.0.0.1", "--no-dashboard"],
                cwd=self._folder,
                env=os.environ | settings,
                stdout=log,
                stderr=log,
            )

    def add_workers(self, number: int, *options: str) -> "LocalCluster":
        """Start workers, which join when they are ready."""
        self._workers += [self._start("worker", self.address, *options) for _ in range(number)]
        return self

    def judging(self) -> list[psutil.Process]:
        """Return the workers that have an answer process."""
        below = [child for each in self._workers for child in psutil.Process(each.pid).children()]
        return [worker for worker in below if worker.children()]

    def stop(self) -> None:
        """End all processes, the workers first."""
        for process in [*self._workers, self.scheduler]:
            process.terminate()
            process.wait(20)


class PostgresServer:
    """A PostgreSQL server in a folder, on a separate port.

    Raises FileNotFoundError if PostgreSQL is not installed.
    """

    def __init__(self, folder: Path) -> None:
        installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
        found = str(installed[-1]) if installed else shutil.which("pg_ctl")
        if not found:
            raise FileNotFoundError("PostgreSQL must be installed. On Debian: sudo apt-get install postgresql")
        self._control, self._folder = Path(found), folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._place = f"grader:{PASSWORD}@127.0.0.1:{free.getsockname()[1]}"
        (folder / "password").write_text(PASSWORD)
        self._as_user = []
        if os.getuid() == 0:  # as whom it refuses to run
            self._as_user = ["runuser", "-u", "postgres", "--"]
            for path in (folder, folder / "password"):
                shutil.chown(path, "postgres")
        options = ("-U", "grader", "-A", "scram-sha-256", f"--pwfile={folder / 'password'}", "--no-sync")
        self._run("initdb", *options)
        self.start()

    def new_database(self, name: str) -> str:
        """Make a database for a course and return its URL."""
        with self._connected(autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://{self._place}/{name}"

    def _run(self, program: str, *options: str) -> None:
        command = [str(self._control.with_name(program)), "-D", str(self._folder / "data"), *options]
        subprocess.run([*self._as_user, *command], cwd="/", check=True, stdout=subprocess.DEVNULL)

    def _connected(self, **settings: bool) -> psycopg.Connection:
        return psycopg.connect(f"postgresql://{self._place}/postgres", **settings)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        port = self._place.rpartition(":")[2]
        options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories='' -c fsync=off"
        self._run("pg_ctl", "start", "-w", "-l", str(self._folder / "log"), "-o", options)

    def stop(self) -> None:
        """Stop the server at once, even if clients are connected."""
        self._run("pg_ctl", "stop", "-m", "fast")

    def connections(self) -> int:
        """Return how many connections there are to databases of courses."""
        with self._connected() as connection:
            query = "SELECT count(*) FROM pg_stat_activity WHERE datname <> 'postgres'"
            return connection.execute(query).fetchone()[0]
