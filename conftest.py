"""What holds for lessons: one whose text has not been fetched skips. tests/conftest.py is for tests."""

import os
import re

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the lessons whose corpus is not in the data folder, except in CI, where they try to fetch it."""
    if os.environ.get("CI") == "true":
        return
    lessons = {item.path for item in items if item.path.suffix == ".ipynb"}
    reasons = {lesson: _reason_to_skip(lesson.read_text(encoding="utf-8")) for lesson in lessons}
    for item in items:
        if reason := reasons.get(item.path):
            item.add_marker(pytest.mark.skip(reason))


def _reason_to_skip(lesson: str) -> str | None:
    """Return which corpus a lesson reads that is not there, and what to do."""
    from transformer_lm.texts.downloads import (  # only now, because it loads torch
        CORPORA,
        READ_BY_LESSONS,
        data_folder,
        is_here,
    )

    for name in READ_BY_LESSONS:
        if re.search(rf"\bload_{name}\(", lesson) and not is_here(*CORPORA[name]):
            return f"{name} is not in {data_folder()}. Fetch it with `make data`."
    return None
