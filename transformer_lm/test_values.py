"""Frozen values: inputs, weights, and the outputs of right and wrong answers.

    values = SelfAttentionTestValues
    dir(values)  # k_bias, k_weight, output and so on
    head.k.weight.data = values.k_weight
    torch.allclose(head(values.x), values.output, atol=1e-6)

`load_frozen("kqv").cases[0].inputs` has the inputs of any other exercise. A student's check uses these numbers. Grading
draws others for each submission.

`python -m grading freeze` writes one file for each exercise to `frozen/`. It holds numbers and hints, but no code: from
the output of each known mistake, a check can tell which mistake an answer makes.
"""

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

FOLDER = Path(__file__).parent / "frozen"


@dataclass(frozen=True)
class Case:
    """One input with its outputs.

    `gradients[output][input]` is the gradient of the output's sum of squares with respect to that input;
    `mistakes[output][mistake]` is the output of an answer with that mistake.
    """

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    gradients: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    mistakes: dict[str, dict[str, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Frozen:
    """The frozen values of an exercise: its cases, and the id of the hint for each known mistake.

    The second case has the weights of the first and another length; the third has other sizes and larger numbers.
    """

    cases: tuple[Case, ...]
    hints: dict[str, str]


@functools.cache
def load_frozen(exercise: str) -> Frozen:
    """Return the frozen values of an exercise, given its id, such as `self-attention`.

    A tensor's name in the file is `0/inputs/x`, `0/outputs/output`, `0/gradients/output/x` or
    `0/mistakes/output/not-scaled`, for the first case.

    Raises ValueError if there are none for that id.
    """
    path = FOLDER / f"{exercise}.safetensors"
    if not path.is_file():
        known = sorted(file.stem for file in FOLDER.glob("*.safetensors"))
        raise ValueError(f"exercise must be one of {', '.join(known)}, got {exercise!r}.")
    cases: dict[str, Case] = {}
    with safe_open(path, framework="pt") as file:
        hints = json.loads(file.metadata()["hints"])
        for name in sorted(file.keys()):
            number, kind, *rest = name.split("/")
            table = getattr(cases.setdefault(number, Case({}, {})), kind)
            for output in rest[:-1]:
                table = table.setdefault(output, {})
            table[rest[-1]] = file.get_tensor(name)
    return Frozen(tuple(cases[number] for number in sorted(cases)), hints)


class FrozenValues:
    """The first frozen case of an exercise as attributes; each access gives a fresh copy."""

    def __init__(self, exercise: str) -> None:
        self._exercise = exercise

    def _tensors(self) -> dict[str, Tensor]:
        case = load_frozen(self._exercise).cases[0]
        return case.inputs | case.outputs

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_"):  # attributes that copy and pickle look for
            raise AttributeError(name)
        if name not in self._tensors():
            raise AttributeError(f"the frozen values of {self._exercise} are {', '.join(self._tensors())}, not {name}.")
        return self._tensors()[name].clone()

    def __dir__(self) -> list[str]:
        return list(self._tensors())


SelfAttentionTestValues = FrozenValues("self-attention")
MultiHeadAttentionTestValues = FrozenValues("multi-head-attention")
