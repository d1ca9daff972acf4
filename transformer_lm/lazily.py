"""Lazy exports: a folder exports names of its modules, and each module is imported on first use."""

import importlib
from collections.abc import Callable, Mapping, Sequence


def exported(room: str, names: Mapping[str, Sequence[str]]) -> tuple[list[str], Callable[[str], object]]:
    """Return `__all__` and `__getattr__` of a folder, given the names that it exports from each module.

    A module of another folder is given by its full name.
    """
    origins = {
        name: module if "." in module else f"{room}.{module}" for module, listed in names.items() for name in listed
    }

    def load(name: str) -> object:
        if name not in origins:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(importlib.import_module(origins[name]), name)

    return sorted(origins), load
