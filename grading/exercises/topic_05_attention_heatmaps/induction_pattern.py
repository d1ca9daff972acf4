"""The exercise of topic 05 about the induction pattern: keys that follow an earlier occurrence of the query's token."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import misbehaviours
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.topic_05_attention_heatmaps.induction_pattern import INDUCTION_PATTERN

# Ids that an answer may put before the first token, as if they were not tokens, in the order in which they are tried.
TAKEN_FOR_NONE = (1, 99, 100, 999, 2, 10, 12, 255, 3, 5, 50, 64, 65, 127, 128, 1000)
ALIKE = 256  # the same as 0 in 8 bits
LARGEST = 500


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return tokens of a small vocabulary, so that they recur; 0 is one of them, and some are doubled.

    Every sequence begins with a pair of tokens that recurs, and ends with a doubled token. At up to a third of the
    positions in between are ids that an answer may mistake for no token at all, each once in the batch.
    """
    b, n, v = (sizes[name] for name in ("b", "n", "v"))
    others = [each for each in range(1, LARGEST) if each not in (ALIKE, *TAKEN_FOR_NONE)]
    ids = np.array([0, ALIKE, *sorted(others, key=lambda each: rng.random())])
    drawn = np.array([int(rng.random() * v) for _ in range(b * n)]).reshape(b, n)
    drawn[:, :5] = [(1, 0, 0, 1, 0)]
    tokens = ids[drawn]
    for sequence in range(b):
        places = sorted(range(5, n - 2), key=lambda each: rng.random())[: (n - 7) // 3]
        for place, token in zip(places, TAKEN_FOR_NONE[sequence::b], strict=False):
            tokens[sequence, place] = token
    tokens[:, -1] = tokens[:, -2]
    return {"tokens": tokens}


def reference(case: Arrays) -> Arrays:
    """Return 1 where a key follows an earlier occurrence of the query's token, pair by pair."""
    tokens = case["tokens"]
    b, n = tokens.shape
    pattern = np.zeros((b, n, n))
    for row, own in zip(pattern, tokens, strict=True):
        for query in range(n):
            for key in range(1, query):
                row[query, key] = own[key - 1] == own[query]
    return {"pattern": pattern}


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def induction_pattern(tokens):
    b, n = tokens.shape
    same = tokens[:, :, None] == tokens[:, None, :]  # (b, i, j)
    follows = F.pad(same[:, :, :-1], (1, 0))  # the key after it; no token comes before the first key
    return follows.tril(-1)
"""

LINES = {
    "same": "tokens[:, :, None] == tokens[:, None, :]",
    "follows": "F.pad(same[:, :, :-1], (1, 0))",
    "returned": "follows.tril(-1)",
}


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()), hint=hint)


def before_the_first(token: int, hint: str = "") -> WrongAnswer:
    """Return the answer that puts a token before the first one."""
    previous = f"F.pad(tokens[:, :-1], (1, 0), value={token})"
    same = f"tokens[:, :, None] == {previous}[:, None, :]"
    return wrong(f"token-{token}-before-the-first", same=same, follows="same", hint=hint)


LATEST = "(follows.tril(-1).flip(-1).cumsum(dim=-1).flip(-1) == 1) & follows.tril(-1)"

WRONG = (
    wrong("duplicate", follows="same"),
    wrong("key-before", follows="F.pad(same[:, :, 1:], (0, 1))"),
    wrong("two-after", follows="F.pad(same[:, :, :-2], (2, 0))"),
    wrong("diagonal-included", returned="follows.tril()"),
    wrong("future-included", returned="follows"),
    wrong("only-the-future", returned="follows.triu(1)"),
    wrong("previous-key-left-out", returned="follows.tril(-2)"),
    wrong("latest-only", returned=LATEST),
    wrong("first-only", returned="(follows.tril(-1).cumsum(dim=-1) == 1) & follows.tril(-1)"),
    wrong("wraps-around", follows="same.roll(1, dims=2)"),
    before_the_first(0),
    *(before_the_first(token, hint="token-1-before-the-first") for token in TAKEN_FOR_NONE[:4]),
    wrong("first-key-always", follows="F.pad(same[:, :, :-1], (1, 0), value=True)"),
    wrong("transposed", returned="follows.tril(-1).mT"),
    wrong("queries-moved", follows="F.pad(same[:, :-1], (0, 0, 1, 0))"),
    wrong("previous-tokens-compared", follows="F.pad(same[:, :-1, :-1], (1, 0, 1, 0))"),
    wrong("next-token-known", follows="F.pad(same[:, 1:], (0, 0, 0, 1))"),
    wrong("two-tokens-compared", follows="F.pad(same[:, :, :-1], (1, 0)) & F.pad(same[:, :-1, :-2], (2, 0, 1, 0))"),
    wrong("either", follows="same | F.pad(same[:, :, :-1], (1, 0))"),
    wrong("repeated-before", follows="same & F.pad(same[:, :, :-1], (1, 0))"),
    wrong("itself-excluded", follows="~same & F.pad(same[:, :, :-1], (1, 0))"),
    wrong("inverted", follows="~F.pad(same[:, :, :-1], (1, 0))"),
    wrong("everything-before", follows="torch.ones_like(same)"),
    wrong("first-sequence-for-all", returned="follows[:1].tril(-1).expand(b, n, n)"),
    wrong("keys-of-the-next-sequence", same="tokens[:, :, None] == tokens.roll(1, dims=0)[:, None, :]"),
    wrong("sequences-mixed", same="(tokens[:, :, None] == tokens[:, None, :]).any(dim=0).expand(b, n, n)"),
    wrong("compared-with-less-or-equal", same="tokens[:, :, None] >= tokens[:, None, :]"),
    wrong("few-bits", same="tokens.byte()[:, :, None] == tokens.byte()[:, None, :]"),
    wrong("without-a-batch", returned="follows.tril(-1).any(dim=0)"),
    wrong("last-query-only", returned="F.pad(follows.tril(-1)[:, -1:], (0, 0, n - 1, 0))"),
)

BEHAVIOURS = misbehaviours(MODEL_ANSWER, "induction_pattern", longer=(6, 17))

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name not in ("changes-its-input", "cuts-the-gradient")),  # whole numbers
    wrong("tokens-changed", same="tokens[:, :, None] == tokens[:, None, :]\n    tokens += 1", hint="input-changed"),
    wrong("of-whole-numbers", returned="follows.tril(-1).long()", hint="not-boolean"),
    wrong("of-floats", returned="follows.tril(-1).float()", hint="not-boolean"),
    wrong(
        "shares",
        returned="follows.tril(-1) / follows.tril(-1).sum(-1, keepdim=True).clamp(min=1)",
        hint="not-boolean",
    ),
    wrong("places", returned="follows.tril(-1).nonzero(as_tuple=True)", hint="not-a-tensor"),
    wrong("fixed-length", returned="follows & torch.ones(13, 13, dtype=torch.bool).tril(-1)", hint="other-length"),
    wrong("at-most-seventeen-back", returned="follows.tril(-1).triu(-17)", hint="other-sizes"),
    before_the_first(12, hint="other-length"),
    wrong("compares-lists", same="tokens.tolist()[:, :, None] == tokens[:, None, :]", hint="raises"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {LINES['returned']}", LINES["returned"]), hint="not-a-tensor"),
)

RIGHT = {
    "previous-tokens": """\
def induction_pattern(tokens):
    previous = F.pad(tokens[:, :-1], (1, 0), value=-1)  # no token is -1
    return (tokens[:, :, None] == previous[:, None, :]).tril(diagonal=-1)
""",
    "duplicates-rolled": """\
def induction_pattern(tokens):
    duplicates = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).tril(-1)
    return duplicates.roll(1, dims=-1).tril(-1)  # what comes round is never a duplicate
""",
    "cut-and-filled": """\
def induction_pattern(tokens):
    b, n = tokens.shape
    pattern = torch.zeros(b, n, n, dtype=torch.bool, device=tokens.device)
    pattern[:, :, 1:] = tokens[:, :, None] == tokens[:, None, :-1]
    places = torch.arange(n, device=tokens.device)
    return pattern & (places[None, :] < places[:, None])
""",
    "pair-by-pair": """\
def induction_pattern(tokens):
    rows = tokens.tolist()
    return torch.tensor(
        [[[0 < j < i and row[j - 1] == row[i] for j in range(len(row))] for i in range(len(row))] for row in rows],
        device=tokens.device,
    )
""",
    "query-by-query": """\
def induction_pattern(tokens):
    b, n = tokens.shape
    pattern = torch.zeros(b, n, n, dtype=torch.bool, device=tokens.device)
    for i in range(2, n):
        pattern[:, i, 1:i] = tokens[:, : i - 1] == tokens[:, i : i + 1]
    return pattern
""",
    "offset-by-offset": """\
def induction_pattern(tokens):
    b, n = tokens.shape
    pattern = torch.zeros(b, n, n, dtype=torch.bool, device=tokens.device)
    for back in range(2, n):
        pattern.diagonal(1 - back, dim1=1, dim2=2)[:, 1:] = tokens[:, back:] == tokens[:, :-back]
    return pattern
""",
    "one-hot": """\
def induction_pattern(tokens):
    member = F.one_hot(tokens).float()  # (b, n, v)
    previous = F.pad(member, (0, 0, 1, 0))[:, :-1]  # a row of zeros before the first
    return (member @ previous.mT).bool().tril(-1)
""",
    "where": """\
def induction_pattern(tokens):
    n = tokens.shape[1]
    i = torch.arange(n, device=tokens.device).view(-1, 1)
    j = torch.arange(n, device=tokens.device).view(1, -1)
    equal = tokens[:, i.expand(n, n)] == tokens[:, (j - 1).clamp(min=0).expand(n, n)]
    return torch.where((j >= 1) & (j < i), equal, False)
""",
    "gathered": """\
def induction_pattern(tokens):
    b, n = tokens.shape
    i, j = torch.tril_indices(n, n, offset=-1, device=tokens.device)
    i, j = i[j > 0], j[j > 0]
    pattern = tokens.new_zeros(b, n, n).bool()
    pattern[:, i, j] = tokens[:, j - 1] == tokens[:, i]
    return pattern
""",
    "differences": """\
def induction_pattern(tokens):
    b, n = tokens.shape
    difference = tokens[:, :, None] - tokens[:, None, :-1]  # (b, n, n - 1)
    first = torch.ones(b, n, 1, dtype=torch.long, device=tokens.device)
    before = torch.ones(n, n, device=tokens.device).tril(-1).bool()
    return torch.cat([first, difference], dim=2).eq(0).logical_and(before)
""",
    "numpy": """\
import numpy as np


def induction_pattern(tokens):
    array = tokens.cpu().numpy()
    pattern = np.zeros((*array.shape, array.shape[1]), dtype=bool)
    pattern[:, :, 1:] = array[:, :, None] == array[:, None, :-1]
    return torch.from_numpy(np.tril(pattern, -1)).to(tokens.device)
""",
    "sequence-by-sequence": """\
def induction_pattern(tokens):
    patterns = []
    for row in tokens:
        follows = row[:, None] == torch.cat([row.new_tensor([-1]), row[:-1]])
        patterns.append(torch.tril(follows, -1))
    return torch.stack(patterns)
""",
}

INDUCTION_PATTERN_RECORD = ValueRecord(
    public=INDUCTION_PATTERN,
    title="What an induction head attends to",
    defines="induction_pattern",
    parts=(Part("induction-pattern-check", 3, values),),
    properties=(SEQUENCES_APART, input_matters("pattern")),
    first_sizes={"b": 3, "n": 13, "v": 5},
    other_length={"b": 6, "n": 17},
    other_sizes={"b": 5, "n": 15, "v": 6},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
