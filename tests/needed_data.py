"""The files that tests read from the data folder. `make data` runs this module to fetch them; without them, tests skip.

No test downloads anything from the internet, so a run takes the same time with a network and without one.
"""

import pytest

from transformer_lm.texts.downloads import CORPORA, File, data_folder, fetch_all, is_here

TRANSFORMER_LENS = File(
    name="transformer_lens-4.3.0-py3-none-any.whl",
    source="pypi:transformer-lens==4.3.0",
    sha256="fd3aff408b4145a8b4b00cacdc32a25c047c4c4f416de4b7b260abd375ae89db",
    size=1_577_976,
)
NEEDED = CORPORA | {
    "imdb": CORPORA["imdb"][::-1],  # the smaller of two files first
    "transformer-lens": (TRANSFORMER_LENS,),
}


def skip_without(name: str) -> None:
    """Skip the running test, unless a file for this name is in the data folder."""
    if not is_here(*NEEDED[name]):
        pytest.skip(missing(name))


def missing(name: str) -> str:
    """Return the line that says what is missing, and what to do."""
    return f"{name} is not in {data_folder()}. Fetch it with `make data`."


if __name__ == "__main__":
    raise SystemExit(1 if fetch_all(NEEDED) else 0)
