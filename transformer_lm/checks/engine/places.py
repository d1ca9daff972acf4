"""Finds exercises by path: each topic has a folder `topic_NN_name`, with a module for each exercise.

The module's name is the exercise's id, with underscores. Code that several exercises of a topic share is in further
modules of the folder, which define no exercise.
"""

import pkgutil
from importlib import import_module
from types import ModuleType

PREFIX = "topic_"


def modules_by_topic(package: str) -> dict[str, list[ModuleType]]:
    """Return the modules in a package's topic folders, by the topic's name, such as `01_self_attention`."""
    topics = [name for name in _names_in(package) if name.startswith(PREFIX)]
    return {
        topic.removeprefix(PREFIX): [
            import_module(f"{package}.{topic}.{name}") for name in _names_in(f"{package}.{topic}")
        ]
        for topic in topics
    }


def _names_in(package: str) -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(import_module(package).__path__))
