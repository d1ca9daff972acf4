"""Files that are fetched once: only whole and right ones get their name, and every failure says what to do."""

import dataclasses
import hashlib
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nbformat
import pytest
from checkout import ROOT
from nbclient import NotebookClient

from transformer_lm.texts import downloads
from transformer_lm.texts.downloads import File, data_folder, fetch_all, fetched, main

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
        server.handle_error = lambda *arguments: None  # some tests are about connections that are cut
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.closing.set()
        server.shutdown()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Return a data folder that does not exist yet."""
    monkeypatch.setenv("TRANSFORMER_LM_DATA", str(tmp_path / "the data"))
    monkeypatch.setattr(downloads, "_unreachable", set())
    return tmp_path / "the data"


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Return a function that replaces the command `npm` with this script."""

    def install(script: str) -> None:
        command = tmp_path / "bin" / "npm"
        command.parent.mkdir(exist_ok=True)
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


# The route that answers


@pytest.fixture
def slow_names(monkeypatch):
    """Let the look-up of a name take longer than the limit."""
    found = threading.Event()

    def look_up(*arguments):
        found.wait(60)
        return []

    monkeypatch.setattr(downloads, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield
    found.set()


def test_a_name_that_is_looked_up_for_ever_costs_seconds(slow_names, folder):
    started = time.monotonic()
    with pytest.raises(FileNotFoundError, match=r"failed: corpus\.invalid timed out after 0\.2 seconds"):
        fetched(File("corpus.txt", "https://corpus.invalid/corpus.txt", SUM, len(CONTENT)))
    assert time.monotonic() - started < 10
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("trouble", ["no such name", "refused", "full", "silent"])
def test_a_host_that_does_not_answer_is_tried_last_from_then_on(trouble, server, npm, monkeypatch):
    """A corpus from the package waits for its home only once, and the home is tried again if all else fails."""
    monkeypatch.setattr(downloads, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(downloads, "SECONDS", 0.5)
    npm("printf archive > corpus-1.0.0.tgz")
    tried = []
    knock = downloads._knock
    monkeypatch.setattr(downloads, "_knock", lambda url: tried.append(url) or knock(url))
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{port.getsockname()[1]}"  # refuses, until it listens
        if trouble == "full":
            port.listen(0)
            waiting = socket.create_connection(port.getsockname())
        hosts = {"no such name": "corpus.invalid", "silent": f"127.0.0.1:{server.server_port}"}
        home = File("corpus.txt", f"http://{hosts.get(trouble, address)}/silent", SUM, len(CONTENT))
        for _ in range(2):
            assert fetched(home, PACKAGE).name == PACKAGE.name
            PACKAGE.path.unlink()
        assert len(tried) == 1
        npm("exit 1")
        with pytest.raises(FileNotFoundError, match=r"run npm pack(.|\n)*download http://"):
            fetched(home, PACKAGE)
        assert len(tried) == 2
        if trouble == "full":
            waiting.close()


def test_a_host_that_answers_with_the_wrong_file_is_asked_again(server, npm):
    npm("printf archive > corpus-1.0.0.tgz")
    for path in ("wrong", "missing"):
        assert fetched(server.file(path), PACKAGE).name == PACKAGE.name
        PACKAGE.path.unlink()
    assert server.asked == ["/wrong", "/missing"]


def test_where_a_proxy_leads_to_the_web_only_the_proxy_is_connected_to(server, monkeypatch):
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(FileNotFoundError, match="HTTP Error 404"):
        fetched(File("corpus.txt", "http://corpus.invalid/right", SUM, len(CONTENT)))
    assert server.asked == ["http://corpus.invalid/right"]


# What the set-up fetches


def test_what_is_missing_is_fetched_and_what_is_there_is_left_alone(server, folder, capsys):
    corpora = {"one": (server.file("right"),)}
    assert fetch_all(corpora) == fetch_all(corpora) == []
    assert server.asked == ["/right"]
    (folder / "corpus.txt").unlink()
    assert fetch_all(corpora) == []
    assert server.asked == ["/right"] * 2


def test_a_corpus_that_is_not_available_is_one_line_and_the_next_one_is_fetched(server, folder, capsys, npm):
    npm("echo 'npm error code ENOTFOUND' >&2; exit 1")
    missing = dataclasses.replace(server.file("missing"), name="one.txt")
    assert fetch_all({"one": (missing, PACKAGE), "two": (server.file("right"),)}) == ["one"]
    lines = [line.rpartition("\r")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line for line in lines if line and "B/s" not in line] == [
        "one could not be fetched (HTTP Error 404: Not Found; npm error code ENOTFOUND). "
        f"Put it in {folder}: see data/README.md."
    ]
    assert [file.name for file in folder.iterdir()] == ["corpus.txt"]


def test_a_damaged_corpus_is_one_line(server, folder, capsys):
    folder.mkdir()
    (folder / "corpus.txt").write_bytes(WRONG)
    assert fetch_all({"one": (server.file("right"),)}) == ["one"]
    assert re.fullmatch(r"one: corpus\.txt must have SHA-256 .* and run again\.\n", capsys.readouterr().err)


def test_without_a_name_the_corpora_of_the_lessons_are_fetched(server, monkeypatch):
    corpora = {"shakespeare": (server.file("right"),), "other": (server.file("missing"),)}
    monkeypatch.setattr(downloads, "CORPORA", corpora)
    assert main([]) == 0
    assert server.asked == ["/right"]
    assert main(["other"]) == 0  # its file is there by now: it has the same name
    with pytest.raises(ValueError, match=r"a corpus must be one of shakespeare, other, got poems\."):
        main(["poems"])


def test_the_command_that_make_runs_needs_no_torch():
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code, downloads.__file__]).returncode == 0


# Notebooks


LESSON = """
from pathlib import Path

from transformer_lm.texts.downloads import File, fetched

print("before")
print(len(fetched(File("corpus.txt", "{source}", "{sum}", {size})).read_bytes()))
"""


def run_lesson(folder: Path, source: str, said: str) -> subprocess.CompletedProcess:
    """Return what pytest makes of a notebook with one cell, which printed this when it was saved."""
    printed = nbformat.v4.new_output("stream", name="stdout", text=said)
    cell = nbformat.v4.new_code_cell(source, execution_count=1, outputs=[printed])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / "lesson.ipynb")
    options = ("--nbval", "--nbval-current-env", "-ra", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "lesson.ipynb", *options], cwd=folder, capture_output=True, text=True
    )


def test_a_lesson_has_the_same_outputs_with_a_download_and_without(server, folder, tmp_path):
    source = LESSON.format(source=server.file("right").source, sum=SUM, size=len(CONTENT))
    for _ in range(2):
        run = run_lesson(tmp_path, source, "before\n256000\n")
        assert run.returncode == 0, run.stdout
    assert server.asked == ["/right"]


def test_a_notebook_shows_a_bar_while_it_downloads_and_none_afterwards(server, folder, tmp_path):
    cell = nbformat.v4.new_code_cell(LESSON.format(source=server.file("right").source, sum=SUM, size=len(CONTENT)))
    client = NotebookClient(nbformat.v4.new_notebook(cells=[cell]), kernel_name="python3")
    shown = []
    handle = client.process_message

    def watch(message, *arguments):
        if message["msg_type"] == "update_display_data":
            shown.append(message["content"]["data"])
        return handle(message, *arguments)

    client.process_message = watch
    client.execute()
    assert re.match(r"corpus\.txt: +\d+%", shown[0]["text/plain"])
    assert shown[-1] == {}
    assert [output.get("data") for output in cell.outputs if output.output_type == "display_data"] == [{}]
    assert not [output for output in cell.outputs if output.get("name") == "stderr"]


@pytest.mark.parametrize(("in_ci", "outcome"), [("", "1 skipped"), ("true", "1 failed")])
def test_a_lesson_without_its_corpus_skips_with_one_line(in_ci, outcome, folder, tmp_path, monkeypatch):
    """Except in CI, where no test may skip."""
    shutil.copy(ROOT / "conftest.py", tmp_path)
    monkeypatch.setenv("CI", in_ci)
    run = run_lesson(tmp_path, "def load_shakespeare(): raise FileNotFoundError('no text')\nload_shakespeare()", "")
    assert outcome in run.stdout, run.stdout
    if not in_ci:
        assert f"shakespeare is not in {folder}. Fetch it with `make data`." in run.stdout


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
    with pytest.raises(FileNotFoundError, match="failed: npm is not installed"):
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
    with pytest.raises(FileNotFoundError, match=r"failed: .*No matching distribution found") as failure:
        fetched(of_pip(name, b""))
    assert f"- run {command} and put the file at {folder / name}" in str(failure.value)
    assert list(folder.iterdir()) == []


def test_without_pip_the_error_says_so(index, tmp_path, monkeypatch):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S -m pip\n')  # as one without any packages
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(FileNotFoundError, match=r"failed: .*No module named pip"):
        fetched(of_pip(WHEEL, b""))
