"""The exercise of topic 06 about the sinusoidal positional encoding."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.topic_06_encoder_decoder.sinusoids import SINUSOIDS, SMALL


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return the positions and the width of a table, which is even.

    An answer gets only the number of positions. Positions are real numbers here so that the judge can measure how far
    rounding moves the later ones: in float32, a larger angle is less precise.
    """
    return {"positions": np.arange(sizes["max_len"], dtype=np.float64), "hidden": np.array(2 * sizes["waves"])}


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


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()), hint=hint)


WRONG = (
    wrong(
        "garbled-exponent",
        cosines="table[:, 1::2] = (positions / 10_000.0 ** (torch.arange(1, hidden, 2) - 1 / hidden)).cos()",
    ),
    wrong(
        "a-wave-for-each-column",
        cosines="table[:, 1::2] = (positions / 10_000 ** (torch.arange(1, hidden, 2) / hidden)).cos()",
    ),
    wrong(
        "wave-of-the-next-sine",
        cosines="table[:, 1::2] = (positions / 10_000 ** (torch.arange(2, hidden + 1, 2) / hidden)).cos()",
    ),
    wrong("sines-a-wave-too-long", exponents="torch.arange(2, hidden + 1, 2) / hidden"),
    wrong("halves", returned="return torch.cat([angles.sin(), angles.cos()], dim=1)"),
    wrong(
        "halves-up-to-one",
        exponents="torch.linspace(0, 1, hidden // 2)",
        returned="return torch.cat([angles.sin(), angles.cos()], dim=1)",
    ),
    wrong("halves-exchanged", returned="return torch.cat([angles.cos(), angles.sin()], dim=1)"),
    wrong("exchanged", sines="table[:, 0::2] = angles.cos()", cosines="table[:, 1::2] = angles.sin()"),
    wrong("sines-only", cosines="table[:, 1::2] = angles.sin()"),
    wrong(
        "sines-only-of-many-waves",
        cosines="table[:, 1::2] = (positions / 10_000 ** (torch.arange(1, hidden, 2) / hidden)).sin()",
    ),
    wrong("cosines-only", sines="table[:, 0::2] = angles.cos()"),
    wrong("cosines-missing", cosines="pass"),
    wrong("sines-missing", sines="pass"),
    wrong(
        "sine-of-even-positions",
        sines="waves = torch.where(positions % 2 == 0, angles.sin(), angles.cos())",
        cosines="table = waves.repeat_interleave(2, dim=1)",
    ),
    wrong("base-1000", angles="positions / 1_000**exponents"),
    wrong("exponents-half-as-large", exponents="torch.arange(hidden // 2) / hidden"),
    wrong("base-2", angles="positions / 2**exponents", hint="base-1000"),
    wrong("base-e", angles="positions / exponents.exp()"),
    wrong("logarithm-to-base-ten", angles="positions * (-exponents * math.log10(10_000)).exp()"),
    wrong("counted-from-one", positions="torch.arange(1, max_len + 1)[:, None]"),
    wrong("exponents-twice-as-large", exponents="2 * torch.arange(0, hidden, 2) / hidden"),
    wrong(
        "each-column-twice-as-large",
        exponents="2 * torch.arange(0, hidden, 2) / hidden",
        cosines="table[:, 1::2] = (positions / 10_000 ** (2 * torch.arange(1, hidden, 2) / hidden)).cos()",
    ),
    wrong("up-to-one", exponents="torch.linspace(0, 1, hidden // 2)"),
    wrong("divided-by-hidden-minus-one", exponents="torch.arange(0, hidden, 2) / (hidden - 1)"),
    wrong("divided-by-max-len", exponents="torch.arange(0, hidden, 2) / max_len"),
    wrong("whole-division", exponents="torch.arange(0, hidden, 2) // hidden"),
    wrong("multiplied", angles="positions * 10_000**exponents"),
    wrong("product-in-place-of-power", angles="positions / (10_000 * exponents)"),
    wrong("power-then-divided", angles="positions / (10_000.0 ** torch.arange(0, hidden, 2) / hidden)"),
    wrong("roles-exchanged", angles="torch.arange(0, hidden, 2) / 10_000 ** (positions / hidden)"),
    wrong("degrees", angles="(positions / 10_000**exponents).deg2rad()"),
    wrong("whole-turns", angles="2 * math.pi * positions / 10_000**exponents"),
    wrong("half-turns", angles="math.pi * positions / 10_000**exponents"),
    wrong("negative-angles", angles="-positions / 10_000**exponents"),
    wrong("shares-of-the-length", angles="positions / max_len / 10_000**exponents"),
    wrong("backwards", returned="return table.flip(0)"),
    wrong("long-waves-first", exponents="(torch.arange(0, hidden, 2) / hidden).flip(0)"),
    wrong("angles-alone", sines="table[:, 0::2] = angles", cosines="table[:, 1::2] = angles"),
    wrong("scaled", returned="return table / hidden**0.5"),
    wrong("transposed", returned="return table.T"),
    wrong("recut", returned="return torch.stack((angles.sin(), angles.cos())).reshape(max_len, hidden)"),
    wrong("batch-axis", returned="return table[None]"),
    wrong("batch-axis-in-the-middle", returned="return table[:, None]"),
    wrong("pairs-apart", returned="return torch.stack((angles.sin(), angles.cos()), dim=2)"),
    wrong("half-as-wide", returned="return angles.sin()"),
    wrong(
        "twice-as-wide",
        exponents="torch.arange(hidden) / hidden",
        sines="table = angles.sin().repeat_interleave(2, dim=1)",
        cosines="table[:, 1::2] = angles.cos()",
    ),
    wrong("one-row-alone", returned="return table[-1]"),
)

REMEMBERED = """

right_answer, calls = sinusoidal_positions, []


def sinusoidal_positions(max_len, hidden):
    calls.append((max_len, hidden))
    {change}
"""


def remembering(name: str, change: str, hint: str = "") -> WrongAnswer:
    """Return the answer that remembers its first call and then does something else; a case calls it twice."""
    return WrongAnswer(name, MODEL_ANSWER + REMEMBERED.format(change=change), hint=hint)


MISBEHAVING = (
    wrong("of-whole-numbers", returned="return table.long()", hint="not-real"),
    wrong("half-precision", returned="return table.half()", hint="not-real"),
    wrong("complex", returned="return torch.polar(torch.ones_like(angles), angles)", hint="not-real"),
    wrong("rows-as-lists", returned="return table.tolist()", hint="not-a-tensor"),
    wrong("of-numpy", returned="return table.numpy()", hint="not-a-tensor"),
    edited("nothing-returned", MODEL_ANSWER, ("    return table\n", ""), hint="not-a-tensor"),
    wrong("sine-of-a-number", sines="table[:, 0::2] = math.sin(angles)", hint="raises"),
    wrong("random", returned="return torch.randn(max_len, hidden)", hint="called-again"),
    wrong("to-be-learned", returned="return nn.Embedding(max_len, hidden).weight", hint="called-again"),
    wrong("fixed-length", positions="torch.arange(max_len).clamp(max=8)[:, None]", hint="other-length"),
    remembering(
        "kept-from-the-first-call",
        "return right_answer(*next(sizes for sizes in calls if sizes[1] == hidden))",
        hint="other-length",
    ),
    remembering(
        "differs-the-second-time",
        "return right_answer(max_len, hidden) * (1 if len(calls) <= 2 else 2)",
        hint="called-again",
    ),
    remembering(
        "fits-one-width",
        "return right_answer(max_len, hidden) if hidden in (4, 10) else torch.zeros(max_len, hidden)",
        hint="other-sizes",
    ),
    remembering("fits-known-sizes", "return right_answer(min(max_len, 17), hidden)", hint="other-sizes"),
    wrong("fits-first-positions", positions="torch.arange(max_len).clamp(max=16)[:, None]", hint="other-sizes"),
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
    title="Sinusoidal positional encoding",
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
