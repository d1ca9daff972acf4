"""What helps people to work together: hooks before a commit, links that work, forms for reports."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from checkout import ROOT

PAGES = [
    page
    for pattern in ("*.md", ".github/*.md", "data/*.md", "docs/*.md", "docs/guides/*.md")
    for page in ROOT.glob(pattern)
]
FORMS = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
BREAKS = {
    "ruff-check": ("unused.py", b'"""Unused."""\n\nimport os\n'),
    "ruff-format": ("unformatted.py", b'"""Unformatted."""\n\nNAMES = [  ]\n'),
    "check-added-large-files": ("large.bin", bytes(2001 * 1024)),
    "check-merge-conflict": ("conflict.md", b"<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\n"),
    "end-of-file-fixer": ("cut.md", b"no newline"),
}


def test_all_hooks_come_from_this_environment():
    (local,) = HOOKS
    assert local["repo"] == "local"
    for hook in local["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].startswith(".venv/bin/python -m "), hook["id"]
    assert {hook["id"] for hook in local["hooks"]} == set(BREAKS)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """Return a repository with the hooks of this one, and a .venv that leads to this environment."""
    folder = tmp_path_factory.mktemp("repository")
    for name in (".pre-commit-config.yaml", "pyproject.toml", "tests/course/test_habits.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / ".gitignore").write_text(".venv/\n.ruff_cache/\n")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


def _commit_hooks(repository: Path, *hooks: str) -> subprocess.CompletedProcess:
    """Run the hooks on all that `git add` takes."""
    # Use neither the repository of a commit that runs these tests nor a cache in the user's home folder.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["PRE_COMMIT_HOME"] = str(repository / ".git" / "pre-commit")
    subprocess.run(["git", "add", "--all"], cwd=repository, env=environment, check=True)
    command = [sys.executable, "-m", "pre_commit", "run", "--all-files", *hooks]
    return subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)


def test_the_hooks_pass_what_is_committed_here(repository):
    run = _commit_hooks(repository)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("Passed") == len(BREAKS), run.stdout


@pytest.mark.parametrize("hook", BREAKS)
def test_each_hook_stops_what_it_is_for(repository, hook):
    name, content = BREAKS[hook]
    (repository / name).write_bytes(content)
    run = _commit_hooks(repository, hook)
    (repository / name).unlink()
    assert run.returncode == 1
    assert name in run.stdout


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_of_a_page_leads_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_a_newcomer_finds_the_guide():
    assert "](docs/guides/contribute.md)" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", FORMS, ids=[form.stem for form in FORMS])
def test_a_form_is_one_that_github_shows(form):
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(content)
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea"}
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields) > 2


def test_an_answer_that_is_judged_wrongly_is_asked_about_whole():
    form = ROOT / ".github" / "ISSUE_TEMPLATE" / "answer-judged-wrongly.yml"
    fields = yaml.safe_load(form.read_text(encoding="utf-8"))["body"][1:]
    assert [field["id"] for field in fields] == ["exercise", "answer", "said", "expected", "version", "try"]
    assert "python -m grading try" in fields[-1]["attributes"]["label"]


def test_the_citation_can_be_read():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == "MIT"
