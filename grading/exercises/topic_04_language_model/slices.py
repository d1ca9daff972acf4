"""The exercise of topic 04 about random slices of a text."""

from grading.judging.mistakes import ERROR
from grading.judging.record import Part, Record, WrongAnswer, edited
from grading.judging.sampled import drawn
from transformer_lm.checks.engine.calling import ONE_SEQUENCE
from transformer_lm.checks.engine.contract import NOT_YOURS
from transformer_lm.checks.engine.sampled import FIXED_SEED, NOT_LONG, NOT_TORCH
from transformer_lm.checks.topic_04_language_model import slices as hints
from transformer_lm.checks.topic_04_language_model.slices import SLICES, examine_slices

MODEL_ANSWER = """\
def random_slices(tokens, b, n):
    starts = torch.randint(len(tokens) - n + 1, (b, 1))
    positions = starts + torch.arange(n)
    return tokens[positions]
"""

START = "    starts = "
STARTS = "torch.randint(len(tokens) - n + 1, (b, 1))"
POSITIONS = "starts + torch.arange(n)"
RETURNED = "tokens[positions]"


def wrong(
    name: str, hint: str, starts: str = STARTS, positions: str = POSITIONS, returned: str = RETURNED
) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, hint, MODEL_ANSWER, (STARTS, starts), (POSITIONS, positions), (RETURNED, returned))


def before(name: str, hint: str, line: str) -> WrongAnswer:
    """Return the model answer with another line at its beginning."""
    return edited(name, hint, MODEL_ANSWER, (START, f"    {line}\n{START}"))


WRONG_STARTS = (
    wrong("starts-anywhere", hints.TOO_FAR, starts="torch.randint(len(tokens), (b, 1))"),
    wrong("starts-one-too-far", hints.TOO_FAR, starts="torch.randint(len(tokens) - n + 2, (b, 1))"),
    WrongAnswer(
        "cut-off-at-the-end",
        hints.TOO_FAR,
        """\
def random_slices(tokens, b, n):
    starts = torch.randint(len(tokens), (b,)).tolist()
    return torch.stack([tokens[start : start + n] for start in starts])
""",
    ),
    wrong(
        "wraps-around",
        hints.WRAPS,
        starts="torch.randint(len(tokens), (b, 1))",
        positions="(starts + torch.arange(n)) % len(tokens)",
    ),
    wrong(
        "stops-at-the-last-token",
        hints.TOO_FAR,
        starts="torch.randint(len(tokens), (b, 1))",
        positions="(starts + torch.arange(n)).clamp(max=len(tokens) - 1)",
    ),
    wrong("starts-before-the-text", hints.WRAPS, starts="torch.randint(-1, len(tokens) - n + 1, (b, 1))"),
    wrong("never-the-last", hints.LAST, starts="torch.randint(len(tokens) - n, (b, 1))"),
    wrong("never-the-last-two", hints.LAST, starts="torch.randint(len(tokens) - n - 1, (b, 1))"),
    wrong("never-the-first", hints.FIRST, starts="torch.randint(1, len(tokens) - n + 1, (b, 1))"),
    wrong("never-the-second-half", hints.LAST, starts="torch.randint((len(tokens) - n + 1) // 2, (b, 1))"),
    wrong(
        "moved-back-from-the-end",
        hints.CLAMPED,
        starts="torch.randint(len(tokens), (b, 1)).clamp(max=len(tokens) - n)",
    ),
    wrong("rounded", hints.UNEVEN, starts="(torch.rand(b, 1) * (len(tokens) - n)).round().long()"),
    wrong(
        "bell-shaped",
        hints.UNEVEN,
        starts="(torch.rand(b, 1) + torch.rand(b, 1)).mul((len(tokens) - n + 1) / 2).long()",
    ),
    wrong("blocks", hints.BLOCKS, starts="n * torch.randint(len(tokens) // n, (b, 1))"),
    wrong("one-start-for-all", hints.ONE_START, starts="torch.randint(len(tokens) - n + 1, (1,)).expand(b, 1)"),
    wrong("always-the-beginning", hints.ONE_START, starts="torch.zeros(b, 1, dtype=torch.long)"),
    wrong(
        "one-after-the-other",
        hints.IN_ORDER,
        starts="(torch.randint(len(tokens) - n + 1, (1,)) + torch.arange(b)[:, None]) % (len(tokens) - n + 1)",
    ),
    wrong("in-order-from-the-beginning", hints.IN_ORDER, starts="torch.arange(b)[:, None] % (len(tokens) - n + 1)"),
    WrongAnswer(
        "one-piece-cut-into-rows",
        hints.IN_ORDER,
        """\
def random_slices(tokens, b, n):
    start = int(torch.randint(len(tokens) - b * n + 1, (1,)))
    return tokens[start : start + b * n].view(b, n)
""",
    ),
    wrong("sorted", hints.DEPENDENT, starts=f"{STARTS}.sort(dim=0).values"),
    wrong(
        "each-start-twice",
        hints.DEPENDENT,
        starts="torch.randint(len(tokens) - n + 1, (b, 1)).repeat_interleave(2, dim=0)[:b]",
    ),
    wrong(
        "second-half-repeats-the-first",
        hints.DEPENDENT,
        starts="torch.randint(len(tokens) - n + 1, ((b + 1) // 2, 1)).repeat(2, 1)[:b]",
    ),
    wrong("without-replacement", hints.WITHOUT_REPLACEMENT, starts="torch.randperm(len(tokens) - n + 1)[:b, None]"),
    wrong(
        "without-replacement-again-and-again",
        hints.DEPENDENT,
        starts="torch.cat([torch.randperm(len(tokens) - n + 1) for _ in range(b)])[:b, None]",
    ),
    wrong(
        "without-replacement-while-it-lasts",
        hints.WITHOUT_REPLACEMENT,
        starts="(torch.randperm(len(tokens) - n + 1)[:b, None] if b <= len(tokens) - n + 1 else "
        "torch.randint(len(tokens) - n + 1, (b, 1)))",
    ),
)

WRONG_TOKENS = (
    wrong("tokens-one-by-one", hints.NOT_CONSECUTIVE, positions="torch.randint(len(tokens), (b, n))"),
    wrong("shuffled", hints.SHUFFLED, positions="starts + torch.rand(b, n).argsort(dim=1)"),
    wrong("backwards", hints.REVERSED, positions="starts + torch.arange(n).flip(0)"),
    wrong(
        "every-second-token",
        hints.NOT_CONSECUTIVE,
        starts="torch.randint(len(tokens) - 2 * n + 2, (b, 1))",
        positions="starts + 2 * torch.arange(n)",
    ),
    wrong("first-token-again-and-again", hints.REPEATED, positions="starts.expand(b, n)"),
    wrong("turned-by-view", hints.NOT_CONSECUTIVE, returned="tokens[positions].T.reshape(b, n)"),
    wrong("positions-returned", hints.POSITIONS, returned="positions"),
    wrong("tokens-changed", hints.NOT_FROM_THE_TEXT, returned="tokens[positions] + 1"),
    wrong("starts-returned", hints.ONE_TOKEN, returned="starts.flatten()"),
    wrong("one-token-each", hints.ONE_TOKEN, returned="tokens[starts]"),
    wrong("positions-first", hints.SWAPPED, returned="tokens[positions].T"),
    wrong("one-slice", hints.ONE_SLICE, returned="tokens[positions][0]"),
    wrong("one-slice-as-a-batch", hints.ONE_SLICE, returned="tokens[positions][:1]"),
    wrong("flattened", hints.FLAT, returned="tokens[positions].flatten()"),
    wrong(
        "one-token-more",
        hints.ONE_MORE,
        starts="torch.randint(len(tokens) - n, (b, 1))",
        positions="starts + torch.arange(n + 1)",
    ),
    wrong("one-token-less", hints.ONE_LESS, positions="starts + torch.arange(n - 1)"),
    wrong("inputs-and-labels", hints.OTHER_SHAPE, returned="torch.stack([tokens[positions]] * 2)"),
)

WRONG_BEHAVIOUR = (
    WrongAnswer("the-package-s-own", NOT_YOURS, "from transformer_lm.lm import random_slices\n"),
    before("seed-inside", FIXED_SEED, "torch.manual_seed(42)"),
    wrong(
        "generator-with-a-seed",
        FIXED_SEED,
        starts="torch.randint(len(tokens) - n + 1, (b, 1), generator=torch.Generator().manual_seed(1))",
    ),
    wrong(
        "a-new-generator",
        FIXED_SEED,
        starts="torch.randint(len(tokens) - n + 1, (b, 1), generator=torch.Generator())",
    ),
    before("seed-of-the-clock", NOT_TORCH, "torch.seed()"),
    WrongAnswer(
        "python-random",
        NOT_TORCH,
        """\
import random


def random_slices(tokens, b, n):
    starts = [random.randint(0, len(tokens) - n) for _ in range(b)]
    return torch.stack([tokens[start : start + n] for start in starts])
""",
    ),
    WrongAnswer(
        "numpy-random",
        NOT_TORCH,
        """\
import numpy as np


def random_slices(tokens, b, n):
    starts = torch.from_numpy(np.random.default_rng().integers(0, len(tokens) - n, (b, 1), endpoint=True))
    return tokens[starts + torch.arange(n)]
""",
    ),
    wrong("of-floats", NOT_LONG, returned="tokens[positions].float()"),
    wrong("of-short-numbers", NOT_LONG, returned="tokens[positions].int()"),
    wrong("a-list-of-slices", "Return slices as one tensor.", returned="list(tokens[positions])"),
    wrong("nothing-returned", "Return slices as one tensor.", returned="None"),
    wrong("loses-a-batch-of-one", ONE_SEQUENCE, returned="tokens[positions].squeeze(0)"),
    wrong("loses-slices-of-one", hints.SHORT, returned="tokens[positions].squeeze(1)"),
    before("a-whole-text-is-too-short", hints.WHOLE, "assert len(tokens) > n"),
    wrong("misspelt", ERROR, returned="token[positions]"),
    edited(
        "shuffles-the-text",
        "Something works in place, such as `+=` or a method that ends in `_`: make a new tensor instead.",
        MODEL_ANSWER,
        ("    return tokens[positions]", "    rows = tokens[positions]\n    tokens.zero_()\n    return rows"),
    ),
)

RIGHT = {
    "stacked-slices": """\
def random_slices(tokens, b, n):
    starts = torch.randint(0, len(tokens) - n + 1, (b,)).tolist()
    return torch.stack([tokens[start : start + n] for start in starts])
""",
    "a-start-at-a-time": """\
def random_slices(tokens, b, n):
    rows = []
    while len(rows) < b:
        start = torch.randint(high=tokens.numel() - n + 1, size=(1,)).item()
        rows.append(tokens[start : start + n].tolist())
    return torch.tensor(rows)
""",
    "token-by-token": """\
def random_slices(tokens, b, n):
    result = torch.zeros(b, n, dtype=tokens.dtype)
    for row, start in enumerate(torch.randint(len(tokens) - n + 1, (b,))):
        for i in range(n):
            result[row, i] = tokens[start + i]
    return result
""",
    "unfold": """\
def random_slices(tokens, b, n):
    windows = tokens.unfold(0, n, 1)
    return windows[torch.randint(len(windows), (b,))]
""",
    "as-strided": """\
def random_slices(tokens, b, n):
    windows = tokens.as_strided((len(tokens) - n + 1, n), (1, 1))
    return windows.index_select(0, torch.randint(windows.shape[0], (b,)))
""",
    "uniform-numbers": """\
def random_slices(tokens, b, n):
    starts = (torch.rand(b, dtype=torch.float64) * (len(tokens) - n + 1)).floor().long()
    return tokens[starts.unsqueeze(1) + torch.arange(n).unsqueeze(0)]
""",
    "multinomial": """\
def random_slices(tokens, b, n):
    starts = torch.ones(len(tokens) - n + 1).multinomial(b, replacement=True)
    return torch.stack([tokens.narrow(0, int(start), n) for start in starts])
""",
    "largest-of-random-numbers": """\
def random_slices(tokens, b, n):
    starts = torch.rand(b, len(tokens) - n + 1).argmax(dim=1)
    return tokens.take(starts[:, None] + torch.arange(n))
""",
    "shuffled-for-each-row": """\
def random_slices(tokens, b, n):
    starts = [torch.randperm(len(tokens) - n + 1)[0] for _ in range(b)]
    return torch.cat([tokens[start : start + n][None] for start in starts])
""",
    "gather": """\
def random_slices(tokens, b, n):
    positions = torch.empty(b, 1, dtype=torch.int64).random_(0, len(tokens) - n + 1) + torch.arange(n)
    return tokens.expand(b, -1).gather(1, positions)
""",
    "cumulated-positions": """\
def random_slices(tokens, b, n):
    positions = torch.ones(b, n, dtype=torch.long)
    positions[:, 0] = torch.randint(len(tokens) - n + 1, (b,))
    return F.embedding(positions.cumsum(dim=1), tokens[:, None].double()).squeeze(-1).long()
""",
    "sampler-and-dataset": """\
from torch.utils.data import RandomSampler


def random_slices(tokens, b, n):
    sampler = RandomSampler(range(len(tokens) - n + 1), replacement=True, num_samples=b)
    return torch.stack([tokens[start : start + n] for start in sampler])
""",
}

SLICES_RECORD = Record(
    public=SLICES,
    title="Random slices of a text",
    defines="random_slices",
    parts=(Part("slices-check", 3, drawn(examine_slices)),),
    model_answer=MODEL_ANSWER,
    misbehaving=(*WRONG_STARTS, *WRONG_TOKENS, *WRONG_BEHAVIOUR),
    right=RIGHT,
)
