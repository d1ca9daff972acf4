"""Run the lessons that train models with other seeds: do their claims hold, and how much do their numbers vary?

python bench/lesson_seeds.py [--seeds 5] [--lessons 04 05]        about a minute per lesson and seed

In cells whose numbers nbval does not compare, models start with other weights and see other batches.
"""

import argparse
import contextlib
import dataclasses
import io
import os
from pathlib import Path
from unittest import mock

import matplotlib as mpl
import nbformat
import torch

from transformer_lm.plots import pictures
from transformer_lm.training import classifiers, loop

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
# The values to report, by lesson: Python expressions in the lesson's own variables.
NUMBERS = {
    "03": ["accuracies"],
    "04": ["plain_loss", "default_loss", "half", "near", "real", "late.mean().item()"],
    "05": ["grown[-1].tolist()", "{name: each[-1] for name, each in losses.items()}", "scores", "rises"],
    "06": ["last", "rate", "marks"],
}


def claims_that_fail(lesson: Path, shift: int) -> tuple[list[str], dict]:
    """Run a lesson with all its seeds shifted; return the assertions that failed, and the lesson's variables."""
    cells = [cell for cell in nbformat.read(lesson, as_version=4).cells if cell.cell_type == "code"]
    last = max(place for place, cell in enumerate(cells) if cell.id.endswith("-claims"))
    failed, namespace = [], {}
    with other_seeds() as move, contextlib.redirect_stdout(io.StringIO()):
        for cell in cells[: last + 1]:
            move(shift if "nbval-ignore-output" in cell.metadata.get("tags", []) else 0)
            try:
                exec(compile(cell.source, cell.id, "exec"), namespace)
            except AssertionError as error:
                failed.append(f"{cell.id}: {error}")
    return failed, namespace


@contextlib.contextmanager
def other_seeds():
    """Allow seeds to be shifted: give a function that sets the shift from now on. Figures are not drawn."""
    shift, seed, train, classify = [0], torch.manual_seed, loop.train, classifiers.train_classifier

    def train_otherwise(model, corpus, recipe, **options):
        return train(model, corpus, dataclasses.replace(recipe, seed=recipe.seed + shift[0]), **options)

    def classify_otherwise(model, data, **options):
        return classify(model, data, **{"seed": shift[0], **options})

    with (
        mock.patch.object(torch, "manual_seed", lambda number: seed(number + 1000 * shift[0])),
        mock.patch.object(loop, "train", train_otherwise),
        mock.patch.object(classifiers, "train_classifier", classify_otherwise),
        mock.patch.object(pictures, "show", lambda figure, *args, **kwargs: mpl.pyplot.close(figure)),
    ):
        yield lambda number: shift.__setitem__(0, number)


def measure() -> None:
    """Print the values of the lessons, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lessons", nargs="*", default=list(NUMBERS), choices=list(NUMBERS))
    options = parser.parse_args()
    mpl.use("Agg")
    os.chdir(NOTEBOOKS)
    for number in options.lessons:
        (lesson,) = NOTEBOOKS.glob(f"{number}*.ipynb")
        for shift in range(options.seeds):
            failed, namespace = claims_that_fail(lesson, shift)
            print(f"{lesson.stem}, seeds + {shift}:", "; ".join(failed) or "every claim holds")
            for expression in NUMBERS[number]:
                print(f"    {expression} = {eval(expression, namespace)}")


if __name__ == "__main__":
    measure()
