"""Notebooks in a kernel inside the sandbox: they can do no harm, and a cell that fails costs only its own points."""

import logging
import os
import socket
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import determine_grade

from grading.isolation import sandbox
from grading.processes import kernel
from grading.processes.kernel import SandboxedExecute

MISSING = sandbox.missing_walls()
isolated = pytest.mark.skipif(bool(MISSING), reason=f"isolation is incomplete here: {'; '.join(MISSING)}")

LONG_SLEEP = str(10**6 + os.getpid())  # seconds: a number by which a process that outlives its kernel can be found

# What the cells of a notebook may do.
RIGHTS = {
    "given files": """
        from pathlib import Path
        import helper
        files = [str(path) for path in Path().rglob("*") if path.is_file() and path.suffix in (".py", ".csv", ".ipynb")]
        print(sorted(files), helper.VALUE, Path("data/numbers.csv").read_text(), Path("link.csv").exists())
    """,
    "being graded": """
        import os
        print(os.environ["NBGRADER_EXECUTION"])
    """,
    "figure": """
        import matplotlib.pyplot as plt
        plt.plot([1, 2]);
    """,
    "answers": """
        import torch
        from transformer_lm import checks
        from transformer_lm.modeling_attention import SelfAttention
        SelfAttention(input_size=4, hidden=6)(torch.zeros(2, 3, 4))
    """,
}

# What they try although they must not: anything that succeeds is printed.
WRONGS = {
    "network": """
        import os, socket
        for family, address in ((socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_UNIX, "\\0{abstract}")):
            try:
                socket.socket(family).connect(address)
                print("connected to", address)
            except OSError:
                pass
        print([name for _, name in socket.if_nameindex() if name != "lo"])
    """,
    "names of hosts": "socket.getaddrinfo('example.org', 80)",
    "reading": """
        import sys
        for path in ("/tmp", "/home", "/etc/passwd", {outside!r}, {project!r}, {project!r} + "/grading", {home!r}):
            try:
                found = os.listdir(path) if os.path.isdir(path) else open(path).read().splitlines()
                print(*(name for name in found if os.path.join(path, name) not in sys.prefix + sys.base_prefix))
            except OSError:
                pass
    """,
    "writing": """
        open("mine.txt", "w").write("mine")
        for folder in ("/", "/course", "/given", "/usr", {project!r}, {outside!r}, {temporary!r}):
            try:
                open(os.path.join(folder, "theirs.txt"), "w").write("theirs")
                print("wrote to", folder)
            except OSError:
                pass
    """,
    "user": """
        try:
            os.setuid(0)
        except OSError:
            pass
        print(os.getuid() == 0, open("/proc/self/status").read().split("CapEff:")[1].split()[0])
    """,
    "memory": "bytearray(5 * 2**30)",
    "large file": "open('large', 'wb').write(bytes(65 * 2**20))",
    "processes": """
        import subprocess
        for _ in range(100):
            subprocess.Popen(["setsid", "sleep", "{sleep}"])
    """,
}

# Mishaps that one kernel survives, each before a cell that must still work.
MISHAPS = {
    "start": "value = 1",
    "hang": "while True: pass",
    "after hang": "print(value + 1)",
    "endless": "while True: print('x' * 100)",
    "after endless": "print(value + 2)",
    "long text": "print('w' * 5_000_000)",
    "long result": "'y' * 5_000_000",
    "long error": "get_ipython()._showtraceback = lambda *args: None\nraise ValueError('z' * 5_000_000)",
    "after long": "print(value + 3)",
}

# Mishaps that no kernel survives: five of them, and one for which no new kernel is started.
DEATHS = {
    "start": "import os\nvalue = 1",
    "killed": "other = 2\nos._exit(0)",
    "after killed": "print(value + 1, 'other' in globals())",
    "exit": "exit()",
    "stubborn": """
        import time
        print("going", flush=True)
        while True:
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                pass
    """,
    "huge": "display({'text/plain': 'x' * 20_000_000}, raw=True)",
    # It goes on, because a busy machine may take seconds to fill the memory that ends it.
    "flood": """
        import time
        get_ipython().kernel.iopub_thread.socket.send_multipart([bytes(10**7)] * 200, copy=False)
        while True:
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                pass
    """,
    "last": "print(value + 2)",
    "one too many": "os._exit(0)",
    "never": "print(value + 3)",
}


def execute(cells: dict[str, str], resources: dict | None = None, **traits) -> dict[str, NotebookNode]:
    """Return cells by name, as they are after execution; the notebook asks for another kernel."""
    notebook = new_notebook(
        cells=[new_markdown_cell("text"), *(cell_worth_a_point(source) for source in cells.values())]
    )
    notebook.metadata.kernelspec = {"name": "another", "display_name": "Another", "language": "python"}
    SandboxedExecute(reduced_isolation=bool(MISSING), **traits).preprocess(notebook, resources)
    return dict(zip(cells, notebook.cells[1:], strict=True))


def cell_worth_a_point(source: str) -> NotebookNode:
    """Return a graded cell that asks to be skipped, and has an output from an earlier execution."""
    cell = new_code_cell(textwrap.dedent(source).strip(), outputs=[new_output("stream", text="stale\n")])
    cell.metadata = NotebookNode(tags=["skip-execution"], nbgrader=NotebookNode(grade=True, solution=False, points=1))
    return cell


def printed(cell: NotebookNode) -> str:
    """Return what a cell printed; it must have earned its point."""
    assert errors(cell) == {}
    assert determine_grade(cell) == (1, 1)
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def errors(cell: NotebookNode) -> dict[str, str]:
    """Return the errors of a cell, with what they say."""
    return {output.ename: output.evalue for output in cell.outputs if output.output_type == "error"}


def error(cell: NotebookNode) -> str:
    """Return the last error of a cell; it must have cost the point."""
    assert determine_grade(cell) == (0, 1)
    return ": ".join(list(errors(cell).items())[-1])


def processes_with(text: str) -> list[str]:
    """Return the command lines that contain a text, once processes that are ending have ended."""
    for _ in range(20):
        lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
        if not any(text in line for line in lines):
            return []
        time.sleep(0.1)
    return [line for line in lines if text in line]


@pytest.fixture(scope="module", autouse=True)
def temporary():
    """The folder for the kernels' private folders; its name is short, because the path of a socket must be."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        kernel._edition.cache_clear()
        yield Path(folder)
        kernel._edition.cache_clear()


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course other than this one: its assignment comes with files, and its student adds a module and a link."""
    root = tmp_path_factory.mktemp("course")
    given = {"helper.py": "VALUE = 3", "data/numbers.csv": "1,2", "link.csv": "", "problem.ipynb": "{}"}
    submitted = given | {"numpy.py": "the student's", "hidden.ipynb": "{}"}
    for folder, files in ((root / "source" / "other", given), (root / "autograded" / "bob" / "other", submitted)):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    link = root / "autograded" / "bob" / "other" / "link.csv"
    link.unlink()
    link.symlink_to("/etc/passwd")
    root.chmod(0o777)  # so that only the sandbox keeps an unprivileged user out
    return root


@pytest.fixture(scope="module")
def inside(course, temporary):
    exporter = NotebookExporter(parent=Autograde(coursedir=CourseDirectory(root=str(course))))
    resources = {"metadata": {"path": f"{course}/autograded/bob/other"}, "nbgrader": {"assignment": "other"}}
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{course}")
        unix.listen()
        names = {
            "port": server.getsockname()[1],
            "abstract": course,
            "project": str(Path(kernel.__file__).parents[2]),
            "home": str(Path.home()),
            "outside": str(course),
            "temporary": str(temporary),
            "sleep": LONG_SLEEP,
        }
        wrongs = {} if MISSING else {name: source.format(**names) for name, source in WRONGS.items()}
        return execute(RIGHTS | wrongs, resources, parent=exporter)


@pytest.fixture(scope="module")
def mishaps():
    return execute(MISHAPS, timeout=8)


@pytest.fixture(scope="module")
def deaths():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "MEMORY_FOR_MESSAGES", 100 * 2**20)
        return execute(DEATHS, timeout=8, iopub_timeout=1)


def test_a_notebook_finds_the_files_of_its_course_and_no_others(inside):
    assert printed(inside["given files"]) == "['data/numbers.csv', 'helper.py'] 3 1,2 False\n"


def test_a_notebook_can_ask_whether_it_is_being_graded(inside):
    assert printed(inside["being graded"]) == "autograde\n"


def test_a_figure_is_shown_without_warnings(inside):
    (output,) = inside["figure"].outputs
    assert "image/png" in output.data


def test_the_package_is_there_without_its_answers(inside):
    assert error(inside["answers"]).startswith(
        "NotImplementedError: SelfAttention would give away exercise self-attention"
    )


@isolated
def test_there_is_no_network(inside):
    assert printed(inside["network"]) == "[]\n"
    assert error(inside["names of hosts"]).startswith("gaierror")


@isolated
def test_files_outside_can_not_be_read(inside):
    assert printed(inside["reading"]).split() == []


@isolated
def test_files_outside_can_not_be_written(inside):
    assert printed(inside["writing"]) == ""


@isolated
def test_the_user_is_not_root_and_has_no_capability(inside):
    assert printed(inside["user"]) == "False 0000000000000000\n"


@isolated
def test_memory_files_and_processes_are_limited(inside):
    assert error(inside["memory"]).startswith("MemoryError")
    assert error(inside["large file"]).startswith("OSError")
    assert error(inside["processes"]).startswith("BlockingIOError")


@isolated
def test_what_a_notebook_starts_ends_with_it(inside):
    assert processes_with(f"sleep {LONG_SLEEP}") == []


@isolated
def test_packages_that_no_exercise_needs_are_hidden_from_notebooks_of_this_course():
    code = "import importlib.util\nprint([bool(importlib.util.find_spec(n)) for n in ('transformers', 'torch')])"
    cells = execute({"packages": code}, {"nbgrader": {"assignment": "01_self_attention"}})
    assert printed(cells["packages"]) == "[False, True]\n"


def test_a_hanging_cell_is_interrupted_and_costs_itself_only(mishaps):
    assert error(mishaps["hang"]).startswith("CellTimeoutError")
    assert printed(mishaps["after hang"]) == "2\n"


@pytest.mark.parametrize("name", ["endless", "long text", "long result", "long error"])
def test_long_output_is_cut_and_costs_its_cell_only(mishaps, name):
    assert error(mishaps[name]) == (
        "OutputTooLong: This cell was stopped: its output is too long. At most 4,000,000 bytes for a cell, and 5 times "
        "that for a notebook."
    )
    assert len(str(mishaps[name].outputs)) < 4_100_000
    assert (printed(mishaps["after endless"]), printed(mishaps["after long"])) == ("3\n", "4\n")


def test_the_beginning_of_a_long_text_is_kept(mishaps):
    assert mishaps["long text"].outputs[0].text.startswith("w" * 100)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("killed", "ends its own Python process: leave out exit(), quit() and os._exit()"),
        ("exit", "ends its own Python process: leave out exit(), quit() and os._exit()"),
        ("stubborn", "runs for more than 8 seconds and can't be interrupted"),
        ("huge", "ended, but its output did not arrive, as happens with more than 16 MB at once"),
        ("flood", "sends more than the grader's memory can hold"),
    ],
)
def test_a_cell_that_takes_its_kernel_with_it_is_left_out(deaths, name, reason):
    assert error(deaths[name]) == f"CellLeftOut: This cell {reason}. The others ran without it."


def test_what_a_cell_printed_before_it_had_to_be_stopped_is_kept(deaths):
    assert deaths["stubborn"].outputs[0].text == "going\n"


def test_cells_after_a_death_still_know_what_cells_before_it_defined(deaths):
    assert printed(deaths["after killed"]) == "2 False\n"
    assert printed(deaths["last"]) == "3\n"


def test_cells_after_too_many_deaths_get_no_points(deaths):
    assert error(deaths["one too many"]).startswith("CellLeftOut")
    assert error(deaths["never"]) == "NotExecuted: This cell was not executed: more than 5 cells ended their kernel."


def test_cells_after_the_notebooks_time_get_no_points():
    start = time.monotonic()
    cells = execute({"before": "print(1)", "slow": "import time; time.sleep(60)", "after": "1"}, notebook_timeout=3)
    assert printed(cells["before"]) == "1\n"
    assert error(cells["slow"]).startswith("CellTimeoutError")
    assert error(cells["after"]) == "NotExecuted: This cell was not executed: the 3 seconds of the notebook are over."
    assert time.monotonic() - start < 20


def test_when_time_is_over_a_cell_keeps_what_it_did_in_an_earlier_kernel(monkeypatch):
    def stop_at_the_second_cell(execute, notebook, waiting):
        if len(waiting) == 3:
            waiting.pop(1).outputs = [new_output("stream", text="first\n")]
            waiting.pop(2)
            return {2: [new_output("error", ename="CellLeftOut")]}
        execute._end = 0
        return {}

    monkeypatch.setattr(SandboxedExecute, "_execute", stop_at_the_second_cell)
    cells = execute({"first": "1", "second": "2", "third": "3"})
    assert printed(cells["first"]) == "first\n"
    assert list(errors(cells["second"])) == ["CellLeftOut"]
    assert list(errors(cells["third"])) == ["NotExecuted"]


def test_without_isolation_a_kernel_runs_only_where_that_is_allowed(monkeypatch, caplog):
    monkeypatch.setattr(sandbox, "missing_walls", lambda: ("anything",))
    cells = ("print(1)", f"import os, subprocess\nsubprocess.Popen(['sleep', '{LONG_SLEEP}'])\nos._exit(0)")
    notebook = new_notebook(cells=[new_code_cell(source) for source in cells])
    with pytest.raises(sandbox.IsolationIncomplete, match="anything"):
        SandboxedExecute().preprocess(notebook, {})
    with caplog.at_level(logging.WARNING):
        SandboxedExecute(reduced_isolation=True, log=logging.getLogger("test")).preprocess(notebook, {})
    assert "STUDENTS' CODE RUNS WITH ALL YOUR RIGHTS" in caplog.text
    assert notebook.cells[0].outputs[0].text == "1\n"
    assert processes_with(f"sleep {LONG_SLEEP}") == []


def test_a_kernel_that_does_not_start_is_no_students_fault(monkeypatch):
    monkeypatch.setattr(kernel, "LAUNCHER", "raise SystemExit('the reason')")
    with pytest.raises(RuntimeError, match="the kernel must start, got: the reason"):
        execute({"start": "print(1)"})


def test_kernels_leave_neither_files_nor_processes(inside, mishaps, deaths, temporary):
    assert list(temporary.glob("kernel-*")) == []
    assert processes_with(f"{temporary}/kernel-") == []
