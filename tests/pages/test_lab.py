"""The lessons as a student meets them: `make lab`, a browser, Run All Cells."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
from checkout import ROOT
from playwright.sync_api import Browser, Page, sync_playwright

LESSONS = ROOT / "notebooks"
ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/lab/tree/notebooks/01_self_attention\.ipynb\?token=(\w+)")
SET_UP_SECONDS = 600
LESSON_SECONDS = 300
# The quick ones run here. The others, which train models, are opened with their saved outputs; nbval runs them.
RUN_HERE = ("01_self_attention", "02_multi_head_attention")
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
]

NOTEBOOK_IS_READY = """path => {
    const panel = window.jupyterapp?.shell.currentWidget;
    return panel?.context?.path === path && panel.context.isReady && panel.sessionContext.session?.kernel;
}"""
RUN_ALL_CELLS = """() => {
    window.jupyterapp.commands.execute('notebook:run-all-cells').finally(() => { window.allCellsDone = true; });
}"""
ALL_CELLS_ARE_DONE = "() => window.allCellsDone"
KERNEL_IS_IDLE = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
CELLS_NOT_RUN = """() => window.jupyterapp.shell.currentWidget.content.widgets
    .filter(cell => cell.model.type === 'code' && !cell.model.executionCount)
    .map(cell => cell.model.sharedModel.source).filter(source => source.trim())"""
ERRORS = """() => window.jupyterapp.shell.currentWidget.content.widgets
    .flatMap(cell => cell.model.outputs?.toJSON() ?? []).filter(output => output.output_type === 'error')
    .map(output => [output.ename, output.evalue])"""
# If MathJax cannot read a formula, it shows an error, or red text, or leaves the dollars.
BAD_FORMULAS = """() => {
    const bad = document.querySelectorAll('.jp-Notebook merror, .jp-Notebook mtext[mathcolor="red"]');
    const dollars = [...document.querySelectorAll('.jp-MarkdownOutput :is(p, li, td, th, h1, h2, h3)')].filter(part =>
        [...part.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.includes('$')));
    return [...bad, ...dollars].map(element => element.textContent);
}"""
NOTEBOOK_HEIGHT = "() => document.querySelector('.jp-WindowedPanel-outer').scrollHeight"
SCROLL_UP = "() => document.querySelector('.jp-WindowedPanel-outer').scrollTo(0, 0)"


@dataclass
class Lab:
    """A running `make lab`."""

    address: str
    token: str
    log: Path


@dataclass
class Lesson:
    """A lesson as it is saved, and as it looks in the page."""

    saved: nbformat.NotebookNode
    page: Page
    asked_for: list[str]  # every address that the page has requested

    def outputs(self) -> list[nbformat.NotebookNode]:
        """Return the saved outputs of all cells."""
        return [output for cell in self.saved.cells for output in cell.get("outputs", [])]


@pytest.fixture(scope="module")
def chromium() -> Browser:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed. On Debian: sudo apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    """Serve a copy of the lessons, those that run here without outputs: what the page shows comes from this run."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(LESSONS, folder / "course" / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for name in RUN_HERE:
        path = folder / "course" / "notebooks" / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, path)
    # Otherwise JupyterLab leaves cells that are out of sight out of the page.
    settings = folder / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"windowingMode": "none"}')
    arguments = [
        f"--port={free_port()}",
        "--ServerApp.port_retries=0",
        "--expose-app-in-browser",
        f"--ServerApp.root_dir={folder / 'course'}",
        f"--LabApp.user_settings_dir={folder / 'settings'}",
        f"--LabApp.workspaces_dir={folder / 'workspaces'}",
    ]
    # Neither the make that runs these tests nor the user's settings reach the server.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"}
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        environment[name] = str(folder / name)
    log = folder / "log"
    with log.open("w") as output:
        server = subprocess.Popen(
            ["make", "lab", f"LAB_ARGS={shlex.join(arguments)}"],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _started(server, log)
    finally:
        _stop(server)


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _started(server: subprocess.Popen, log: Path) -> Lab:
    """Wait until the server prints its address."""
    deadline = time.monotonic() + SET_UP_SECONDS
    while not (printed := ADDRESS.search(log.read_text())):
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"make lab must print the address of lesson 1, got:\n{log.read_text()}")
        time.sleep(0.1)
    return Lab(printed[1], printed[2], log)


def _stop(server: subprocess.Popen) -> None:
    """End make and the server, which ends its kernels."""
    try:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)
        os.killpg(server.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all have ended
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)


@pytest.fixture(scope="module", params=sorted(LESSONS.glob("*.ipynb")), ids=lambda path: path.stem)
def lesson(request, chromium, lab) -> Lesson:
    """Open a lesson; if it is one that runs here, run all its cells."""
    path = request.param
    page = chromium.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(LESSON_SECONDS * 1000)
    asked_for = []
    page.on("request", lambda asked: asked_for.append(asked.url))
    page.on("websocket", lambda asked: asked_for.append(asked.url))
    page.goto(f"{lab.address}/lab/tree/notebooks/{path.name}?token={lab.token}&reset")
    page.wait_for_function(NOTEBOOK_IS_READY, arg=f"notebooks/{path.name}")
    if path.stem in RUN_HERE:
        page.evaluate(RUN_ALL_CELLS)
        page.wait_for_function(ALL_CELLS_ARE_DONE)
    page.wait_for_function(KERNEL_IS_IDLE)  # a page that closes before its kernel starts leaves an error in the log
    if folder := os.environ.get("LAB_SCREENSHOTS"):
        page.set_viewport_size({"width": 1400, "height": min(page.evaluate(NOTEBOOK_HEIGHT) + 200, 16_000)})
        page.evaluate(SCROLL_UP)
        page.wait_for_timeout(500)  # for the new layout
        page.screenshot(path=Path(folder) / f"{path.stem}.png")
    yield Lesson(nbformat.read(path, as_version=4), page, asked_for)
    page.close()


def test_every_cell_has_run_and_is_shown(lesson):
    wanted = [[output.ename, output.evalue] for output in lesson.outputs() if output.output_type == "error"]
    assert lesson.page.evaluate(ERRORS) == wanted
    assert lesson.page.evaluate(CELLS_NOT_RUN) == []
    assert lesson.page.locator(".jp-Notebook .jp-Cell").count() == len(lesson.saved.cells)


def test_every_saved_figure_is_drawn(lesson):
    shown = lesson.page.locator(".jp-OutputArea-output img").evaluate_all(
        "images => images.filter(image => image.complete && image.naturalWidth > 0).length"
    )
    assert shown == sum(_figures_in(output) for output in lesson.outputs()) > 0


def _figures_in(output: nbformat.NotebookNode) -> int:
    """Return how many figures an output shows. JupyterLab prefers HTML to an image of the same output."""
    data = output.get("data", {})
    if "text/html" in data:
        return data["text/html"].count("<img")
    return int(any(kind.startswith("image/") for kind in data))


def test_every_picture_has_alternative_text(lesson):
    pictures = lesson.page.locator(".jp-Notebook img")
    without = pictures.evaluate_all("images => images.filter(image => !image.alt.trim()).map(image => image.outerHTML)")
    assert [html[:200] for html in without] == []


def test_mathematics_is_typeset(lesson):
    cells = lesson.page.locator(".jp-Notebook .jp-Cell")
    for number, cell in enumerate(lesson.saved.cells):
        if cell.cell_type == "markdown" and "$" in _without_code(cell.source):
            cells.nth(number).locator("mjx-container").first.wait_for(timeout=20_000)
    assert lesson.page.evaluate(BAD_FORMULAS) == []


def _without_code(markdown: str) -> str:
    """Return a text without its ``` blocks and `spans`, in which a dollar does not begin a formula."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", markdown, flags=re.DOTALL)


def test_nothing_is_fetched_from_elsewhere(lesson):
    hosts = {urlsplit(url).hostname for url in lesson.asked_for if not url.startswith(("data:", "blob:"))}
    assert hosts == {"127.0.0.1"}


def test_the_student_is_asked_nothing(lesson):
    assert lesson.page.locator(".jp-Dialog, .Toastify__toast").all_inner_texts() == []


def test_make_lab_prints_no_warning(lesson, lab):
    assert not re.search(r"warning|traceback", lab.log.read_text(), re.IGNORECASE), lab.log.read_text()
