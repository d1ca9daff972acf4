"""The exercise of topic 03 about padding sequences of different lengths into one batch."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import ERROR
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.engine.calling import CALLED_AGAIN, OTHER_LENGTH, OTHER_SIZES
from transformer_lm.checks.topic_03_classification.pad_batch import PAD_BATCH


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return concatenated sequences; the first is shorter than max_len, and one of the others is the longest.

    The token 0 is an ordinary word, even at the end of a sequence; the padding token is never a word.
    """
    n, max_len = sizes["n"], sizes["max_len"]
    shortest = 2 + int(rng.random() * (max_len - 2))
    lengths = [shortest] + [2 + int(rng.random() * (n - 2)) for _ in range(sizes["b"] - 2)]
    lengths.insert(1 + int(rng.random() * max(1, len(lengths) - 1)), n)  # not the last, if there are three or more
    tokens = [10 + int(rng.random() * 290) for _ in range(sum(lengths))]
    tokens[shortest - 1] = tokens[shortest] = 0
    return {
        "tokens": np.array(tokens),
        "lengths": np.array(lengths),
        "pad": np.array(1 + int(rng.random() * 9)),
        "max_len": np.array(max_len),
    }


def reference(case: Arrays) -> Arrays:
    """Return the batches, filled token by token."""

    def padded(lengths: list[int]) -> np.ndarray:
        batch = np.full((len(lengths), max(lengths)), float(case["pad"]))
        for sequence, length in enumerate(lengths):
            for position in range(length):
                batch[sequence, position] = case["tokens"][starts[sequence] + position]
        return batch

    lengths = case["lengths"].tolist()
    starts = [sum(lengths[:sequence]) for sequence in range(len(lengths))]
    cut = [min(length, int(case["max_len"])) for length in lengths]
    return {"whole": padded(lengths), "cut": padded(cut), "alone": padded(lengths[:1])}


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def pad_batch(sequences, pad, max_len):
    cut = [sequence[:max_len] for sequence in sequences]
    n = max(len(sequence) for sequence in cut)
    rows = [sequence + [pad] * (n - len(sequence)) for sequence in cut]
    return torch.tensor(rows)
"""

START = "    cut = "
CUT = "sequence[:max_len] for sequence in sequences"
LONGEST = "max(len(sequence) for sequence in cut)"
ROW = "sequence + [pad] * (n - len(sequence)) for sequence in cut"
RETURNED = "torch.tensor(rows)"


def wrong(
    name: str, hint: str, cut: str = CUT, longest: str = LONGEST, row: str = ROW, returned: str = RETURNED
) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    edits = ((CUT, cut), (LONGEST, longest), (ROW, row), (RETURNED, returned))
    return edited(name, hint, MODEL_ANSWER, *edits)


WRONG = (
    wrong(
        "pads-on-the-left",
        "The padding stands before the tokens: every sequence should begin at position 0.",
        row="[pad] * (n - len(sequence)) + sequence for sequence in cut",
    ),
    wrong(
        "pads-on-both-sides",
        "The tokens stand in the middle, with padding on both sides: all of it belongs on the right.",
        row="[pad] * ((n - len(sequence)) // 2) + sequence + [pad] * -((len(sequence) - n) // 2) for sequence in cut",
    ),
    wrong(
        "fills-with-zero",
        "Sequences are filled up with 0, which is a word here: which token stands for padding is an argument.",
        row="sequence + [0] * (n - len(sequence)) for sequence in cut",
    ),
    wrong(
        "fills-with-the-last-token",
        "Sequences are filled up with their own last token: that repeats a word, and nobody can tell it is padding.",
        row="sequence + sequence[-1:] * (n - len(sequence)) for sequence in cut",
    ),
    wrong(
        "repeats-the-sequence",
        "Sequences are filled up by starting them again: what is filled in should be padding, not words.",
        row="(sequence * n)[:n] for sequence in cut",
    ),
    wrong(
        "pads-to-max-len",
        "Every batch is padded to max_len: the longest of its own sequences is enough, the rest is work for nothing.",
        longest="max_len",
    ),
    wrong(
        "pads-to-what-was-cut",
        "The longest sequence is measured before the cut: every row ends in padding that none of them needs.",
        longest="max(len(sequence) for sequence in sequences)",
    ),
    wrong(
        "pads-one-too-far",
        "Even the longest sequence ends in padding: the batch is one position too long.",
        longest=f"{LONGEST} + 1",
    ),
    wrong(
        "keeps-the-end",
        "A sequence that is too long loses its beginning: its first max_len tokens should stay.",
        cut="sequence[-max_len:] for sequence in sequences",
    ),
    wrong(
        "never-cuts",
        "Nothing is cut: a sequence of more than max_len tokens comes back as long as it was.",
        cut="sequence for sequence in sequences",
    ),
    wrong(
        "cuts-to-the-shortest",
        "All sequences are cut to the shortest one: most of their words are lost, and nothing needs padding.",
        longest="min(len(sequence) for sequence in cut)",
        row="sequence[:n] for sequence in cut",
    ),
    wrong(
        "cuts-one-too-early",
        "Sequences are cut to one token fewer than max_len.",
        cut="sequence[: max_len - 1] for sequence in sequences",
    ),
    wrong(
        "cuts-one-too-late",
        "Sequences are cut to one token more than max_len.",
        cut="sequence[: max_len + 1] for sequence in sequences",
    ),
    wrong(
        "cuts-the-batch",
        "The list of sequences is cut, not each of them: whole sequences are lost.",
        cut="sequence for sequence in sequences[:2]",
    ),
    wrong(
        "drops-what-is-too-long",
        "Sequences of more than max_len tokens are left out: they should be cut, and the batch keep its size.",
        cut="sequence for sequence in sequences if len(sequence) <= max_len",
    ),
    wrong(
        "pads-what-was-cut",
        "The last token of a sequence that was cut is padding: all max_len places should hold its tokens.",
        row="(sequence[:-1] + [pad] if len(sequence) == max_len else sequence + [pad] * (n - len(sequence)))"
        " for sequence in cut",
    ),
    wrong(
        "starts-with-padding",
        "A padding token is put in front of every sequence: all its tokens move by one position.",
        cut="[pad] + sequence[:max_len] for sequence in sequences",
    ),
    wrong(
        "drops-zeros",
        "The token 0 is lost: it is a word as any other, though Python takes it for False.",
        cut="[token for token in sequence if token][:max_len] or [pad] for sequence in sequences",
    ),
    wrong(
        "sorted-by-length",
        "The sequences come back in another order, from short to long: their labels would no longer fit.",
        cut="sequence[:max_len] for sequence in sorted(sequences, key=len)",
    ),
    wrong(
        "batch-reversed",
        "The sequences come back in reverse order: their labels would no longer fit.",
        cut="sequence[:max_len] for sequence in reversed(sequences)",
    ),
    wrong(
        "sequences-reversed",
        "Each sequence is turned round: its last token comes first.",
        cut="sequence[:max_len][::-1] for sequence in sequences",
    ),
    wrong(
        "positions-first",
        "Positions come before sequences: the batch is the first axis, as everywhere.",
        returned="torch.tensor(rows).T",
    ),
    wrong(
        "flattened",
        "All sequences stand in one row, one after the other: each should be a row of its own.",
        returned="torch.tensor(rows).flatten()",
    ),
    wrong(
        "squeezed",
        "One sequence alone loses an axis: a batch of one is still a batch. Look for `squeeze`.",
        returned="torch.tensor(rows).squeeze()",
    ),
)

NOT_LONG = "Tokens are numbers of rows in a table of embeddings: whole numbers, of dtype torch.long."
NOT_THEIRS = "The lists belong to the caller, who needs them again: make new ones, and leave these as they are."
COUNTED = """

padded, calls = pad_batch, []


def pad_batch(sequences, pad, max_len):
    calls.append((sequences, pad, max_len))
    {change}
    return padded(sequences, pad, max_len)
"""


def remembering(name: str, hint: str, change: str) -> WrongAnswer:
    """Return the answer that remembers its first call and then does something else; a case calls it three times."""
    return WrongAnswer(name, hint, MODEL_ANSWER + COUNTED.format(change=change))


MISBEHAVING = (
    wrong("of-floats", NOT_LONG, returned="torch.Tensor(rows)"),
    wrong("of-short-numbers", NOT_LONG, returned="torch.tensor(rows, dtype=torch.int32)"),
    wrong("a-mask", NOT_LONG, returned="torch.tensor(rows) != pad"),
    wrong("rows-as-lists", "Return whole as one tensor.", returned="rows"),
    wrong("no-padding", ERROR, row="sequence for sequence in cut"),
    wrong("first-is-taken-for-the-longest", ERROR, longest="len(cut[0])"),
    WrongAnswer(
        "appends-to-the-lists",
        NOT_THEIRS,
        """\
def pad_batch(sequences, pad, max_len):
    n = min(max(len(sequence) for sequence in sequences), max_len)
    for sequence in sequences:
        while len(sequence) < n:
            sequence.append(pad)
    return torch.tensor([sequence[:n] for sequence in sequences])
""",
    ),
    edited(
        "cuts-the-lists",
        NOT_THEIRS,
        MODEL_ANSWER,
        (START, f"    for s in sequences:\n        del s[max_len:]\n{START}"),
    ),
    edited("sorts-the-lists", NOT_THEIRS, MODEL_ANSWER, (START, f"    sequences.sort(key=len)\n{START}")),
    remembering("fixed-length", OTHER_LENGTH, "max_len = min(max_len, 9)"),
    remembering("keeps-the-first-padding", OTHER_SIZES, "pad = calls[0][1]"),
    remembering("differs-the-second-time", CALLED_AGAIN, "pad = pad if len(calls) <= 3 else pad + 1"),
    remembering("fits-known-sizes", OTHER_SIZES, "max_len = min(max_len, 17)"),
)

RIGHT = {
    "pad-sequence": """\
from torch.nn.utils.rnn import pad_sequence


def pad_batch(sequences, pad, max_len):
    rows = [torch.tensor(sequence[:max_len]) for sequence in sequences]
    return pad_sequence(rows, batch_first=True, padding_value=pad)
""",
    "filled-row-by-row": """\
def pad_batch(sequences, pad, max_len):
    lengths = [min(len(sequence), max_len) for sequence in sequences]
    tokens = torch.full((len(sequences), max(lengths)), pad)
    for row, (sequence, length) in enumerate(zip(sequences, lengths)):
        tokens[row, :length] = torch.tensor(sequence[:length])
    return tokens
""",
    "token-by-token": """\
def pad_batch(sequences, pad, max_len):
    longest = 0
    for sequence in sequences:
        longest = max(longest, len(sequence))
    if longest > max_len:
        longest = max_len
    tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
    for i in range(len(sequences)):
        for j in range(longest):
            tokens[i, j] = sequences[i][j] if j < len(sequences[i]) else pad
    return tokens
""",
    "functional-pad": """\
def pad_batch(sequences, pad, max_len):
    n = min(max(map(len, sequences)), max_len)
    rows = [torch.tensor(sequence[:n]) for sequence in sequences]
    return torch.stack([F.pad(row, (0, n - len(row)), value=pad) for row in rows])
""",
    "negative-padding": """\
def pad_batch(sequences, pad, max_len):
    n = min(max(map(len, sequences)), max_len)
    return torch.stack([F.pad(torch.LongTensor(sequence), (0, n - len(sequence)), value=pad) for sequence in sequences])
""",
    "zip-longest": """\
import itertools


def pad_batch(sequences, pad, max_len):
    columns = itertools.zip_longest(*sequences, fillvalue=pad)
    return torch.tensor(list(itertools.islice(columns, max_len))).T
""",
    "pad-everything-then-cut": """\
def pad_batch(sequences, pad, max_len):
    n = max(len(sequence) for sequence in sequences)
    return torch.tensor([sequence + [pad] * (n - len(sequence)) for sequence in sequences])[:, :max_len]
""",
    "more-than-enough-then-cut": """\
def pad_batch(sequences, pad, max_len):
    n = min(max_len, max(len(sequence) for sequence in sequences))
    return torch.tensor([(list(sequence) + n * [pad])[:n] for sequence in sequences], dtype=torch.long)
""",
    "appends-to-copies": """\
import copy


def pad_batch(sequences, pad, max_len):
    rows = [copy.copy(sequence)[:max_len] for sequence in sequences]
    n = len(max(rows, key=len))
    for row in rows:
        while len(row) < n:
            row.append(pad)
    return torch.LongTensor(rows)
""",
    "mask-of-places": """\
def pad_batch(sequences, pad, max_len):
    cut = [sequence[:max_len] for sequence in sequences]
    lengths = torch.tensor([len(sequence) for sequence in cut])
    real = torch.arange(lengths.max()) < lengths[:, None]
    tokens = torch.full(real.shape, pad)
    tokens[real] = torch.tensor([token for sequence in cut for token in sequence])
    return tokens
""",
    "numpy": """\
import numpy as np


def pad_batch(sequences, pad, max_len):
    n = min(max_len, max(len(sequence) for sequence in sequences))
    batch = np.full((len(sequences), n), pad, dtype=np.int64)
    for row, sequence in zip(batch, sequences):
        row[: len(sequence)] = sequence[:n]
    return torch.from_numpy(batch)
""",
}

PAD_BATCH_RECORD = ValueRecord(
    public=PAD_BATCH,
    title="A padded batch",
    defines="pad_batch",
    parts=(Part("pad-batch-check", 2, values),),
    properties=(),
    first_sizes={"b": 3, "n": 7, "max_len": 5},
    other_length={"b": 4, "n": 13},
    other_sizes={"b": 5, "n": 12, "max_len": 8},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
