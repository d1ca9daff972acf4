"""Collects submissions for `nbgrader zip_collect` from a platform's zip, without unpacking zips inside it."""

import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from nbgrader.plugins import ExtractorPlugin, FileNameCollectorPlugin

from grading.results.pages import printable

LARGEST = 50_000_000  # bytes of one file; no graded notebook or model is larger
STUDENT = re.compile(r"\w[\w.@+-]*")  # allowed names of folders


class SubmissionCollector(FileNameCollectorPlugin):
    """Takes student and file from the whole name in the zip, so that students can't fake another student's number."""

    def collect(self, submitted_file: str) -> dict | None:
        """Return the data in the name of an extracted file."""
        folder = Path(self.parent._format_collect_path(self.parent.extracted_directory))
        return self.match(Path(submitted_file).relative_to(folder).as_posix())

    def match(self, name: str) -> dict | None:
        """Return the data in a name in the zip, or None if it is not the name of a submission."""
        found = re.fullmatch(self.named_regexp, name)
        if found is None or not STUDENT.fullmatch(found["student_id"]) or "/" in found["file_id"]:
            return None
        return found.groupdict() if Path(name).suffix in self.valid_ext else None


class SubmissionExtractor(ExtractorPlugin):
    """Extracts submissions from the zip, the newest of those with the same name, and warns about all other files."""

    def extract(self, archive_path: str, extracted_path: str) -> None:
        """Write the submissions from all zips in a folder, and those next to the zips, into another folder."""
        newest: dict[tuple[str, str], tuple[tuple[int, int], str]] = {}
        for name, size, _ in _members(Path(archive_path)):
            found = self.parent.collector_plugin_inst.match(name)
            if found is None or size > LARGEST:
                self._leave_out(name, "its name is not that of a submission" if size <= LARGEST else "it is too large")
                continue
            file = found["student_id"], found["file_id"] + Path(name).suffix
            age = int(found.get("number") or 0), int(found.get("again") or 0)
            older, newest[file] = sorted([newest.get(file, ((-1, -1), "")), (age, name)])
            if older[1]:
                self._leave_out(older[1], "there is a newer one")
        wanted = {name for _, name in newest.values()}
        for name, _, content in _members(Path(archive_path)):
            if name in wanted:
                target = Path(extracted_path) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as copy:
                    shutil.copyfileobj(content, copy)

    def _leave_out(self, name: str, reason: str) -> None:
        self.log.warning("%s is left out: %s.", printable(name), reason)


def _members(folder: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, size and content of the files in a folder, where zips are replaced by the files in them."""
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        if path.suffix.lower() != ".zip":  # a notebook crafted by a student may also be a valid zip
            with path.open("rb") as content:
                yield path.name, path.stat().st_size, content
            continue
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    with archive.open(member) as content:
                        yield member.filename, member.file_size, content
