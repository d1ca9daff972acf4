"""Files that are fetched once: only whole and right ones get their name, and every failure says what to do."""

import hashlib
import io
import os
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from transformer_lm import downloads
from transformer_lm.downloads import File, data_folder, fetched

CONTENT = bytes(range(256)) * 1000
SUM = hashlib.sha256(CONTENT).hexdigest()
WRONG = b"<html>Please log in</html>"
WRONG_SUM = hashlib.sha256(WRONG).hexdigest()


class Server(ThreadingHTTPServer):
    """A server on this machine: /right, /wrong, /half a file, /endless, /silent, /moved, anything else is missing."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        self.closing = threading.Event()

    def file(self, path: str) -> File:
        return File("corpus.txt", f"http://127.0.0.1:{self.server_port}/{path}", SUM, len(CONTENT))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        body = {"/right": CONTENT, "/wrong": WRONG, "/half": CONTENT[:70_000], "/endless": CONTENT}.get(self.path)
        if self.path == "/silent":
            self.server.closing.wait()
        elif self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/right")
            self.end_headers()
        elif body is None:
            self.send_error(404)
        else:
            self.send_response(200)
            if self.path != "/endless":
                self.send_header("Content-Length", str(len(CONTENT) if self.path == "/half" else len(body)))
            self.end_headers()
            self.wfile.write(body)
            while self.path == "/endless":  # until the other side has had enough
                self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        server.handle_error = lambda *arguments: None  # that somebody hangs up is what some tests are about
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.closing.set()
        server.shutdown()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Return a data folder that does not exist yet."""
    monkeypatch.setenv("TRANSFORMER_LM_DATA", str(tmp_path / "the data"))
    return tmp_path / "the data"


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Return a function that puts a command `npm` with this script in place of the real one."""

    def install(script: str) -> None:
        command = tmp_path / "bin" / "npm"
        command.parent.mkdir()
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", str(command.parent))

    return install


PACKAGE = File("corpus-1.0.0.tgz", "npm:corpus@1.0.0", hashlib.sha256(b"archive").hexdigest(), 7)


# Where files are


def test_the_environment_names_the_folder(folder):
    assert data_folder() == folder


@pytest.mark.parametrize("inside", [".", "notebooks", "source/03_classification"])
def test_the_folder_of_the_course_is_found_from_anywhere_in_it(inside, tmp_path, monkeypatch):
    monkeypatch.delenv("TRANSFORMER_LM_DATA")
    for name in ("notebooks", inside):
        (tmp_path / "course" / name).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / "course" / inside)
    assert data_folder() == tmp_path / "course" / "data" / "cache"


def test_outside_of_the_course_the_folder_is_in_the_home(tmp_path, monkeypatch):
    monkeypatch.delenv("TRANSFORMER_LM_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert data_folder() == tmp_path / ".cache" / "transformer_lm"


# What is there is used


def test_a_file_in_the_folder_is_used_without_asking_anybody(server, folder):
    folder.mkdir()
    (folder / "corpus.txt").write_bytes(CONTENT)
    assert fetched(server.file("right")) == folder / "corpus.txt"
    assert server.asked == []


def test_any_of_the_files_will_do(server, folder):
    folder.mkdir()
    (folder / PACKAGE.name).write_bytes(b"archive")
    assert fetched(server.file("right"), PACKAGE) == folder / PACKAGE.name
    assert server.asked == []


def test_a_damaged_file_is_refused_with_both_sums_and_left_alone(server, folder):
    folder.mkdir()
    (folder / "corpus.txt").write_bytes(CONTENT[:-1])
    found = hashlib.sha256(CONTENT[:-1]).hexdigest()
    with pytest.raises(ValueError, match="must have SHA-256") as refusal:
        fetched(server.file("right"), PACKAGE)
    assert str(refusal.value) == (
        f"corpus.txt must have SHA-256 {SUM} (256,000 bytes), got {found} (255,999 bytes). "
        f"Delete {folder / 'corpus.txt'} and run again."
    )
    assert (folder / "corpus.txt").read_bytes() == CONTENT[:-1]
    assert server.asked == []


# What is not there is downloaded


@pytest.mark.parametrize("path", ["right", "moved"])
def test_a_missing_file_is_downloaded_once_with_a_progress_bar(path, server, folder, capsys):
    for _ in range(2):
        assert fetched(server.file(path)).read_bytes() == CONTENT
    assert server.asked == list(dict.fromkeys([f"/{path}", "/right"]))
    assert [file.name for file in folder.iterdir()] == ["corpus.txt"]
    assert "corpus.txt: 100%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("wrong", f"got {WRONG_SUM} (26 bytes)"),
        ("half", f"got {hashlib.sha256(CONTENT[:70_000]).hexdigest()} (70,000 bytes)"),
        ("endless", f"must have SHA-256 {SUM} (256,000 bytes)"),
        ("silent", "timed out"),
        ("missing", "HTTP Error 404"),
    ],
)
def test_a_download_that_fails_leaves_nothing_and_says_what_to_do(path, reason, server, folder, monkeypatch):
    if path == "silent":
        monkeypatch.setattr(downloads, "SECONDS", 0.1)
    with pytest.raises(FileNotFoundError) as failure:
        fetched(server.file(path))
    assert list(folder.iterdir()) == []
    assert reason in str(failure.value)
    assert f"- download {server.file(path).source} and put the file at {folder / 'corpus.txt'}" in str(failure.value)


def test_without_a_network_the_error_says_where_to_put_the_file(server, folder):
    file = server.file("right")
    server.shutdown()
    server.server_close()
    with pytest.raises(FileNotFoundError, match=r"got none\. Any one of these will do:\n- download http://") as failure:
        fetched(file)
    assert str(folder / "corpus.txt") in str(failure.value)
    assert "Connection refused" in str(failure.value)


def test_an_interrupted_download_leaves_nothing(server, folder, monkeypatch):
    def interrupt(bar, count):
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads.tqdm, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetched(server.file("right"))
    assert list(folder.iterdir()) == []


def test_nothing_is_downloaded_unless_allowed(server, folder):
    with pytest.raises(FileNotFoundError, match="- download http://"):
        fetched(server.file("right"), download=False)
    assert server.asked == []
    assert not folder.exists()


@pytest.mark.parametrize("source", ["file:///etc/hostname", "ftp://example.org/corpus.txt", "corpus.txt"])
def test_other_sources_are_refused(source):
    with pytest.raises(ValueError, match="source must begin with https://, http://, npm:, pypi: or hand:, got "):
        File("corpus.txt", source, SUM, len(CONTENT))


# By hand


def test_what_only_a_person_can_get_is_said_and_not_tried(server, folder):
    by_hand = File("poems.txt", "hand:ask a friend for poems.txt", SUM, len(CONTENT))
    assert fetched(by_hand, server.file("right")) == folder / "corpus.txt"
    with pytest.raises(FileNotFoundError) as failure:
        fetched(by_hand)
    assert str(failure.value).split("\n")[1:] == [
        f"- ask a friend for poems.txt and put the file at {folder / 'poems.txt'}"
    ]


# Packages of npm


def test_a_package_is_fetched_by_npm(folder, npm):
    npm('[ "$1 $2" = "pack corpus@1.0.0" ] && printf archive > corpus-1.0.0.tgz')
    assert fetched(PACKAGE).read_bytes() == b"archive"
    assert [file.name for file in folder.iterdir()] == [PACKAGE.name]


def test_a_package_is_the_second_choice(server, folder, npm):
    npm("printf archive > corpus-1.0.0.tgz")
    assert fetched(server.file("wrong"), PACKAGE) == folder / PACKAGE.name
    assert server.asked == ["/wrong"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'npm error code ENOTFOUND' >&2; exit 1", "npm error code ENOTFOUND"),
        ("printf other > corpus-1.0.0.tgz", f"must have SHA-256 {PACKAGE.sha256} (7 bytes), got "),
        ("exit 0", "No such file"),
    ],
)
def test_npm_that_fails_leaves_nothing_and_the_error_says_why(script, reason, folder, npm):
    npm(script)
    with pytest.raises(FileNotFoundError) as failure:
        fetched(PACKAGE)
    assert reason in str(failure.value)
    assert f"- run npm pack corpus@1.0.0 and put the file at {folder / PACKAGE.name}" in str(failure.value)
    assert list(folder.iterdir()) == []


def test_without_npm_the_error_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="tried in vain: npm is not installed"):
        fetched(PACKAGE)


# Packages of pip


def wheel() -> bytes:
    """Return the archive of a package that needs no building."""
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("corpus/text.txt", "to be or not to be")
            archive.writestr("corpus-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: corpus\nVersion: 1.0\n")
            archive.writestr("corpus-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr("corpus-1.0.dist-info/RECORD", "")
        return buffer.getvalue()


def source_archive(trace: Path) -> bytes:
    """Return the archive of a package with code that pip runs to know its metadata, and that leaves a trace."""
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    backend = f"""
import pathlib

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    pathlib.Path({str(trace)!r}).touch()
    info = pathlib.Path(folder) / "corpus-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: corpus\\nVersion: 1.0\\n")
    return info.name
"""
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, content in {"pyproject.toml": project, "backend.py": backend, "PKG-INFO": ""}.items():
                member = tarfile.TarInfo(f"corpus-1.0/{name}")
                member.size = len(content.encode())
                archive.addfile(member, io.BytesIO(content.encode()))
        return buffer.getvalue()


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """Return the folder where pip looks for packages, and nowhere else."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


def of_pip(name: str, content: bytes) -> File:
    return File(name, "pypi:corpus==1.0", hashlib.sha256(content).hexdigest(), len(content))


WHEEL, SOURCE = "corpus-1.0-py3-none-any.whl", "corpus-1.0.tar.gz"


@pytest.mark.parametrize("name", [WHEEL, SOURCE])
def test_a_package_is_fetched_by_pip(name, folder, index, tmp_path):
    contents = {WHEEL: wheel(), SOURCE: source_archive(tmp_path / "trace")}
    (index / name).write_bytes(contents[name])
    assert fetched(of_pip(name, contents[name])).read_bytes() == contents[name]
    assert [file.name for file in folder.iterdir()] == [name]
    assert (tmp_path / "trace").exists() == (name == SOURCE)


def test_nothing_of_a_package_with_another_checksum_runs(folder, index, tmp_path):
    (index / SOURCE).write_bytes(source_archive(tmp_path / "trace"))
    with pytest.raises(FileNotFoundError, match="DO NOT MATCH THE HASHES"):
        fetched(of_pip(SOURCE, b"the one that was meant"))
    assert not (tmp_path / "trace").exists()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (WHEEL, "pip download --no-deps --only-binary=:all: corpus==1.0"),
        (SOURCE, "pip download --no-deps --no-binary=corpus corpus==1.0"),
    ],
)
def test_a_package_that_pip_does_not_find_leaves_nothing_and_the_error_says_what_to_do(name, command, folder, index):
    with pytest.raises(FileNotFoundError, match=r"tried in vain: .*No matching distribution found") as failure:
        fetched(of_pip(name, b""))
    assert f"- run {command} and put the file at {folder / name}" in str(failure.value)
    assert list(folder.iterdir()) == []


def test_without_pip_the_error_says_so(index, tmp_path, monkeypatch):
    bare = tmp_path / "python"
    bare.write_text(f"#!/bin/sh\nexec {sys.executable} -I -S -m pip\n")  # as one without any packages
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(FileNotFoundError, match=r"tried in vain: .*No module named pip"):
        fetched(of_pip(WHEEL, b""))
