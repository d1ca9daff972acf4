"""Settings and fixtures for all tests."""

import datetime
import os
import sys
import tempfile
from pathlib import Path

import pytest

IN_CI = os.environ.get("CI") == "true"

# nbgrader calls alembic by its bare name, and finds it even when this environment is not activated.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# Courses in other folders find the grading here.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
# Notebooks use the package's functions, not answers that are saved in this checkout.
os.environ["TRANSFORMER_LM_ANSWERS"] = str(Path(tempfile.gettempdir()) / "no-such-folder" / "my_answers")
# Corpora are in this checkout, whatever folder a test works in.
os.environ.setdefault("TRANSFORMER_LM_DATA", str(Path(__file__).parents[1] / "data" / "cache"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run be repeated on another day: some tests try a different selection every day."""
    today = datetime.date.today().toordinal()
    parser.addoption("--turn", type=int, default=today, help="whose turn it is; by default it changes every day")


def pytest_report_header(config: pytest.Config) -> str:
    """Say how to repeat this choice on another day."""
    return f"today's choice of wrong answers and seeds: --turn {config.getoption('turn')}"


@pytest.fixture
def turn(request: pytest.FixtureRequest) -> int:
    """Return the number of today's selection."""
    return request.config.getoption("turn")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the lessons and the proof first: they take longest, and at the end, other processes would wait for them."""
    items.sort(key=lambda item: item.path.suffix != ".ipynb" and item.path.name != "test_prove.py")


@pytest.fixture(autouse=True)
def grading_ends():
    """Fail a test after which kernels of this process would still take their notebook for a submission."""
    before = os.environ.get("NBGRADER_EXECUTION")
    yield
    assert os.environ.get("NBGRADER_EXECUTION") == before


@pytest.fixture(scope="session")
def imdb():
    """Return the film reviews as load_imdb() does."""
    from needed_data import skip_without  # not at the top: most tests can do without torch

    from transformer_lm.datasets import load_imdb

    skip_without("imdb")
    return load_imdb(download=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Let no test skip in CI: there everything it needs is installed, so a skip is a gap."""
    report = yield
    return _refuse_to_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Let no whole file skip in CI either."""
    report = yield
    return _refuse_to_skip(report)


def _refuse_to_skip(report):
    """Return the report, as a failure if it is a skip in CI."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"A test must not skip in CI, got {reason}"
    return report
