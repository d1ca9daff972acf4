"""The exercise of topic 06 about teacher forcing: a decoder's inputs in training, and its label at each position."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import misbehaviours
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.topic_06_encoder_decoder.shift_target import NO_WORD, SHIFT_TARGET

LARGEST = 800  # enough tokens for the largest batch
STEP = 7  # divides the ids of START, END and padding, and of no word but 0


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return sentences of different lengths, and tokens for START, END and padding.

    The first sentence has at least three words and does not fill its row; another does. Of three or more sentences, one
    has a single word. The ids that often mean START, END and padding are words here: 0 ends the first sentence and
    begins the full one, followed by 1, 2 and 3. The last word of the full sentence occurs in it twice. All other words
    occur once.
    """
    b, n = sizes["b"], sizes["n"]
    lengths = [3 + int(rng.random() * (n - 4)), 1, *(2 + int(rng.random() * (n - 2)) for _ in range(b - 3))][: b - 1]
    full = 1 + int(rng.random() * (b - 1))
    lengths.insert(full, n)
    words = sorted((token for token in range(4, LARGEST) if token % STEP), key=lambda token: rng.random())
    targets = np.full((b, n), NO_WORD)
    for row, length in zip(targets, lengths, strict=True):
        row[:length] = [words.pop() for _ in range(length)]
    targets[0, lengths[0] - 1] = targets[full, 0] = 0
    targets[full, 1:4] = sorted((1, 2, 3), key=lambda token: rng.random())
    targets[full, -1] = targets[full, -3]
    special = sorted(range(STEP, LARGEST // 2, STEP), key=lambda token: rng.random())
    return {"targets": targets} | {name: np.array(special.pop()) for name in ("start", "end", "pad")}


def reference(case: Arrays) -> Arrays:
    """Return inputs and labels, sentence by sentence."""
    start, end, pad = (int(case[name]) for name in ("start", "end", "pad"))
    b, n = case["targets"].shape
    inputs, labels = np.full((b, n + 1), float(pad)), np.full((b, n + 1), float(pad))
    for sentence in range(b):
        words = [word for word in case["targets"][sentence].tolist() if word >= 0]
        inputs[sentence, : len(words) + 1] = [start, *words]
        labels[sentence, : len(words) + 1] = [*words, end]
    return {"inputs": inputs, "labels": labels}


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def shift_target(targets, start, end, pad):
    b, n = targets.shape
    lengths = (targets != pad).sum(dim=1, keepdim=True)  # (b, 1)
    inputs = F.pad(targets, (1, 0), value=start)  # (b, n + 1)
    longer = F.pad(targets, (0, 1), value=pad)  # (b, n + 1)
    labels = longer.scatter(1, lengths, end)
    return inputs, labels
"""

LINES = {
    "lengths": "(targets != pad).sum(dim=1, keepdim=True)",
    "inputs": "F.pad(targets, (1, 0), value=start)",
    "longer": "F.pad(targets, (0, 1), value=pad)",
    "labels": "longer.scatter(1, lengths, end)",
    "returned": "inputs, labels",
}


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    edits = ((LINES[line], theirs) for line, theirs in lines.items() if line != "returned")
    returned = (f"return {LINES['returned']}", f"return {lines.get('returned', LINES['returned'])}")
    return edited(name, MODEL_ANSWER, *edits, returned, hint=hint)


COLUMNS = "torch.arange(n + 1, device=targets.device)"
WHOLE = "F.pad(longer.scatter(1, lengths, end), (1, 0), value=start)"  # (b, n + 2): start, words, end, padding

WRONG = (
    wrong("not-shifted", returned="inputs, inputs"),
    wrong("nothing-before-the-first-word", inputs="F.pad(targets, (0, 1), value=pad)"),
    wrong("no-end", labels="longer"),
    wrong("end-of-the-row", longer="F.pad(targets, (0, 1), value=end)", labels="longer"),
    wrong("end-twice", longer="F.pad(targets, (0, 1), value=end)"),
    wrong("end-everywhere", labels=f"torch.where({COLUMNS} < lengths, longer, end)"),
    wrong("end-for-every-padding", labels="longer.masked_fill(F.pad(targets == pad, (0, 1)), end)"),
    wrong("end-overwrites-the-last-word", labels="longer.scatter(1, lengths - 1, end)"),
    wrong("end-too-late", labels="longer.scatter(1, (lengths + 1).clamp(max=n), end)"),
    wrong("end-too-late-or-never", labels="F.pad(longer, (0, 1), value=pad).scatter(1, lengths + 1, end)[:, :-1]"),
    wrong("full-sentence-without-end", labels="F.pad(longer.scatter(1, lengths, end)[:, :-1], (0, 1), value=pad)"),
    wrong("full-sentence-loses-a-word", labels="longer.scatter(1, lengths.clamp(max=n - 1), end)"),
    wrong("padding-looked-for-in-vain", lengths="(targets == pad).int().argmax(dim=1, keepdim=True)"),
    wrong("start-in-labels", labels=f"{WHOLE}[:, :-1]"),
    wrong("whole-sentence-as-labels", labels=WHOLE),
    wrong(
        "end-in-inputs",
        labels="longer.scatter(1, lengths, end)\n    inputs = F.pad(labels[:, :-1], (1, 0), value=start)",
    ),
    wrong("end-for-padding-in-inputs", inputs="F.pad(targets.masked_fill(targets == pad, end), (1, 0), value=start)"),
    wrong("whole-sentence-as-inputs", returned="F.pad(labels, (1, 0), value=start), labels"),
    wrong("whole-sentence-twice", labels=WHOLE, returned="labels, labels"),
    wrong("shifted-twice", inputs="F.pad(targets[:, :-1], (2, 0), value=start)"),
    wrong("first-word-never-said", labels="F.pad(longer.scatter(1, lengths, end)[:, 1:], (0, 1), value=pad)"),
    wrong("shifted-by-two", labels="longer.scatter(1, lengths, end)[:, 1:]"),
    wrong(
        "start-overwrites-the-first-word",
        inputs=f"F.pad(targets, (0, 1), value=pad).masked_fill({COLUMNS} == 0, start)",
    ),
    wrong("last-word-never-read", inputs="F.pad(targets, (1, 0), value=start).scatter(1, lengths, pad)"),
    wrong(
        "one-place-short",
        inputs="F.pad(targets[:, :-1], (1, 0), value=start)",
        labels="longer.scatter(1, lengths, end)[:, :-1]",
    ),
    wrong("targets-as-labels", labels="targets"),
    wrong("last-word-lost", inputs="F.pad(targets[:, :-1], (1, 0), value=start)", labels="targets"),
    wrong("cut-like-a-text", inputs="targets[:, :-1]", labels="targets[:, 1:]"),
    wrong("roll-wraps-around", labels="inputs.roll(-1, dims=1)"),
    wrong("roll-wraps-around-beside-end", labels="inputs.roll(-1, dims=1).scatter(1, lengths, end)"),
    wrong("last-place-comes-first", labels="longer.scatter(1, lengths, end)\n    inputs = labels.roll(1, dims=1)"),
    wrong(
        "padded-on-the-left",
        inputs="torch.stack([row.roll(n - int(k)) for row, k in zip(F.pad(targets, (1, 0), value=start), lengths)])",
    ),
    wrong(
        "start-and-end-exchanged",
        inputs="F.pad(targets, (1, 0), value=end)",
        labels="longer.scatter(1, lengths, start)",
    ),
    wrong("start-for-end", labels="longer.scatter(1, lengths, start)"),
    wrong("end-for-start", inputs="F.pad(targets, (1, 0), value=end)"),
    wrong("padding-for-start", inputs="F.pad(targets, (1, 0), value=pad)"),
    wrong("zero-for-start", inputs="F.pad(targets, (1, 0))"),
    wrong("usual-numbers", inputs="F.pad(targets, (1, 0), value=1)", labels="longer.scatter(1, lengths, 2)"),
    wrong("zero-taken-for-padding", lengths="(targets != 0).sum(dim=1, keepdim=True)"),
    wrong("filled-with-zero", longer="F.pad(targets, (0, 1))"),
    wrong("smaller-taken-for-padding", lengths="(targets > pad).sum(dim=1, keepdim=True)"),
    wrong("marked-to-be-ignored", labels="longer.masked_fill(longer == pad, -100).scatter(1, lengths, end)"),
    wrong(
        "last-word-looked-up",
        labels="longer.scatter(1, (longer == longer.gather(1, lengths - 1)).int().argmax(1, keepdim=True) + 1, end)",
    ),
    wrong("length-of-the-first", lengths="(targets != pad).sum(dim=1, keepdim=True)[:1].expand(b, 1)"),
    wrong("exchanged", returned="labels, inputs"),
    wrong("first-sentence-only", returned="inputs[:1], labels[:1]"),
    wrong("flattened", returned="inputs.flatten(), labels.flatten()"),
    wrong("labels-flattened", returned="inputs, labels.flatten()"),
    wrong("positions-first", returned="inputs.T, labels.T"),
)

REMEMBERED = """

first, right_answer = [], shift_target


def shift_target(targets, start, end, pad):
    first.append((start, end, pad))
    {change}
    return right_answer(targets, start, end, pad)
"""


def remembering(name: str, change: str, hint: str = "") -> WrongAnswer:
    """Return the answer that remembers the first tokens it was given, and then does something else."""
    return WrongAnswer(name, MODEL_ANSWER + REMEMBERED.format(change=change), hint=hint)


BEHAVIOURS = misbehaviours(MODEL_ANSWER, "shift_target", longer=(4, 13))
TRIMMED = "inputs[:, : lengths.max() + 1], labels[:, : lengths.max() + 1]"

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name not in ("changes-its-input", "cuts-the-gradient")),  # whole numbers
    wrong("labels-alone", returned="labels", hint="not-two-values"),
    wrong("all-three", returned="inputs, labels, lengths", hint="not-two-values"),
    wrong("stacked", returned="torch.stack((inputs, labels))", hint="not-two-values"),
    wrong("list-of-pairs", returned="list(zip(inputs, labels))", hint="not-two-values"),
    edited("nothing-returned", MODEL_ANSWER, ("    return inputs, labels\n", ""), hint="not-two-values"),
    wrong("labels-of-floats", returned="inputs, labels.float()", hint="labels-not-long"),
    wrong("floats-to-write-into", returned="torch.zeros(b, n + 1).copy_(inputs), labels", hint="labels-not-long"),
    wrong("of-short-numbers", returned="inputs.int(), labels.int()", hint="labels-not-long"),
    wrong("rows-as-lists", returned="inputs, labels.tolist()", hint="not-a-tensor"),
    edited(
        "end-written-into-targets",
        MODEL_ANSWER,
        ("    return", "    targets.masked_fill_(targets == pad, end)\n    return"),
    ),
    edited(
        "words-moved-in-place",
        MODEL_ANSWER,
        ("    return", "    targets[:, 1:] = targets[:, :-1].clone()\n    return"),
        hint="end-written-into-targets",
    ),
    wrong("cut-after-the-longest", returned=TRIMMED, hint="one-sequence"),
    wrong("fixed-length", inputs="F.pad(targets[:, :8], (1, 0), value=start)", hint="other-length"),
    remembering("keeps-the-first-end", "end = first[0][1]", hint="other-sizes"),
    remembering("keeps-the-first-padding", "pad = first[0][2]", hint="other-sizes"),
    remembering("another-start-the-second-time", "start = start if len(first) == 1 else end", hint="called-again"),
    wrong("words-and-tokens-mixed", inputs="torch.cat([start, targets], dim=1)", hint="raises"),
)

RIGHT = {
    "row-by-row": """\
def shift_target(targets, start, end, pad):
    b, n = targets.shape
    inputs = torch.full((b, n + 1), pad, device=targets.device)
    labels = torch.full_like(inputs, pad)
    for row in range(b):
        words = targets[row][targets[row] != pad]
        inputs[row, 0] = start
        inputs[row, 1 : len(words) + 1] = words
        labels[row, : len(words)] = words
        labels[row, len(words)] = end
    return inputs, labels
""",
    "python-lists": """\
def shift_target(targets, start, end, pad):
    n = targets.shape[1]
    inputs, labels = [], []
    for row in targets.tolist():
        words = [token for token in row if token != pad]
        rest = [pad] * (n - len(words))
        inputs.append([start] + words + rest)
        labels.append(words + [end] + rest)
    return torch.tensor(inputs, device=targets.device), torch.tensor(labels, device=targets.device)
""",
    "token-by-token": """\
def shift_target(targets, start, end, pad):
    b, n = targets.shape
    inputs = torch.zeros(b, n + 1, dtype=torch.long, device=targets.device)
    labels = torch.zeros(b, n + 1, dtype=torch.long, device=targets.device)
    for i in range(b):
        over = False
        inputs[i, 0] = start
        for j in range(n):
            inputs[i, j + 1] = targets[i, j]
            if targets[i, j] == pad and not over:
                labels[i, j], over = end, True
            else:
                labels[i, j] = targets[i, j]
        labels[i, n] = pad if over else end
    return inputs, labels
""",
    "concatenated-and-indexed": """\
def shift_target(targets, start, end, pad):
    b = len(targets)
    column = targets.new_ones(b, 1)
    inputs = torch.cat([start * column, targets], dim=1)
    labels = torch.cat([targets, pad * column], dim=1)
    rows = torch.arange(b, device=targets.device)
    labels[rows, (targets != pad).sum(1)] = end
    return inputs, labels
""",
    "where-the-first-padding-is": """\
def shift_target(targets, start, end, pad):
    inputs = F.pad(targets, (1, 0), value=start)
    labels = F.pad(targets, (0, 1), value=pad)
    is_pad = labels == pad
    first = is_pad & (is_pad.cumsum(dim=1) == 1)
    return inputs, torch.where(first, end, labels)
""",
    "argmax-with-a-place-more": """\
def shift_target(targets, start, end, pad):
    b, n = targets.shape
    labels = torch.full((b, n + 1), pad, dtype=targets.dtype, device=targets.device)
    labels[:, :n] = targets
    place = (labels == pad).int().argmax(dim=1)
    labels[range(b), place] = end
    inputs = torch.full_like(labels, start)
    inputs[:, 1:] = targets
    return inputs, labels
""",
    "padding-after-a-word": """\
def shift_target(targets, start, end, pad):
    inputs = F.pad(targets, (1, 0), value=start)
    labels = F.pad(targets, (0, 1), value=pad)
    ends = (inputs != pad) & (labels == pad)  # a word was read, and none follows
    return inputs, labels.masked_fill(ends, end)
""",
    "rolled": """\
def shift_target(targets, start, end, pad):
    inputs = F.pad(targets, (0, 1), value=start).roll(1, dims=1)
    labels = inputs.roll(-1, 1)
    labels[:, -1] = pad
    last = (inputs != pad).sum(dim=-1) - 1
    labels.scatter_(1, last.unsqueeze(1), end)
    return [inputs, labels]
""",
    "end-put-in-and-taken-out": """\
def shift_target(targets, start, end, pad):
    b, n = targets.shape
    whole = torch.full((b, n + 2), pad, device=targets.device)
    whole[:, 0] = start
    whole[:, 1:-1] = targets
    whole[torch.arange(b, device=targets.device), 1 + targets.ne(pad).sum(1)] = end
    inputs = whole[:, :-1].clone()
    inputs[inputs == end] = pad
    return inputs, whole[:, 1:]
""",
    "pad-sequence": """\
from torch.nn.utils.rnn import pad_sequence


def shift_target(targets, start, end, pad):
    n = targets.shape[1]
    words = [row[row != pad].tolist() for row in targets]

    def batch(rows):
        full = [pad] * (n + 1)  # so that rows get n + 1 places
        tensors = [torch.tensor(row) for row in [*rows, full]]
        return pad_sequence(tensors, batch_first=True, padding_value=pad)[:-1].to(targets.device)

    return batch([[start] + each for each in words]), batch([each + [end] for each in words])
""",
    "sums-of-parts": """\
def shift_target(targets, start, end, pad):
    b, n = targets.shape
    lengths = (targets != pad).sum(1, keepdim=True)
    place = torch.arange(n + 1, device=targets.device).expand(b, -1)
    word = targets.gather(1, place.clamp(max=n - 1))
    before = targets.gather(1, (place - 1).clamp(min=0))
    labels = word * (place < lengths) + end * (place == lengths) + pad * (place > lengths)
    inputs = start * (place == 0) + before * ((place > 0) & (place <= lengths)) + pad * (place > lengths)
    return inputs, labels
""",
    "one-hot-end": """\
def shift_target(targets, start, end, pad):
    b, n = targets.shape
    mark = F.one_hot((targets != pad).sum(dim=1), num_classes=n + 1)
    inputs = torch.hstack([torch.full((b, 1), start, device=targets.device), targets])
    return inputs, F.pad(targets, (0, 1), value=pad) + mark * (end - pad)
""",
    "sentence-by-sentence-in-parallel": """\
def shift_target(targets, start, end, pad):
    def one(words):  # (n,)
        longer = F.pad(words, (0, 1), value=pad)
        places = torch.arange(len(longer), device=words.device)
        return F.pad(words, (1, 0), value=start), torch.where(places == (words != pad).sum(), end, longer)

    return torch.vmap(one)(targets)
""",
    "numpy": """\
import numpy as np


def shift_target(targets, start, end, pad):
    array = targets.cpu().numpy()
    inputs = np.pad(array, ((0, 0), (1, 0)), constant_values=start)
    labels = np.pad(array, ((0, 0), (0, 1)), constant_values=pad)
    labels[np.arange(len(array)), (array != pad).sum(axis=1)] = end
    return torch.from_numpy(inputs).to(targets.device), torch.from_numpy(labels).to(targets.device)
""",
}

SHIFT_TARGET_RECORD = ValueRecord(
    public=SHIFT_TARGET,
    title="The decoder's inputs and labels",
    defines="shift_target",
    parts=(Part("shift-target-check", 3, values),),
    properties=(SEQUENCES_APART, input_matters("inputs", "labels")),
    first_sizes={"b": 3, "n": 8},
    other_length={"b": 4, "n": 13},
    other_sizes={"b": 5, "n": 11},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
