"""The exercise of topic 06 about the sinusoidal positional encoding."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import ERROR
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.engine.calling import CALLED_AGAIN, OTHER_LENGTH, OTHER_SIZES
from transformer_lm.checks.topic_06_encoder_decoder.sinusoids import NOT_REAL, SINUSOIDS, SMALL


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return the positions and the width of a table, which is even.

    An answer gets only the number of positions. Positions are real numbers here so that the judge can measure how far
    rounding moves the later ones: in float32, a larger angle is less precise.
    """
    return {
        "positions": np.arange(sizes["max_len"], dtype=np.float64),
        "hidden": np.array(2 * sizes["waves"]),
    }


def reference(case: Arrays) -> Arrays:
    """Return the tables, column by column, by the formula."""

    def table(positions: np.ndarray, hidden: int) -> np.ndarray:
        columns = []
        for j in range(hidden):
            if j % 2 == 0:
                columns.append(np.sin(positions / np.power(10000.0, j / hidden)))
            else:
                columns.append(np.cos(positions / np.power(10000.0, (j - 1) / hidden)))
        return np.stack(columns, axis=1)

    max_len, hidden = SMALL
    return {
        "small_table": table(np.arange(max_len, dtype=np.float64), hidden),
        "table": table(case["positions"], int(case["hidden"])),
    }


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def sinusoidal_positions(max_len, hidden):
    positions = torch.arange(max_len)[:, None]  # (max_len, 1)
    exponents = torch.arange(0, hidden, 2) / hidden  # (hidden / 2,)
    angles = positions / 10_000**exponents  # (max_len, hidden / 2)
    table = torch.zeros(max_len, hidden)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()
    return table
"""

LINES = {
    "positions": "torch.arange(max_len)[:, None]",
    "exponents": "torch.arange(0, hidden, 2) / hidden",
    "angles": "positions / 10_000**exponents",
    "sines": "table[:, 0::2] = angles.sin()",
    "cosines": "table[:, 1::2] = angles.cos()",
    "returned": "return table",
}


def wrong(name: str, hint: str, **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, hint, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()))


OTHER_BASE = "The waves grow longer at another pace: look at the number whose powers divide the positions."

WRONG = (
    wrong(
        "garbled-exponent",
        "In odd columns, 1 / hidden is taken off the number of the column: take 1 off first, then divide by hidden.",
        cosines="table[:, 1::2] = (positions / 10_000.0 ** (torch.arange(1, hidden, 2) - 1 / hidden)).cos()",
    ),
    wrong(
        "a-wave-for-each-column",
        "Each cosine has a wave of its own: it should share that of the sine before it.",
        cosines="table[:, 1::2] = (positions / 10_000 ** (torch.arange(1, hidden, 2) / hidden)).cos()",
    ),
    wrong(
        "wave-of-the-next-sine",
        "Each cosine has the wave of the sine after it: it should share that of the sine before it.",
        cosines="table[:, 1::2] = (positions / 10_000 ** (torch.arange(2, hidden + 1, 2) / hidden)).cos()",
    ),
    wrong(
        "sines-a-wave-too-long",
        "The longest wave comes one column too soon: the sine in column 0 has an exponent of 0.",
        exponents="torch.arange(2, hidden + 1, 2) / hidden",
    ),
    wrong(
        "halves",
        "All sines come first, then all cosines, as in some libraries: in the formula here they take turns by column.",
        returned="return torch.cat([angles.sin(), angles.cos()], dim=1)",
    ),
    wrong(
        "halves-up-to-one",
        "All sines come first, then all cosines, and the exponents reach 1, as in some libraries: here both differ.",
        exponents="torch.linspace(0, 1, hidden // 2)",
        returned="return torch.cat([angles.sin(), angles.cos()], dim=1)",
    ),
    wrong(
        "halves-exchanged",
        "All cosines come first, then all sines: they should take turns, column by column, beginning with a sine.",
        returned="return torch.cat([angles.cos(), angles.sin()], dim=1)",
    ),
    wrong(
        "exchanged",
        "Sines and cosines are exchanged: column 0 is a sine, and position 0 begins with 0.",
        sines="table[:, 0::2] = angles.cos()",
        cosines="table[:, 1::2] = angles.sin()",
    ),
    wrong(
        "sines-only",
        "Odd columns hold the sine that stands before them: they should hold its cosine.",
        cosines="table[:, 1::2] = angles.sin()",
    ),
    wrong(
        "sines-only-of-many-waves",
        "There are no cosines: every column is a sine with a wave of its own.",
        cosines="table[:, 1::2] = (positions / 10_000 ** (torch.arange(1, hidden, 2) / hidden)).sin()",
    ),
    wrong(
        "cosines-only",
        "Even columns hold the cosine that stands after them: they should hold its sine.",
        sines="table[:, 0::2] = angles.cos()",
    ),
    wrong("cosines-missing", "Odd columns are 0: the cosines are missing.", cosines="pass"),
    wrong("sines-missing", "Even columns are 0: the sines are missing.", sines="pass"),
    wrong(
        "sine-of-even-positions",
        "Whether it is a sine or a cosine depends on the position: it should depend on the column.",
        sines="waves = torch.where(positions % 2 == 0, angles.sin(), angles.cos())",
        cosines="table = waves.repeat_interleave(2, dim=1)",
    ),
    wrong("base-1000", OTHER_BASE, angles="positions / 1_000**exponents"),
    wrong(
        "exponents-half-as-large",
        "The exponents are half of what they should be, as if pairs of columns were counted, or 10000 is its root.",
        exponents="torch.arange(hidden // 2) / hidden",
    ),
    wrong("base-2", OTHER_BASE, angles="positions / 2**exponents"),
    wrong(
        "base-e",
        "The waves hardly grow: the exponents are powers of e, where is the logarithm of the number given?",
        angles="positions / exponents.exp()",
    ),
    wrong(
        "logarithm-to-base-ten",
        "The logarithm is one to base 10: an exponential of e undoes the natural one.",
        angles="positions * (-exponents * math.log10(10_000)).exp()",
    ),
    wrong(
        "counted-from-one",
        "Positions are counted from 1: the first is 0, so its sines are 0 and its cosines 1.",
        positions="torch.arange(1, max_len + 1)[:, None]",
    ),
    wrong(
        "exponents-twice-as-large",
        "The exponents grow twice as fast as they should: is a 2 counted twice, or only half of hidden?",
        exponents="2 * torch.arange(0, hidden, 2) / hidden",
    ),
    wrong(
        "each-column-twice-as-large",
        "Each column has a wave of its own, and exponents grow twice as fast as they should.",
        exponents="2 * torch.arange(0, hidden, 2) / hidden",
        cosines="table[:, 1::2] = (positions / 10_000 ** (2 * torch.arange(1, hidden, 2) / hidden)).cos()",
    ),
    wrong(
        "up-to-one",
        "The exponents reach 1 in the last columns: they are divided by too small a number, or spread evenly to 1.",
        exponents="torch.linspace(0, 1, hidden // 2)",
    ),
    wrong(
        "divided-by-hidden-minus-one",
        "The exponents are divided by hidden - 1 in place of hidden.",
        exponents="torch.arange(0, hidden, 2) / (hidden - 1)",
    ),
    wrong(
        "divided-by-max-len",
        "The exponents are divided by the number of positions: it is the number of columns that counts.",
        exponents="torch.arange(0, hidden, 2) / max_len",
    ),
    wrong(
        "whole-division",
        "All waves have the same length: a division of whole numbers leaves every exponent 0.",
        exponents="torch.arange(0, hidden, 2) // hidden",
    ),
    wrong(
        "multiplied",
        "The waves get shorter from column to column: a division or a minus is missing.",
        angles="positions * 10_000**exponents",
    ),
    wrong(
        "product-in-place-of-power",
        "There are NaN in it: positions are divided by a multiple of the number, 0 among them, not by a power of it.",
        angles="positions / (10_000 * exponents)",
    ),
    wrong(
        "power-then-divided",
        "The power is divided by hidden, not the exponent: parentheses are missing.",
        angles="positions / (10_000.0 ** torch.arange(0, hidden, 2) / hidden)",
    ),
    wrong(
        "roles-exchanged",
        "Positions and columns have exchanged their roles in the angle: the position is divided by the power.",
        angles="torch.arange(0, hidden, 2) / 10_000 ** (positions / hidden)",
    ),
    wrong(
        "degrees",
        "The angles are taken for degrees: torch computes sines of radians, as they are.",
        angles="(positions / 10_000**exponents).deg2rad()",
    ),
    wrong(
        "whole-turns",
        "The angles are multiplied by 2 pi: the formula has none.",
        angles="2 * math.pi * positions / 10_000**exponents",
    ),
    wrong(
        "half-turns",
        "The angles are multiplied by pi: the formula has none.",
        angles="math.pi * positions / 10_000**exponents",
    ),
    wrong(
        "negative-angles",
        "The sines have the wrong sign: the angles are negative. A minus belongs into an exponent, if anywhere.",
        angles="-positions / 10_000**exponents",
    ),
    wrong(
        "shares-of-the-length",
        "Positions are divided by max_len: a position should have the same vector however long the table is.",
        angles="positions / max_len / 10_000**exponents",
    ),
    wrong(
        "backwards",
        "Positions run backwards: row 0 is position 0.",
        returned="return table.flip(0)",
    ),
    wrong(
        "long-waves-first",
        "The longest waves come first: columns 0 and 1 should have the shortest.",
        exponents="(torch.arange(0, hidden, 2) / hidden).flip(0)",
    ),
    wrong(
        "angles-alone",
        "These are the angles: their sines and cosines are asked for.",
        sines="table[:, 0::2] = angles",
        cosines="table[:, 1::2] = angles",
    ),
    wrong(
        "scaled",
        "The vectors are divided by the root of hidden, or otherwise scaled: sines and cosines stay as they are.",
        returned="return table / hidden**0.5",
    ),
    wrong(
        "transposed",
        "Rows and columns are exchanged: there is a row for each position, a column for each wave.",
        returned="return table.T",
    ),
    wrong(
        "recut",
        "Sines and cosines are stacked, and the rows then cut anew: stack them along a new last axis.",
        returned="return torch.stack((angles.sin(), angles.cos())).reshape(max_len, hidden)",
    ),
    wrong(
        "batch-axis",
        "There is an axis in front for a batch: the table is the same for all sequences, with two axes only.",
        returned="return table[None]",
    ),
    wrong(
        "batch-axis-in-the-middle",
        "There is an axis for a batch between positions and columns: the table has two axes only.",
        returned="return table[:, None]",
    ),
    wrong(
        "pairs-apart",
        "Sine and cosine stand along an axis of their own: put them side by side, in one row for each position.",
        returned="return torch.stack((angles.sin(), angles.cos()), dim=2)",
    ),
    wrong(
        "half-as-wide",
        "There are only the sines, half as many columns as asked for: the cosines are missing.",
        returned="return angles.sin()",
    ),
    wrong(
        "twice-as-wide",
        "There are twice as many columns as asked for: a pair of columns shares one exponent.",
        exponents="torch.arange(hidden) / hidden",
        sines="table = angles.sin().repeat_interleave(2, dim=1)",
        cosines="table[:, 1::2] = angles.cos()",
    ),
    wrong(
        "one-row-alone",
        "There is one row alone: each position should have its own.",
        returned="return table[-1]",
    ),
)

REMEMBERED = """

right_answer, calls = sinusoidal_positions, []


def sinusoidal_positions(max_len, hidden):
    calls.append((max_len, hidden))
    {change}
"""


def remembering(name: str, hint: str, change: str) -> WrongAnswer:
    """Return the answer that remembers its first call and then does something else; a case calls it twice."""
    return WrongAnswer(name, hint, MODEL_ANSWER + REMEMBERED.format(change=change))


MISBEHAVING = (
    wrong("of-whole-numbers", NOT_REAL, returned="return table.long()"),
    wrong("half-precision", NOT_REAL, returned="return table.half()"),
    wrong("complex", NOT_REAL, returned="return torch.polar(torch.ones_like(angles), angles)"),
    wrong("rows-as-lists", "Return small_table as one tensor.", returned="return table.tolist()"),
    wrong("of-numpy", "Return small_table as one tensor.", returned="return table.numpy()"),
    edited("nothing-returned", "Return small_table as one tensor.", MODEL_ANSWER, ("    return table\n", "")),
    wrong("sine-of-a-number", ERROR, sines="table[:, 0::2] = math.sin(angles)"),
    wrong("random", CALLED_AGAIN, returned="return torch.randn(max_len, hidden)"),
    wrong("to-be-learned", CALLED_AGAIN, returned="return nn.Embedding(max_len, hidden).weight"),
    wrong("fixed-length", OTHER_LENGTH, positions="torch.arange(max_len).clamp(max=8)[:, None]"),
    remembering(
        "kept-from-the-first-call",
        OTHER_LENGTH,
        "return right_answer(*next(sizes for sizes in calls if sizes[1] == hidden))",
    ),
    remembering(
        "differs-the-second-time",
        CALLED_AGAIN,
        "return right_answer(max_len, hidden) * (1 if len(calls) <= 2 else 2)",
    ),
    remembering(
        "fits-one-width",
        OTHER_SIZES,
        "return right_answer(max_len, hidden) if hidden in (4, 10) else torch.zeros(max_len, hidden)",
    ),
    remembering("fits-known-sizes", OTHER_SIZES, "return right_answer(min(max_len, 17), hidden)"),
    wrong("fits-first-positions", OTHER_SIZES, positions="torch.arange(max_len).clamp(max=16)[:, None]"),
)

RIGHT = {
    "rates": """\
def sinusoidal_positions(max_len, hidden):
    rates = 10_000.0 ** (-torch.arange(0, hidden, 2) / hidden)
    angles = torch.outer(torch.arange(max_len).float(), rates.float())
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
""",
    "exponential-of-a-logarithm": """\
def sinusoidal_positions(max_len, hidden):
    table = torch.zeros(max_len, hidden)
    position = torch.arange(0, max_len).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, hidden, 2) * -(math.log(10000.0) / hidden))
    table[:, 0::2] = torch.sin(position * div_term)
    table[:, 1::2] = torch.cos(position * div_term)
    return table
""",
    "exponential-in-another-order": """\
def sinusoidal_positions(max_len, hidden):
    steps = torch.arange(0, hidden, 2, dtype=torch.float32) / hidden
    rates = torch.exp(-math.log(10_000) * steps)
    angles = torch.einsum("i,j->ij", torch.arange(max_len, dtype=torch.float32), rates)
    return torch.stack([torch.sin(angles), torch.cos(angles)], dim=2).reshape(max_len, hidden)
""",
    "float64": """\
def sinusoidal_positions(max_len, hidden):
    positions = torch.arange(max_len, dtype=torch.float64).view(-1, 1)
    exponents = torch.arange(0, hidden, 2, dtype=torch.float64) / hidden
    angles = positions / torch.pow(10_000, exponents)
    table = torch.empty(max_len, hidden, dtype=torch.float64)
    table[:, ::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table
""",
    "float64-cast-at-the-end": """\
def sinusoidal_positions(max_len, hidden):
    positions = torch.arange(max_len).double()[:, None]
    angles = positions * 10_000 ** (-torch.arange(0, hidden, 2).double() / hidden)
    return torch.stack((angles.sin(), angles.cos()), -1).view(max_len, -1).float()
""",
    "loops": """\
def sinusoidal_positions(max_len, hidden):
    table = torch.zeros(max_len, hidden)
    for i in range(max_len):
        for j in range(hidden):
            if j % 2 == 0:
                table[i, j] = math.sin(i / 10000 ** (j / hidden))
            else:
                table[i, j] = math.cos(i / 10000 ** ((j - 1) / hidden))
    return table
""",
    "list-of-lists": """\
def sinusoidal_positions(max_len, hidden):
    waves = (math.sin, math.cos)
    return torch.tensor(
        [[waves[j % 2](i / 10_000 ** (j // 2 * 2 / hidden)) for j in range(hidden)] for i in range(max_len)]
    )
""",
    "pair-by-pair": """\
def sinusoidal_positions(max_len, hidden):
    positions = torch.arange(max_len, dtype=torch.float)
    columns = []
    for k in range(hidden // 2):
        angle = positions / 10000 ** (2 * k / hidden)
        columns += [torch.sin(angle), torch.cos(angle)]
    return torch.stack(columns, dim=1)
""",
    "complex-numbers": """\
def sinusoidal_positions(max_len, hidden):
    angles = torch.arange(max_len)[:, None] / 10_000 ** (torch.arange(0, hidden, 2) / hidden)
    turned = torch.polar(torch.ones_like(angles), angles)  # cosine + i * sine
    return torch.view_as_real(turned).flip(-1).flatten(1)
""",
    "complex-exponential": """\
def sinusoidal_positions(max_len, hidden):
    angles = torch.arange(max_len)[:, None] * 10_000.0 ** -(torch.arange(0, hidden, 2) / hidden)
    spiral = torch.exp(1j * angles)
    return torch.stack((spiral.imag, spiral.real), dim=-1).reshape(max_len, hidden)
""",
    "cosine-as-a-shifted-sine": """\
def sinusoidal_positions(max_len, hidden):
    column = torch.arange(hidden)
    exponents = (column - column % 2) / hidden
    angles = torch.arange(max_len)[:, None] / 10_000.0**exponents
    return torch.sin(angles + column % 2 * math.pi / 2)
""",
    "where": """\
def sinusoidal_positions(max_len, hidden):
    j = torch.arange(hidden)
    angles = torch.arange(max_len).reshape(-1, 1) / torch.pow(10_000.0, (j // 2) * 2 / hidden)
    return torch.where(j % 2 == 0, torch.sin(angles), torch.cos(angles))
""",
    "halves-interleaved": """\
def sinusoidal_positions(max_len, hidden):
    rates = torch.logspace(0, -4 * (hidden - 2) / hidden, hidden // 2)
    angles = torch.arange(max_len).unsqueeze(-1) * rates
    halves = torch.cat([angles.sin(), angles.cos()], dim=-1)
    order = torch.arange(hidden).view(2, -1).T.flatten()
    return halves[:, order]
""",
    "running-product": """\
def sinusoidal_positions(max_len, hidden):
    rate, rates = 1.0, []
    for _ in range(hidden // 2):
        rates.append(rate)
        rate /= 10_000 ** (2 / hidden)
    angles = torch.tensor(rates) * torch.arange(max_len)[:, None]
    return torch.dstack([angles.sin(), angles.cos()]).flatten(start_dim=1)
""",
    "not-to-be-learned": """\
def sinusoidal_positions(max_len, hidden):
    angles = torch.arange(max_len)[:, None] / 10_000 ** (torch.arange(0, hidden, 2) / hidden)
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    return nn.Parameter(table, requires_grad=False)
""",
    "numpy": """\
import numpy as np


def sinusoidal_positions(max_len, hidden):
    angles = np.arange(max_len)[:, np.newaxis] / np.power(10000, np.arange(0, hidden, 2) / hidden)
    table = np.zeros((max_len, hidden))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles)
    return torch.from_numpy(table)
""",
}

SINUSOIDS_RECORD = ValueRecord(
    public=SINUSOIDS,
    title="Waves for positions",
    defines="sinusoidal_positions",
    parts=(Part("sinusoids-check", 2, values),),
    properties=(),
    first_sizes={"max_len": 7, "waves": 5},
    other_length={"max_len": 17},
    other_sizes={"max_len": 11, "waves": 8},
    draw=draw,
    reference=reference,
    entrywise=True,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
