"""Writes the package as students get it while exercises are open, without their answers and otherwise unchanged."""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from transformer_lm.course.unsealing import seal, sealed_path

PACKAGE = Path(__file__).parents[2] / "transformer_lm"
# No other files, because those that Python and editors leave behind may contain answers.
SUFFIXES = (".py", ".js", ".json", ".md", ".safetensors", ".toml", ".typed")
# The last lines of a module with sealed parts.
UNSEAL = b"""

# What is left out above is sealed: the package needs it to train models while its exercise is open.
from transformer_lm.course.unsealing import unseal  # noqa: E402

unseal(globals())
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def write_student_edition(folder: Path, hidden: Mapping[str, str], sealed: Mapping[str, str] | None = None) -> Path:
    """Copy the package into a folder without the answers in `hidden`, and return where the copy is.

    `hidden` maps `module.function`, `module.Class.method` or `module.Class` (all its methods) to the id of the exercise
    that it answers. Signature and docstring stay; the body becomes an error that names the exercise. Functions in
    `sealed` can't be read either, but the package can use them; see transformer_lm/course/unsealing.py.

    Raises ValueError, before anything is written, if a name hides nothing or would leave a lambda readable, or if the
    folder already contains a copy, in which compiled answers may be left.
    """
    edition = folder / PACKAGE.name
    if edition.exists():
        raise ValueError(f"folder must hold no {PACKAGE.name} yet, got {folder}.")
    files = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*")) if path.suffix in SUFFIXES]
    files = [file for file in files if not any(part.startswith(".") for part in file.parts)]  # .ipynb_checkpoints
    contents = {file: (PACKAGE / file).read_bytes() for file in files}
    run = contents | _without_answers(contents, hidden)
    shown = run | _without_answers(contents, {**hidden, **(sealed or {})})
    for file in [file for file in files if shown[file] != run[file]]:
        shown[file] += UNSEAL
        shown[sealed_path(".".join(_module(file)))] = seal(run[file])
    for file, content in shown.items():
        (edition / file).parent.mkdir(parents=True, exist_ok=True)
        (edition / file).write_bytes(content)
    return edition


@functools.cache
def marked_answers(mark: str) -> dict[str, tuple[str, ...]]:
    """Return everything marked by transformer_lm/answers.py, as `module.name`, with the exercises that it answers."""
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if f"@{mark}".encode() in path.read_bytes()]
    modules = {".".join(_module(file.relative_to(PACKAGE))): ast.parse(file.read_bytes()) for file in files}
    return {name: exercises for module, tree in modules.items() for name, exercises in _marked(tree, module, mark)}


def _marked(scope: ast.AST, scope_name: str, mark: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield everything marked in a module, its classes and its `if` statements, with the arguments of the mark."""
    for node in ast.iter_child_nodes(scope):
        name = f"{scope_name}.{getattr(node, 'name', '')}".rstrip(".")
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == mark:
                yield name, tuple(map(ast.literal_eval, decorator.args))
        if not isinstance(node, Function):
            yield from _marked(node, name, mark)


def _module(file: Path) -> list[str]:
    """Return the parts of a module's name, without the package."""
    return [part for part in file.with_suffix("").parts if part != "__init__"]


def _without_answers(contents: Mapping[Path, bytes], hidden: Mapping[str, str]) -> dict[Path, bytes]:
    """Return the modules without the answers in `hidden`. Raises ValueError if an answer is not in any module."""
    found, texts = set(), {}
    for file in [file for file in contents if file.suffix == ".py"]:
        module = _module(file)
        lines = contents[file].splitlines(keepends=True)
        for name, function in reversed(list(_answers(ast.parse(contents[file]), ".".join(module), hidden))):
            found.add(name)
            own_name = ".".join(name.split(".")[len(module) :])
            message = f"{own_name} would give away exercise {hidden[name]}: write your own in the notebook."
            _hide_body(lines, function, message)
        texts[file] = b"".join(lines)
    for name in hidden:
        if name not in found:
            raise ValueError(f"hidden must name functions, methods or classes with methods, got {name!r}.")
    return texts


def _answers(
    scope: ast.AST, scope_name: str, hidden: Mapping[str, str], answer: str | None = None
) -> Iterator[tuple[str, Function]]:
    """Yield the functions to hide, in order, each with the name in `hidden` of the function or its class, the `answer`.

    A name may refer to several functions: overloads, a property and its setter, the two branches of an `if`.
    """
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.Lambda) and answer:
            raise ValueError(f"{answer} must hold no lambda outside its methods, got one in line {node.lineno}.")
        if not isinstance(node, Function | ast.ClassDef):
            yield from _answers(node, scope_name, hidden, answer)
            continue
        name = f"{scope_name}.{node.name}".removeprefix(".")  # names in __init__.py have no module name in front
        listed = name if name in hidden else answer
        if isinstance(node, ast.ClassDef):
            yield from _answers(node, name, hidden, listed)
        elif listed:
            yield listed, node


def _hide_body(lines: list[bytes], function: Function, message: str) -> None:
    """Replace the lines of a function, from the colon to its last comment, with its docstring and an error."""
    first = function.body[0]
    start, end = first.lineno - 1, function.end_lineno
    assert end is not None
    assert first.end_lineno is not None
    assert first.end_col_offset is not None
    indent = _indent(lines[function.lineno - 1])
    signature = lines[start][: first.col_offset].rstrip()  # empty unless the body is on the same line
    body = [signature + b"\n"] if signature else []
    if ast.get_docstring(function) is not None:
        docstring = b"".join(lines[start : first.end_lineno])
        after = len(lines[first.end_lineno - 1]) - first.end_col_offset
        body.append(indent + b"    " + docstring[first.col_offset : len(docstring) - after] + b"\n")
    body.append(indent + f"    raise NotImplementedError({message!r})\n".encode())

    start = min([start, *(decorator.lineno - 1 for decorator in getattr(first, "decorator_list", []))])
    while not signature and lines[start - 1].lstrip()[:1] in (b"", b"#"):
        start -= 1
    for number, line in enumerate(lines[end:], start=end + 1):
        if line.strip() and not (line.lstrip().startswith(b"#") and len(_indent(line)) > len(indent)):
            break
        end = number if line.strip() else end
    lines[start:end] = body


def _indent(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip())]
