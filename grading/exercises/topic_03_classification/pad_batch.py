"""The exercise of topic 03 about padding sequences of different lengths into one batch."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
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
    name: str, cut: str = CUT, longest: str = LONGEST, row: str = ROW, returned: str = RETURNED, hint: str = ""
) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    edits = ((CUT, cut), (LONGEST, longest), (ROW, row), (RETURNED, returned))
    return edited(name, MODEL_ANSWER, *edits, hint=hint)


WRONG = (
    wrong("pads-on-the-left", row="[pad] * (n - len(sequence)) + sequence for sequence in cut"),
    wrong(
        "pads-on-both-sides",
        row="[pad] * ((n - len(sequence)) // 2) + sequence + [pad] * -((len(sequence) - n) // 2) for sequence in cut",
    ),
    wrong("fills-with-zero", row="sequence + [0] * (n - len(sequence)) for sequence in cut"),
    wrong("fills-with-the-last-token", row="sequence + sequence[-1:] * (n - len(sequence)) for sequence in cut"),
    wrong("repeats-the-sequence", row="(sequence * n)[:n] for sequence in cut"),
    wrong("pads-to-max-len", longest="max_len"),
    wrong("pads-to-what-was-cut", longest="max(len(sequence) for sequence in sequences)"),
    wrong("pads-one-too-far", longest=f"{LONGEST} + 1"),
    wrong("keeps-the-end", cut="sequence[-max_len:] for sequence in sequences"),
    wrong("never-cuts", cut="sequence for sequence in sequences"),
    wrong(
        "cuts-to-the-shortest", longest="min(len(sequence) for sequence in cut)", row="sequence[:n] for sequence in cut"
    ),
    wrong("cuts-one-too-early", cut="sequence[: max_len - 1] for sequence in sequences"),
    wrong("cuts-one-too-late", cut="sequence[: max_len + 1] for sequence in sequences"),
    wrong("cuts-the-batch", cut="sequence for sequence in sequences[:2]"),
    wrong("drops-what-is-too-long", cut="sequence for sequence in sequences if len(sequence) <= max_len"),
    wrong(
        "pads-what-was-cut",
        row="(sequence[:-1] + [pad] if len(sequence) == max_len else sequence + [pad] * (n - len(sequence)))"
        " for sequence in cut",
    ),
    wrong("starts-with-padding", cut="[pad] + sequence[:max_len] for sequence in sequences"),
    wrong("drops-zeros", cut="[token for token in sequence if token][:max_len] or [pad] for sequence in sequences"),
    wrong("sorted-by-length", cut="sequence[:max_len] for sequence in sorted(sequences, key=len)"),
    wrong("batch-reversed", cut="sequence[:max_len] for sequence in reversed(sequences)"),
    wrong("sequences-reversed", cut="sequence[:max_len][::-1] for sequence in sequences"),
    wrong("positions-first", returned="torch.tensor(rows).T"),
    wrong("flattened", returned="torch.tensor(rows).flatten()"),
    wrong("squeezed", returned="torch.tensor(rows).squeeze()"),
)

COUNTED = """

padded, calls = pad_batch, []


def pad_batch(sequences, pad, max_len):
    calls.append((sequences, pad, max_len))
    {change}
    return padded(sequences, pad, max_len)
"""


def remembering(name: str, change: str, hint: str = "") -> WrongAnswer:
    """Return the answer that remembers its first call and then does something else; a case calls it three times."""
    return WrongAnswer(name, MODEL_ANSWER + COUNTED.format(change=change), hint=hint)


MISBEHAVING = (
    wrong("of-floats", returned="torch.Tensor(rows)", hint="tokens-not-long"),
    wrong("of-short-numbers", returned="torch.tensor(rows, dtype=torch.int32)", hint="tokens-not-long"),
    wrong("a-mask", returned="torch.tensor(rows) != pad", hint="tokens-not-long"),
    wrong("rows-as-lists", returned="rows", hint="not-a-tensor"),
    wrong("no-padding", row="sequence for sequence in cut", hint="raises"),
    wrong("first-is-taken-for-the-longest", longest="len(cut[0])", hint="raises"),
    WrongAnswer(
        "appends-to-the-lists",
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
        MODEL_ANSWER,
        (START, f"    for s in sequences:\n        del s[max_len:]\n{START}"),
        hint="appends-to-the-lists",
    ),
    edited(
        "sorts-the-lists", MODEL_ANSWER, (START, f"    sequences.sort(key=len)\n{START}"), hint="appends-to-the-lists"
    ),
    remembering("fixed-length", "max_len = min(max_len, 9)", hint="other-length"),
    remembering("keeps-the-first-padding", "pad = calls[0][1]", hint="other-sizes"),
    remembering("differs-the-second-time", "pad = pad if len(calls) <= 3 else pad + 1", hint="called-again"),
    remembering("fits-known-sizes", "max_len = min(max_len, 17)", hint="other-sizes"),
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
