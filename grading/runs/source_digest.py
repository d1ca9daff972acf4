"""Computes a fingerprint of the code that decides an assignment's points; if it changes, submissions are graded again.

It covers the judge, the code in the answer process, and the records of the assignment, with everything they import from
this repository. Hints are left out, because a better sentence changes no points, and so are the records of other
assignments and the commands that only show results.
"""

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

from transformer_lm.checks.engine.places import PREFIX

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("grading", "transformer_lm")
JUDGE = "grading.runs.one_submission"
INSIDE = "grading/isolation/inside/*.py"
DATA = "grading/judging/trained_heads/*"  # the models in which heads are searched


def grading_digest(assignment: str, checkout: Path = CHECKOUT) -> str:
    """Return the fingerprint of the files that decide the points of an assignment, as they are now."""
    digest = hashlib.sha256()
    for file in deciding_files(assignment, checkout):
        digest.update(f"{file.relative_to(checkout).as_posix()}\n".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def deciding_files(assignment: str, checkout: Path = CHECKOUT) -> list[Path]:
    """Return the files that decide the points of an assignment, in order."""
    records = (checkout / "grading" / "exercises" / f"{PREFIX}{assignment}").glob("*.py")
    waiting = [*_module_files(JUDGE, checkout), *checkout.glob(INSIDE), *records]
    found: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += _imported(file, checkout)
    return sorted(found | set(checkout.glob(DATA)))


def _imported(file: Path, checkout: Path) -> Iterator[Path]:
    """Yield the modules of this repository that a file imports, anywhere in it.

    Of a package, only names that are imported explicitly count, because its `__init__` imports everything.
    """
    if file.name == "__init__.py":
        return
    for module, names in _imports(file.read_bytes()):
        yield from _module_files(module, checkout)
        for name in names:
            yield from _named(module, name, checkout)


@functools.cache
def _imports(source: bytes) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the modules of this repository that a source text imports, each with the imported names."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.module, tuple(alias.name for alias in node.names)))
    return tuple((module, names) for module, names in found if module.partition(".")[0] in PACKAGES)


def _module_files(module: str, checkout: Path) -> Iterator[Path]:
    """Yield the file of a module and those of its parent packages."""
    parts = module.split(".")
    folders = [checkout.joinpath(*parts[: number + 1]) for number in range(len(parts))]
    files = [folder / "__init__.py" for folder in folders] + [folders[-1].with_suffix(".py")]
    yield from filter(Path.is_file, files)


def _named(module: str, name: str, checkout: Path) -> Iterator[Path]:
    """Yield the files of a package's module with this name, or of the module from which it imports the name."""
    yield from _module_files(f"{module}.{name}", checkout)
    package = checkout.joinpath(*module.split("."), "__init__.py")
    if package.is_file():
        for origin, names in _imports(package.read_bytes()):
            if name in names:
                yield from _module_files(origin, checkout)
