"""Write docs/rooms.md, a list of all modules: `python docs/rooms.py`.

A room is a folder, or a few of the modules that stay at the top because people type their names. What a room is for
is said in the docstring of its `__init__.py`. Rooms are in layers: each imports only from rooms before it.
"""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "rooms.md"
PACKAGES = ("transformer_lm", "grading")
TOPICS = "/topic_"  # in the names of rooms that are listed last, in the order of the course
# The modules at the top, by room: with what it is for, or with the folder that they belong to.
TOP = {
    "transformer_lm": {
        "the ground": (
            "The foundations of all other rooms: shapes, devices, settings, values to compare with.",
            ("shapes", "device", "settings", "test_values", "answers", "files", "text_tables", "lazily"),
        ),
        "models": (
            "The models of the course and what they compute, in the order in which it builds them.",
            (
                *("attention", "modeling_attention", "modeling_transformer", "modeling_classifier", "positions"),
                *("modeling_lm", "lm", "sampling", "modeling_encoder_decoder", "modeling_recurrent"),
                *("mlp", "transformer"),
            ),
        ),
        "texts": (None, ("datasets",)),
        "course": (None, ("mine", "hints", "hand_in")),
        "the package": ("What `import transformer_lm` gives, and the commands.", ("__init__", "__main__")),
    },
    "grading": {
        "results": (None, ("export",)),
        "the grading": ("The commands that instructors type.", ("__init__", "__main__")),
    },
}
TOPIC = "topic_04_language_model"
INTRODUCTION = """\
# Rooms

Where everything is: a line for each module, its own first one. A room is a folder or, where people type the names of
modules, a few modules at the top. Each room imports only from those above it in its table, and no module imports in a
circle. `tests/` has a folder for each kind of room. `make rooms` writes this page.
"""
# What newcomers look for: its description, file and name.
PLACES = (
    ("the softmax of attention", "transformer_lm/attention.py", "attention_weights"),
    ("the causal mask", "transformer_lm/attention.py", "create_causal_mask"),
    (
        "attention as a module, by PyTorch's kernel where it can",
        "transformer_lm/modeling_attention.py",
        "MultiHeadSelfAttention",
    ),
    ("the padding mask as attention uses it", "transformer_lm/modeling_attention.py", "_mask_of_padding"),
    ("the choice of the device", "transformer_lm/device.py", "best_device"),
    ("a training step", "transformer_lm/training/loop.py", "step"),
    ("the contract and the check of an exercise, here `slices`", f"transformer_lm/checks/{TOPIC}/slices.py", "slices"),
    ("its record: points, judge, right and wrong answers", f"grading/exercises/{TOPIC}/slices.py", "SLICES_RECORD"),
    ("how check and judge both examine random answers", f"transformer_lm/checks/{TOPIC}/slices.py", "examine_slices"),
    ("the record of an exercise that computes numbers", f"grading/exercises/{TOPIC}/labels.py", "LABELS_RECORD"),
    ("the calls that check and judge make of such an answer", "transformer_lm/checks/engine/calling.py", "CALLS"),
    ("the comparison, and the mistake that explains it", "transformer_lm/checks/engine/diagnosis.py", "compare"),
    ("the hints for its mistakes", f"transformer_lm/checks/{TOPIC}/hints.toml", "[slices]"),
    ("hints for mistakes that exercises share", "transformer_lm/checks/engine/hints.toml", "graph-cut"),
    ("hints that students ask for", "transformer_lm/course/hint_texts/04_language_model.md", "## slices"),
    ("the values that students check against", "transformer_lm/test_values.py", "load_frozen"),
    ("the loop that gives points and reasons", "grading/judging/judge.py", "judge"),
    ("the sandbox of students' code", "grading/isolation/sandbox.py", "command"),
    ("the start of the process in it", "grading/isolation/answers.py", "AnswerServer"),
    ("its second wall, from inside", "grading/isolation/inside/confine.py", "fork_confined"),
    ("the late penalty", "grading/nbgrader_steps/late.py", "penalty"),
    ("a class run", "grading/runs/class_run.py", "ClassRun"),
    ("the files and cells of a new exercise", "grading/authoring/new.py", "write_exercise"),
)


def modules(package: str) -> dict[str, Path]:
    """Return the files of all modules of a package by their names."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)] = path
    return found


def imports(path: Path, known: Mapping[str, Path]) -> set[str]:
    """Return which of the known modules a file imports, at its top or in a function.

    Two kinds do not count: what only its `__getattr__` imports, which passes on a name that people type, and what is
    imported for annotations alone, which never runs.
    """
    counting = [node for node in ast.parse(path.read_bytes()).body if not _never_runs(node)]
    found = set()
    for node in (inner for outer in counting for inner in ast.walk(outer)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & known.keys() or {node.module}
    return {f"{name}.__init__" if name in PACKAGES else name for name in found} & known.keys()


def _never_runs(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"


def room_of(module: str) -> str:
    """Return the room of a module. Raises KeyError for one at the top without a room."""
    package, *parts = module.split(".")
    is_folder = ROOT.joinpath(package, *parts, "__init__.py").is_file()
    if len(parts) > 1 or is_folder:
        return "/".join(parts if is_folder else parts[:-1])
    for room, (_, names) in TOP[package].items():
        if parts[0] in names:
            return room
    raise KeyError(f"docs/rooms.py must place {module} in a room.")


def rooms(package: str) -> dict[str, list[str]]:
    """Return the modules of each room of a package, the rooms in their layers."""
    known = modules(package)
    found: dict[str, list[str]] = {}
    for module in known:
        found.setdefault(room_of(module), []).append(module)
    for room, (_, names) in TOP[package].items():  # in the order in which they are listed
        found[room].sort(key=lambda module: names.index(leaf) if (leaf := module.split(".")[1]) in names else -1)
    return {room: found[room] for room in layers(needs(package))}


def needs(package: str) -> dict[str, set[str]]:
    """Return which rooms each room of a package imports from."""
    known = modules(package)
    found: dict[str, set[str]] = {}
    for module, path in known.items():
        room = room_of(module)
        found.setdefault(room, set()).update(room_of(other) for other in imports(path, known) if room_of(other) != room)
    return found


def layers(graph: Mapping[str, set[str]]) -> list[str]:
    """Return rooms or modules in an order in which each comes after what it imports.

    Raises ValueError if there is none, and names a circle.
    """
    sorter, order = TopologicalSorter({name: sorted(graph[name]) for name in sorted(graph)}), []
    try:
        sorter.prepare()
    except CycleError as error:
        raise ValueError(f"imports must not run in a circle, got {' -> '.join(reversed(error.args[1]))}.") from None
    while ready := sorted(sorter.get_ready()):
        order += ready
        sorter.done(*ready)
    return order


def module_layers() -> list[str]:
    """Return all modules in layers. Raises ValueError if modules import in a circle, at their top or in a function."""
    known = modules("transformer_lm") | modules("grading")
    return layers({module: imports(path, known) - {module} for module, path in known.items()})


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0]


def page() -> str:
    """Return the page."""
    places = [f"| {what} | `{path}`: `{name}` |" for what, path, name in PLACES]
    table = ["| you look for | it is in |", "| --- | --- |", *places, ""]
    return "\n".join([INTRODUCTION, *table, *(line for package in PACKAGES for line in _part(package))])


def _part(package: str) -> Iterator[str]:
    graph, found = needs(package), rooms(package)
    order = list(found)
    yield f"## {package}\n"
    yield "| room | imports from |\n| --- | --- |"
    for room in order:
        yield f"| {_linked(room)} | {', '.join(sorted(graph[room], key=order.index)) or 'nothing'} |"
    for room in sorted(order, key=lambda room: (TOPICS in room, room if TOPICS in room else "")):
        yield f"\n### {room}\n\n{_purpose(package, room)}"
        inside = [module for module in found[room] if module != f"{package}.{room.replace('/', '.')}"]
        if inside:
            yield "\n| module | |\n| --- | --- |"
        for module in inside:
            yield f"| `{_short(module)}` | {first_line(modules(package)[module])} |"
    yield ""


def _linked(room: str) -> str:
    return f"[{room}](#{room.replace(' ', '-').replace('/', '')})"


def _short(module: str) -> str:
    """Return how a module is found from the folder of its package."""
    return "/".join(module.split(".")[1:]) + ".py"


def _purpose(package: str, room: str) -> str:
    """Return what a room is for."""
    purpose, _ = TOP[package].get(room, (None, ()))
    return purpose or first_line(ROOT / package / room / "__init__.py")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
