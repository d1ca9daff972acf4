"""Write the frozen values of the exercises: the values that students check against, and those of known mistakes."""

import json
import random
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from grading.judging.record import Arrays, ValueRecord
from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.files import write_whole
from transformer_lm.test_values import FOLDER

SEED = 2017


def frozen_cases(record: ValueRecord) -> list[Arrays]:
    """Return the inputs of the three or four cases that students check against."""
    rng = random.Random(SEED)
    first = record.draw(rng, record.first_sizes)
    longer = record.draw(rng, record.first_sizes | record.other_length)
    same_weights = first | {name: longer[name] for name in record.public.reads}
    others = filter(None, (record.other_sizes, record.smallest_sizes))
    return [first, same_weights, *(record.draw(rng, sizes) for sizes in others)]


def frozen_bytes(record: ValueRecord) -> bytes:
    """Return the frozen file of an exercise, whose bytes are the same each time on the same machine."""
    cases = frozen_cases(record)
    tensors: Arrays = {}
    for number, case in enumerate(cases):
        tensors |= {f"{number}/inputs/{name}": array for name, array in case.items()}
        tensors |= {f"{number}/outputs/{name}": array for name, array in record.reference(case).items()}
    # Every known mistake shows in the first case; the later cases catch answers that are right only in the first.
    for output, gradients in record.gradients(record.model_answer, cases[0]).items():
        tensors |= {f"0/gradients/{output}/{target}": array for target, array in gradients.items()}
    expected = record.reference(cases[0])
    for wrong in record.wrong:
        for output, array in record.outputs(wrong.source, cases[0]).items():
            if array.shape != expected[output].shape or not np.allclose(array, expected[output]):
                tensors[f"0/mistakes/{output}/{wrong.name}"] = array
    hints = {wrong.name: wrong.hint for wrong in record.wrong}
    # Only one entry of metadata, because safetensors writes several in no fixed order.
    return save({name: _stored(array) for name, array in tensors.items()}, metadata={"hints": json.dumps(hints)})


def _stored(array: np.ndarray) -> np.ndarray:
    """Return an array as it is stored: real numbers as float32, with the same NaN on every machine."""
    if array.dtype != np.float64:
        return array
    stored = np.ascontiguousarray(array, dtype=np.float32)
    stored[np.isnan(stored)] = np.nan
    return stored


def freeze(record: ValueRecord, folder: Path = FOLDER) -> Path:
    """Write the frozen file of an exercise and return its path. Raises ValueError if a wrong answer has no hint."""
    for wrong in (*record.wrong, *record.misbehaving):
        hint(wrong.hint, record.id)
    path = folder / f"{record.id}.safetensors"
    write_whole(path, frozen_bytes(record))
    return path
