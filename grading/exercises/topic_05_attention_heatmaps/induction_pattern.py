"""The exercise of topic 05 about the induction pattern: keys that follow an earlier occurrence of the query's token."""

import random

import numpy as np

from grading.exercises.topic_05_attention_heatmaps.offset_profile import CHANGED
from grading.judging.judge import values
from grading.judging.mistakes import ERROR, misbehaviours
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.engine.calling import OTHER_LENGTH, OTHER_SIZES
from transformer_lm.checks.topic_05_attention_heatmaps.induction_pattern import INDUCTION_PATTERN, NOT_BOOL

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
    follows = F.pad(same[:, :, :-1], (1, 0))  # the key after it; nothing stands before the first
    return follows.tril(-1)
"""

LINES = {
    "same": "tokens[:, :, None] == tokens[:, None, :]",
    "follows": "F.pad(same[:, :, :-1], (1, 0))",
    "returned": "follows.tril(-1)",
}


def wrong(name: str, hint: str, **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, hint, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()))


def before_the_first(token: int, hint: str) -> WrongAnswer:
    """Return the answer that puts a token before the first one."""
    previous = f"F.pad(tokens[:, :-1], (1, 0), value={token})"
    same = f"tokens[:, :, None] == {previous}[:, None, :]"
    return wrong(f"token-{token}-before-the-first", hint, same=same, follows="same")


TAKEN = (
    "The first key is taken to follow a token of your choice: nothing stands before it, and that one can occur, too."
)
LATEST = "(follows.tril(-1).flip(-1).cumsum(dim=-1).flip(-1) == 1) & follows.tril(-1)"

WRONG = (
    wrong(
        "duplicate",
        "The key is the earlier occurrence itself: an induction head reads what came after it.",
        follows="same",
    ),
    wrong(
        "key-before",
        "The key stands before the earlier occurrence: an induction head reads what came after it.",
        follows="F.pad(same[:, :, 1:], (0, 1))",
    ),
    wrong(
        "two-after",
        "The key stands two places after the earlier occurrence: it is the very next one.",
        follows="F.pad(same[:, :, :-2], (2, 0))",
    ),
    wrong(
        "diagonal-included",
        "After a doubled token the query reads itself: a key stands before its query, so leave the diagonal out.",
        returned="follows.tril()",
    ),
    wrong(
        "future-included",
        "Keys after the query are in the pattern: a key stands before its query.",
        returned="follows",
    ),
    wrong(
        "only-the-future",
        "Only keys after the query are in the pattern: it is the other triangle that counts.",
        returned="follows.triu(1)",
    ),
    wrong(
        "previous-key-left-out",
        "The key right before the query is left out: it counts if it follows the query's token.",
        returned="follows.tril(-2)",
    ),
    wrong(
        "latest-only",
        "Only the latest occurrence counts: every earlier one has a token that followed it.",
        returned=LATEST,
    ),
    wrong(
        "first-only",
        "Only the first occurrence counts: every earlier one has a token that followed it.",
        returned="(follows.tril(-1).cumsum(dim=-1) == 1) & follows.tril(-1)",
    ),
    wrong(
        "wraps-around",
        "The first key follows the last token of the sequence: rolling wraps around, but nothing stands before it.",
        follows="same.roll(1, dims=2)",
    ),
    before_the_first(
        0, "The first key is taken to follow the token 0: nothing stands before it, and 0 is a token as any other."
    ),
    *(before_the_first(token, TAKEN) for token in TAKEN_FOR_NONE[:4]),
    wrong(
        "first-key-always",
        "The first key is always in the pattern: nothing stands before it, so it follows nothing.",
        follows="F.pad(same[:, :, :-1], (1, 0), value=True)",
    ),
    wrong(
        "transposed",
        "Rows and columns are swapped: rows are the queries, and the keys that they read stand before them.",
        returned="follows.tril(-1).mT",
    ),
    wrong(
        "queries-moved",
        "The query follows, and the key is its token: it is the key that stands one place later.",
        follows="F.pad(same[:, :-1], (0, 0, 1, 0))",
    ),
    wrong(
        "previous-tokens-compared",
        "The tokens before query and key are compared: it is the query's own token that must have come before.",
        follows="F.pad(same[:, :-1, :-1], (1, 0, 1, 0))",
    ),
    wrong(
        "next-token-known",
        "The key is the token that really comes next: the query does not know it, only what followed its own.",
        follows="F.pad(same[:, 1:], (0, 0, 0, 1))",
    ),
    wrong(
        "two-tokens-compared",
        "Two tokens in a row must come back: here the query's own token is enough.",
        follows="F.pad(same[:, :, :-1], (1, 0)) & F.pad(same[:, :-1, :-2], (2, 0, 1, 0))",
    ),
    wrong(
        "either",
        "The earlier occurrences are in the pattern beside what follows them: only what follows counts.",
        follows="same | F.pad(same[:, :, :-1], (1, 0))",
    ),
    wrong(
        "repeated-before",
        "The key must be the query's token, too: what it is does not matter, only what stands before it.",
        follows="same & F.pad(same[:, :, :-1], (1, 0))",
    ),
    wrong(
        "itself-excluded",
        "Keys with the query's own token are left out: it does not matter what the key is.",
        follows="~same & F.pad(same[:, :, :-1], (1, 0))",
    ),
    wrong(
        "inverted",
        "This is where the key does not follow the query's token: the comparison is the other way round.",
        follows="~F.pad(same[:, :, :-1], (1, 0))",
    ),
    wrong(
        "everything-before",
        "Every key before the query is in the pattern: only those that follow its token are.",
        follows="torch.ones_like(same)",
    ),
    wrong(
        "first-sequence-for-all",
        "All sequences get the pattern of the first: each has tokens of its own.",
        returned="follows[:1].tril(-1).expand(b, n, n)",
    ),
    wrong(
        "keys-of-the-next-sequence",
        "Queries are compared with the tokens of another sequence: the rows of a batch do not mix.",
        same="tokens[:, :, None] == tokens.roll(1, dims=0)[:, None, :]",
    ),
    wrong(
        "sequences-mixed",
        "A key counts if it follows the token in any sequence of the batch: the rows of a batch do not mix.",
        same="(tokens[:, :, None] == tokens[:, None, :]).any(dim=0).expand(b, n, n)",
    ),
    wrong(
        "compared-with-less-or-equal",
        "Tokens are compared by size: they must be the same.",
        same="tokens[:, :, None] >= tokens[:, None, :]",
    ),
    wrong(
        "few-bits",
        "Different tokens are taken for the same: a dtype of 8 bits, or a remainder, does not keep all of them apart.",
        same="tokens.byte()[:, :, None] == tokens.byte()[:, None, :]",
    ),
    wrong(
        "without-a-batch",
        "There is one pattern for the whole batch: each sequence has its own.",
        returned="follows.tril(-1).any(dim=0)",
    ),
    wrong(
        "last-query-only",
        "Only the last query has keys: every query has those that follow its token.",
        returned="F.pad(follows.tril(-1)[:, -1:], (0, 0, n - 1, 0))",
    ),
)

TENSOR = "Return pattern as one tensor."
BEHAVIOURS = misbehaviours(MODEL_ANSWER, "induction_pattern", longer=(6, 17))

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name not in ("changes-its-input", "cuts-the-gradient")),  # whole numbers
    wrong("tokens-changed", CHANGED, same="tokens[:, :, None] == tokens[:, None, :]\n    tokens += 1"),
    wrong("of-whole-numbers", NOT_BOOL, returned="follows.tril(-1).long()"),
    wrong("of-floats", NOT_BOOL, returned="follows.tril(-1).float()"),
    wrong("shares", NOT_BOOL, returned="follows.tril(-1) / follows.tril(-1).sum(-1, keepdim=True).clamp(min=1)"),
    wrong("places", TENSOR, returned="follows.tril(-1).nonzero(as_tuple=True)"),
    wrong("fixed-length", OTHER_LENGTH, returned="follows & torch.ones(13, 13, dtype=torch.bool).tril(-1)"),
    wrong("at-most-seventeen-back", OTHER_SIZES, returned="follows.tril(-1).triu(-17)"),
    before_the_first(12, OTHER_LENGTH),
    wrong("compares-lists", ERROR, same="tokens.tolist()[:, :, None] == tokens[:, None, :]"),
    edited("nothing-returned", TENSOR, MODEL_ANSWER, (f"return {LINES['returned']}", LINES["returned"])),
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
    title="What an induction head would read",
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
