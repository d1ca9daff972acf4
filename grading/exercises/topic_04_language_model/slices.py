"""The exercise of topic 04 about random slices of a text."""

from grading.judging.record import Part, Record, WrongAnswer, edited
from grading.judging.sampled import drawn
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
    name: str, starts: str = STARTS, positions: str = POSITIONS, returned: str = RETURNED, hint: str = ""
) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, MODEL_ANSWER, (STARTS, starts), (POSITIONS, positions), (RETURNED, returned), hint=hint)


def before(name: str, line: str, hint: str = "") -> WrongAnswer:
    """Return the model answer with another line at its beginning."""
    return edited(name, MODEL_ANSWER, (START, f"    {line}\n{START}"), hint=hint)


WRONG_STARTS = (
    wrong("starts-anywhere", starts="torch.randint(len(tokens), (b, 1))", hint="starts-too-far"),
    wrong("starts-one-too-far", starts="torch.randint(len(tokens) - n + 2, (b, 1))", hint="starts-too-far"),
    WrongAnswer(
        "cut-off-at-the-end",
        """\
def random_slices(tokens, b, n):
    starts = torch.randint(len(tokens), (b,)).tolist()
    return torch.stack([tokens[start : start + n] for start in starts])
""",
        hint="starts-too-far",
    ),
    wrong(
        "wraps-around",
        starts="torch.randint(len(tokens), (b, 1))",
        positions="(starts + torch.arange(n)) % len(tokens)",
    ),
    wrong(
        "stops-at-the-last-token",
        starts="torch.randint(len(tokens), (b, 1))",
        positions="(starts + torch.arange(n)).clamp(max=len(tokens) - 1)",
        hint="starts-too-far",
    ),
    wrong("starts-before-the-text", starts="torch.randint(-1, len(tokens) - n + 1, (b, 1))", hint="wraps-around"),
    wrong("never-the-last", starts="torch.randint(len(tokens) - n, (b, 1))"),
    wrong("never-the-last-two", starts="torch.randint(len(tokens) - n - 1, (b, 1))", hint="never-the-last"),
    wrong("never-the-first", starts="torch.randint(1, len(tokens) - n + 1, (b, 1))"),
    wrong("never-the-second-half", starts="torch.randint((len(tokens) - n + 1) // 2, (b, 1))", hint="never-the-last"),
    wrong("moved-back-from-the-end", starts="torch.randint(len(tokens), (b, 1)).clamp(max=len(tokens) - n)"),
    wrong("rounded", starts="(torch.rand(b, 1) * (len(tokens) - n)).round().long()", hint="uneven"),
    wrong(
        "bell-shaped",
        starts="(torch.rand(b, 1) + torch.rand(b, 1)).mul((len(tokens) - n + 1) / 2).long()",
        hint="uneven",
    ),
    wrong("blocks", starts="n * torch.randint(len(tokens) // n, (b, 1))"),
    wrong("one-start-for-all", starts="torch.randint(len(tokens) - n + 1, (1,)).expand(b, 1)"),
    wrong("always-the-beginning", starts="torch.zeros(b, 1, dtype=torch.long)", hint="one-start-for-all"),
    wrong(
        "one-after-the-other",
        starts="(torch.randint(len(tokens) - n + 1, (1,)) + torch.arange(b)[:, None]) % (len(tokens) - n + 1)",
        hint="in-order",
    ),
    wrong(
        "in-order-from-the-beginning",
        starts="torch.arange(b)[:, None] % (len(tokens) - n + 1)",
        hint="in-order",
    ),
    WrongAnswer(
        "one-piece-cut-into-rows",
        """\
def random_slices(tokens, b, n):
    start = int(torch.randint(len(tokens) - b * n + 1, (1,)))
    return tokens[start : start + b * n].view(b, n)
""",
        hint="in-order",
    ),
    wrong("sorted", starts=f"{STARTS}.sort(dim=0).values", hint="dependent"),
    wrong(
        "each-start-twice",
        starts="torch.randint(len(tokens) - n + 1, (b, 1)).repeat_interleave(2, dim=0)[:b]",
        hint="dependent",
    ),
    wrong(
        "second-half-repeats-the-first",
        starts="torch.randint(len(tokens) - n + 1, ((b + 1) // 2, 1)).repeat(2, 1)[:b]",
        hint="dependent",
    ),
    wrong("without-replacement", starts="torch.randperm(len(tokens) - n + 1)[:b, None]"),
    wrong(
        "without-replacement-again-and-again",
        starts="torch.cat([torch.randperm(len(tokens) - n + 1) for _ in range(b)])[:b, None]",
        hint="dependent",
    ),
    wrong(
        "without-replacement-while-it-lasts",
        starts="(torch.randperm(len(tokens) - n + 1)[:b, None] if b <= len(tokens) - n + 1 else "
        "torch.randint(len(tokens) - n + 1, (b, 1)))",
        hint="without-replacement",
    ),
)

WRONG_TOKENS = (
    wrong("tokens-one-by-one", positions="torch.randint(len(tokens), (b, n))", hint="not-consecutive"),
    wrong("shuffled", positions="starts + torch.rand(b, n).argsort(dim=1)"),
    wrong("backwards", positions="starts + torch.arange(n).flip(0)"),
    wrong(
        "every-second-token",
        starts="torch.randint(len(tokens) - 2 * n + 2, (b, 1))",
        positions="starts + 2 * torch.arange(n)",
        hint="not-consecutive",
    ),
    wrong("first-token-again-and-again", positions="starts.expand(b, n)"),
    wrong("turned-by-view", returned="tokens[positions].T.reshape(b, n)", hint="not-consecutive"),
    wrong("positions-returned", returned="positions"),
    wrong("tokens-changed", returned="tokens[positions] + 1", hint="not-from-the-text"),
    wrong("starts-returned", returned="starts.flatten()", hint="one-token"),
    wrong("one-token-each", returned="tokens[starts]", hint="one-token"),
    wrong("positions-first", returned="tokens[positions].T"),
    wrong("one-slice", returned="tokens[positions][0]"),
    wrong("one-slice-as-a-batch", returned="tokens[positions][:1]", hint="one-slice"),
    wrong("flattened", returned="tokens[positions].flatten()"),
    wrong("one-token-more", starts="torch.randint(len(tokens) - n, (b, 1))", positions="starts + torch.arange(n + 1)"),
    wrong("one-token-less", positions="starts + torch.arange(n - 1)"),
    wrong("inputs-and-labels", returned="torch.stack([tokens[positions]] * 2)", hint="other-shape"),
)

WRONG_BEHAVIOUR = (
    WrongAnswer("the-package-s-own", "from transformer_lm.lm import random_slices\n", hint="not-yours"),
    before("seed-inside", "torch.manual_seed(42)", hint="seed-fixed"),
    wrong(
        "generator-with-a-seed",
        starts="torch.randint(len(tokens) - n + 1, (b, 1), generator=torch.Generator().manual_seed(1))",
        hint="seed-fixed",
    ),
    wrong(
        "a-new-generator",
        starts="torch.randint(len(tokens) - n + 1, (b, 1), generator=torch.Generator())",
        hint="seed-fixed",
    ),
    before("seed-of-the-clock", "torch.seed()", hint="not-torchs-generator"),
    WrongAnswer(
        "python-random",
        """\
import random


def random_slices(tokens, b, n):
    starts = [random.randint(0, len(tokens) - n) for _ in range(b)]
    return torch.stack([tokens[start : start + n] for start in starts])
""",
        hint="not-torchs-generator",
    ),
    WrongAnswer(
        "numpy-random",
        """\
import numpy as np


def random_slices(tokens, b, n):
    starts = torch.from_numpy(np.random.default_rng().integers(0, len(tokens) - n, (b, 1), endpoint=True))
    return tokens[starts + torch.arange(n)]
""",
        hint="not-torchs-generator",
    ),
    wrong("of-floats", returned="tokens[positions].float()", hint="tokens-not-long"),
    wrong("of-short-numbers", returned="tokens[positions].int()", hint="tokens-not-long"),
    wrong("a-list-of-slices", returned="list(tokens[positions])", hint="not-a-tensor"),
    wrong("nothing-returned", returned="None", hint="not-a-tensor"),
    wrong("loses-a-batch-of-one", returned="tokens[positions].squeeze(0)", hint="one-sequence"),
    wrong("loses-slices-of-one", returned="tokens[positions].squeeze(1)"),
    before("a-whole-text-is-too-short", "assert len(tokens) > n", hint="whole-text"),
    wrong("misspelt", returned="token[positions]", hint="raises"),
    edited(
        "shuffles-the-text",
        MODEL_ANSWER,
        ("    return tokens[positions]", "    rows = tokens[positions]\n    tokens.zero_()\n    return rows"),
        hint="input-changed",
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
