"""Where this checkout is, and where the package keeps what has a name."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def module_of(name: str) -> str:
    """Return the module that holds what the package calls by a name: `heads.scores` for `heads.scores.HeadSums`."""
    parts = name.split(".")
    modules = [parts[:end] for end in range(len(parts) - 1, 0, -1)]
    return next(
        ".".join(each) for each in modules if ROOT.joinpath("transformer_lm", *each).with_suffix(".py").is_file()
    )
