"""The pages of `nbgrader generate_feedback`, and the Formgrader, in a browser: what they show, and never do."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
import test_lab
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader.api import Gradebook
from playwright.sync_api import Browser, Page
from sample_class import ASSIGNMENT, FULL_SCORE, OUT_OF, REDUCED, feedback, new_course, python
from sentences import opening

from grading.authoring.demo import DUE, edited, solved_notebook, write_submission
from transformer_lm.plots.pictures import picture

chromium = test_lab.chromium  # the browser

PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
POLICY = "\nc.LatePolicy.percent = 10\n"
LONG = "x" * 3000
ATTACK = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'><svg onload='window.ran = 1'></svg>"
ATTACK += "<iframe src='http://elsewhere.invalid/'></iframe><style>* { display: none }</style></pre></details></main>"
ATTACK += "<a href='javascript:window.ran = 1'>here</a><img src='http://elsewhere.invalid/a.png'>"
UNQUOTED = "1 onload=window.ran=1"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FONT_SIZES = """() => [...document.querySelectorAll('body, body *')]
    .filter(part => [...part.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
    .map(part => parseFloat(getComputedStyle(part).fontSize))"""
OPEN_ALL = "() => document.querySelectorAll('details').forEach(part => { part.open = true; })"
WIDTHS = "() => [document.scrollingElement.scrollWidth, innerWidth]"
TOO_WIDE = """() => [...document.querySelectorAll('pre, img, table, .scrolls')]
    .filter(part => !part.closest('.scrolls') || part.matches('.scrolls'))
    .filter(part => part.getBoundingClientRect().right > innerWidth).map(part => part.outerHTML.slice(0, 100))"""


def attack(notebook):
    """Wherever a student can write, put HTML that would run, and a text that would end a script or an element."""
    edited("attention-scores", " / math.sqrt(dh)", f"  # {ATTACK}")(notebook)
    edited("q1-answer", "Each entry", f"{ATTACK} Each entry")(notebook)
    data = {
        "text/html": ATTACK,
        "text/plain": ATTACK,
        "application/javascript": "window.ran = 1",
        "image/svg+xml": ATTACK,
    }
    outputs = [
        new_output("display_data", data=data),
        new_output("display_data", data={"text/markdown": ATTACK}),
        new_output("display_data", data={"image/png": f"'\"><script>window.ran = 1</script>{ATTACK}"}),
        new_output("stream", text=ATTACK),
        new_output("error", ename=ATTACK, evalue=ATTACK, traceback=[ATTACK]),
    ]
    sized = new_output("display_data", data={"image/png": PIXEL}, metadata={"image/png": {"width": UNQUOTED}})
    attached = new_markdown_cell("![](attachment:a.png) ![](attachment:no.png) ![](attachment:b.png)")
    attached.attachments = {"a.png": {"image/png": f"'\">{ATTACK}"}, "b.png": {}}
    code = new_code_cell(f"# {ATTACK}", outputs=[*outputs, sized])
    notebook.cells += [new_markdown_cell(f"# {ATTACK}"), code, attached]


def make_wide(notebook):
    """Add a very long line, a wide table, a wide picture and a long word."""
    edited("kqv", "return keys, queries, values", f"return keys, queries, values  # {LONG}")(notebook)
    edited("q1-answer", "Each entry", f"{LONG} ![my algebra](attachment:photo.png) Each entry")(notebook)
    next(cell for cell in notebook.cells if cell.id == "q1-answer").attachments = {"photo.png": {"image/png": PIXEL}}
    table = f"<table><tr>{'<td>a wide cell</td>' * 60}</tr></table>"
    figure = picture(plt.figure(figsize=(20, 3)), "A wide and empty figure.")
    outputs = [
        new_output("display_data", data={"text/html": table}),
        new_output("display_data", data={"image/png": figure["image/png"], "text/plain": figure["text/plain"]}),
        new_output("stream", text=LONG),
    ]
    text = "| a | b |\n| - | - |\n| " + LONG + " | $" + "x + " * 500 + "y$ |\n\n$$" + "x + " * 500 + "y$$"
    notebook.cells += [new_code_cell("show()", outputs=outputs), new_markdown_cell(text)]


STUDENTS = {
    "perfect": lambda notebook: None,
    "unscaled": edited("attention-scores", " / math.sqrt(dh)", ""),
    "hostile": attack,
    "wide": make_wide,
    "late": lambda notebook: None,
}
PAGES = [*STUDENTS, "blank", "broken"]


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A graded class in which the instructor has marked something, with feedback and a report."""
    course = new_course(tmp_path_factory.mktemp("course"))
    for student, change in STUDENTS.items():
        notebook = solved_notebook(course)
        change(notebook)
        time_of = DUE + timedelta(hours=2) if student == "late" else DUE
        write_submission(course, student, nbformat.writes(notebook), time_of)
    released = (course / "release" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").read_text()
    write_submission(course, "blank", released)
    write_submission(course, "broken", released[:5000])
    with (course / "nbgrader_config.py").open("a") as file:
        file.write(POLICY)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        book.update_or_create_assignment(ASSIGNMENT, duedate=DUE.replace(tzinfo=None))
        book.update_or_create_student("hostile", first_name=ATTACK, last_name="Doe")
    python(course, "grading", "run", ASSIGNMENT, *(["--reduced-isolation"] if REDUCED else []))
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        grade = book.find_grade("q1-answer", ASSIGNMENT, ASSIGNMENT, "perfect")
        grade.manual_score, grade.needs_manual_grade = 0.5, False
        book.find_comment("q1-answer", ASSIGNMENT, ASSIGNMENT, "perfect").manual_comment = "Say *why* it saturates."
        again = book.find_grade("q2-answer", ASSIGNMENT, ASSIGNMENT, "wide")
        again.manual_score, again.needs_manual_grade = 1, True
        changed = book.find_grade("attention-scores-check", ASSIGNMENT, ASSIGNMENT, "unscaled")
        changed.manual_score, changed.needs_manual_grade = 1.5, False
        book.db.commit()
    python(course, "nbgrader", "generate_feedback", ASSIGNMENT)
    python(course, "grading", "report", ASSIGNMENT, "--html", "report.html")
    return course


@dataclass
class Opened:
    """A page in the browser: the addresses that it has requested, and the dialogs and errors that it has shown."""

    page: Page
    asked_for: list[str]
    shown: list[str]


def opened(chromium: Browser, path: Path, **options: object) -> Opened:
    page = chromium.new_context(**options).new_page()
    asked_for, shown = [], []
    page.on("request", lambda request: asked_for.append(request.url))
    page.on("dialog", lambda dialog: (shown.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    if folder := os.environ.get("FEEDBACK_SCREENSHOTS"):
        name = f"{path.parts[-3]}-{options['viewport']['width']}-{options.get('color_scheme', 'light')}.png"
        page.screenshot(path=Path(folder) / name, full_page=True)
    return Opened(page, asked_for, shown)


def path_of(course: Path, student: str) -> Path:
    return course / "feedback" / student / ASSIGNMENT / f"{ASSIGNMENT}.html"


@pytest.fixture(scope="module", params=[*PAGES, "report"])
def phone(request, course, chromium) -> Opened:
    """A page on a phone: a student's, or the report of the class."""
    path = course / "report.html" if request.param == "report" else path_of(course, request.param)
    found = opened(chromium, path, viewport=PHONE)
    yield found
    found.page.context.close()


def test_a_page_is_never_wider_than_the_phone(phone):
    for prepare in ("() => 0", OPEN_ALL):
        phone.page.evaluate(prepare)
        wide, screen = phone.page.evaluate(WIDTHS)
        assert wide <= screen == 360
        assert phone.page.evaluate(TOO_WIDE) == []


def test_all_text_is_large_enough_to_read(phone):
    assert min(phone.page.evaluate(FONT_SIZES)) >= 15


def test_nothing_runs_and_no_host_is_asked(phone):
    phone.page.evaluate(OPEN_ALL)
    assert phone.page.evaluate("() => window.ran") is None
    assert phone.shown == []
    assert phone.page.locator("script, iframe, object, embed, form, link, main style, [onerror], [onload]").count() == 0
    assert [url for url in phone.asked_for if not url.startswith(("file:", "data:"))] == []


def test_a_page_says_what_it_is_to_machines_and_to_readers_of_screens(phone):
    page = phone.page
    assert page.locator("html").get_attribute("lang") == "en"
    assert "width=device-width" in page.locator("meta[name=viewport]").get_attribute("content")
    assert page.locator("header h1").count() == 1
    assert page.locator("img:not([alt]), img[alt='']").count() == 0
    for link in page.locator("table.overview a").all():
        assert page.locator(link.get_attribute("href")).count() == 1


def test_the_dark_page_is_dark_and_its_text_is_not(chromium, course):
    colours = {}
    for scheme in ("light", "dark"):
        found = opened(chromium, path_of(course, "unscaled"), viewport=DESK, color_scheme=scheme)
        style = "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        colours[scheme] = [sum(map(int, re.findall(r"\d+", each))) for each in found.page.evaluate(style)]
        assert found.page.evaluate(WIDTHS) == [1280, 1280]
        found.page.context.close()
    assert colours["light"][0] > 600 > 300 > colours["light"][1]
    assert colours["dark"][0] < 300 < 600 < colours["dark"][1]


def test_without_scripts_everything_is_there(chromium, course):
    found = opened(chromium, path_of(course, "unscaled"), viewport=PHONE, java_script_enabled=False)
    words = found.page.inner_text("body")
    assert "Exercise 2 · Attention scores" in words
    assert found.page.locator(".hint").first.inner_text().split("\n")[-1].startswith(opening("not-scaled"))
    assert "return queries @ keys.transpose(1, 2)" in found.page.locator("#exercise-2 pre").inner_text()
    assert "70 of 70 entries of scores are off" in found.page.locator("#exercise-2 dl").inner_text()
    found.page.locator(".whole > summary").click()
    assert found.page.get_by_text("checks.attention_scores(attention_scores)").is_visible()
    found.page.context.close()


def test_a_person_s_marks_and_comments_are_there(course):
    words = feedback(course, "perfect", ASSIGNMENT)
    assert "Two questions in writing 0.5 of 2 points, and some still need manual grading q1 0.5 of 1 point" in words
    assert "earlier answer" not in words
    assert "q2 1 of 1 point (a mark for an earlier answer, to be reviewed)" in feedback(course, "wide", ASSIGNMENT)
    assert "Say <em>why</em> it saturates." in path_of(course, "perfect").read_text()
    assert "The instructor has changed this; it was 0 of 2 points." in feedback(course, "unscaled", ASSIGNMENT)
    assert "2 points still need manual grading." in feedback(course, "unscaled", ASSIGNMENT)


def test_a_late_submission_is_told_what_it_loses(course):
    words = feedback(course, "late", ASSIGNMENT)
    assert f"{FULL_SCORE - 1:g} of {OUT_OF:g} points" in words
    assert "Submitted 2 hours late \N{MINUS SIGN}1" in words
    assert "Submitted" not in feedback(course, "perfect", ASSIGNMENT)


def test_no_page_shows_a_rubric_or_another_student(course):
    for student in PAGES:
        page = path_of(course, student).read_text()
        assert "½ point" not in page
        assert "MARK SCHEME" not in page
        others = {other for other in PAGES if other not in (student, "late", "wide", "blank", "broken", "perfect")}
        assert not others & set(re.findall(r"\w+", page))


def test_a_picture_in_a_written_answer_is_shown(course):
    assert f'<img src="data:image/png;base64,{PIXEL}" alt="my algebra">' in path_of(course, "wide").read_text()


def test_a_file_that_is_no_notebook_says_so_and_a_blank_one_what_to_do(course):
    assert "Not graded; needs manual grading" in feedback(course, "broken", ASSIGNMENT)
    assert "the cell is as it was released" in feedback(course, "blank", ASSIGNMENT)


# The Formgrader, where the instructor marks.


@pytest.fixture(scope="module")
def formgrader(course, tmp_path_factory) -> str:
    """Serve the course; return the address of the Formgrader, which needs no token."""
    port = test_lab.free_port()
    folder = tmp_path_factory.mktemp("server")
    names = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    environment = os.environ | {name: str(folder / name) for name in names}
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--IdentityProvider.token=", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={course}"]
    command += ["--ServerApp.jpserver_extensions={'nbgrader.server_extensions.formgrader': True}"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=course, env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}/formgrader"
    try:
        deadline = time.monotonic() + 60
        while not answers(f"{address}/api/status"):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the server must start, got:\n{(folder / 'log').read_text()}")
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=30)


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except OSError:
        return False
    return True


def test_the_formgrader_shows_scores_messages_and_rubrics(chromium, course, formgrader):
    context = chromium.new_context(viewport=DESK)
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    # nbgrader's template fetches MathJax from the web if it can; without it, formulas stay as they are typed.
    page.route(lambda url: not url.startswith("http://127.0.0.1"), lambda route: route.abort())
    page.goto(f"{formgrader}/manage_submissions/{ASSIGNMENT}")
    row = page.locator("tr", has_text="unscaled")
    row.wait_for()
    assert "6.5 / 10" in row.inner_text()
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        submission = book.find_submission_notebook(ASSIGNMENT, ASSIGNMENT, "unscaled").id
    page.goto(f"{formgrader}/submissions/{submission}/")
    page.wait_for_function("() => document.querySelector('#kqv-check')?.placeholder === '1'")
    assert page.locator("#attention-scores-check").input_value() == "1.5"
    words = page.inner_text("body")
    assert f"hint:     {opening('not-scaled')}" in words
    assert "½ point" in words
    if folder := os.environ.get("FEEDBACK_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / "formgrader.png", full_page=True)
    assert errors == ["MathJax is not defined"]
    context.close()


def test_the_formgrader_shows_pictures_and_runs_nothing_of_a_student(chromium, course, formgrader):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        ids = {student: book.find_submission_notebook(ASSIGNMENT, ASSIGNMENT, student).id for student in PAGES}
        # nbgrader's template shows names, which are the instructor's, as they are in the gradebook.
        book.update_or_create_student("hostile", first_name="Jo", last_name="Doe")
    context = chromium.new_context(viewport=DESK)
    page = context.new_page()
    page.route(lambda url: not url.startswith("http://127.0.0.1"), lambda route: route.abort())
    for student in ("hostile", "wide"):
        page.goto(f"{formgrader}/submissions/{ids[student]}/")
        assert "Two questions in writing" in page.inner_text("body")
        assert page.evaluate("() => window.ran") is None
    assert page.locator(f"img[alt='my algebra'][src='data:image/png;base64,{PIXEL}']").count() == 1
    context.close()
