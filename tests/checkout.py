"""Where this checkout is, and which module of the package holds a name."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def module_of(name: str) -> str:
    """Return the module that holds a dotted name of the package: `heads.scores` for `heads.scores.HeadSums`."""
    parts = name.split(".")
    modules = [parts[:end] for end in range(len(parts) - 1, 0, -1)]
    return next(
        ".".join(each) for each in modules if ROOT.joinpath("transformer_lm", *each).with_suffix(".py").is_file()
    )
