"""The exercise of topic 06 about teacher forcing: a decoder's inputs in training, and its label at each position."""

import random

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import ERROR, misbehaviours
from grading.judging.properties import SEQUENCES_APART, input_matters
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.engine.calling import CALLED_AGAIN, ONE_SEQUENCE, OTHER_LENGTH, OTHER_SIZES
from transformer_lm.checks.topic_06_encoder_decoder.shift_target import BOTH, CHANGED, NO_WORD, NOT_LONG, SHIFT_TARGET

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


def wrong(name: str, hint: str, **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    edits = ((LINES[line], theirs) for line, theirs in lines.items() if line != "returned")
    returned = (f"return {LINES['returned']}", f"return {lines.get('returned', LINES['returned'])}")
    return edited(name, hint, MODEL_ANSWER, *edits, returned)


COLUMNS = "torch.arange(n + 1, device=targets.device)"
WHOLE = "F.pad(longer.scatter(1, lengths, end), (1, 0), value=start)"  # (b, n + 2): start, words, end, padding

WRONG = (
    wrong(
        "not-shifted",
        "The labels are the inputs themselves: a decoder that copies what it reads would be right everywhere.",
        returned="inputs, inputs",
    ),
    wrong(
        "nothing-before-the-first-word",
        "The decoder reads the very word that it should say: the inputs are not shifted.",
        inputs="F.pad(targets, (0, 1), value=pad)",
    ),
    wrong(
        "no-end",
        "No label says that the sentence is over: the decoder would never learn to stop.",
        labels="longer",
    ),
    wrong(
        "end-of-the-row",
        "END stands at the end of every row, after the padding: a sentence is over right after its last word.",
        longer="F.pad(targets, (0, 1), value=end)",
        labels="longer",
    ),
    wrong(
        "end-twice",
        "END stands after the last word and again at the end of the row: what follows it is padding.",
        longer="F.pad(targets, (0, 1), value=end)",
    ),
    wrong(
        "end-everywhere",
        "END fills the rest of the row: it is said once, what follows it is padding.",
        labels=f"torch.where({COLUMNS} < lengths, longer, end)",
    ),
    wrong(
        "end-for-every-padding",
        "END stands in place of all padding of the targets: it is said once, right after the last word.",
        labels="longer.masked_fill(F.pad(targets == pad, (0, 1)), end)",
    ),
    wrong(
        "end-overwrites-the-last-word",
        "END stands in place of the last word: that one is to be said, too.",
        labels="longer.scatter(1, lengths - 1, end)",
    ),
    wrong(
        "end-too-late",
        "There is padding between the last word and END.",
        labels="longer.scatter(1, (lengths + 1).clamp(max=n), end)",
    ),
    wrong(
        "end-too-late-or-never",
        "There is padding between the last word and END, and a sentence that fills its row has no END.",
        labels="F.pad(longer, (0, 1), value=pad).scatter(1, lengths + 1, end)[:, :-1]",
    ),
    wrong(
        "full-sentence-without-end",
        "A sentence that fills its row gets no END: there is a place more in the labels than in the targets.",
        labels="F.pad(longer.scatter(1, lengths, end)[:, :-1], (0, 1), value=pad)",
    ),
    wrong(
        "full-sentence-loses-a-word",
        "In a sentence that fills its row, END stands in place of a word: the labels have a place more.",
        labels="longer.scatter(1, lengths.clamp(max=n - 1), end)",
    ),
    wrong(
        "padding-looked-for-in-vain",
        "In a sentence without padding, END takes the place of the first word: nothing is found, and that counts as 0.",
        lengths="(targets == pad).int().argmax(dim=1, keepdim=True)",
    ),
    wrong(
        "start-in-labels",
        "The labels begin with START: the decoder reads it, and never has to say it.",
        labels=f"{WHOLE}[:, :-1]",
    ),
    wrong(
        "whole-sentence-as-labels",
        "The labels begin with START and have a place more than the inputs: START is read, never said.",
        labels=WHOLE,
    ),
    wrong(
        "end-in-inputs",
        "The inputs hold END, but for sentences that fill their row: it is said, never read.",
        labels="longer.scatter(1, lengths, end)\n    inputs = F.pad(labels[:, :-1], (1, 0), value=start)",
    ),
    wrong(
        "end-for-padding-in-inputs",
        "In the inputs, END stands in place of padding: it is said, never read.",
        inputs="F.pad(targets.masked_fill(targets == pad, end), (1, 0), value=start)",
    ),
    wrong(
        "whole-sentence-as-inputs",
        "The inputs hold END and have a position too many: after END there is nothing to say.",
        returned="F.pad(labels, (1, 0), value=start), labels",
    ),
    wrong(
        "whole-sentence-twice",
        "Inputs and labels are the same, START and END included: one of these is read only, the other said only.",
        labels=WHOLE,
        returned="labels, labels",
    ),
    wrong(
        "shifted-twice",
        "The inputs are shifted twice: each position should read the word right before the one that it says.",
        inputs="F.pad(targets[:, :-1], (2, 0), value=start)",
    ),
    wrong(
        "first-word-never-said",
        "The first word is missing in the labels: after START, it is what the decoder should say.",
        labels="F.pad(longer.scatter(1, lengths, end)[:, 1:], (0, 1), value=pad)",
    ),
    wrong(
        "shifted-by-two",
        "The first word is missing in the labels, and the last place of a row is cut off.",
        labels="longer.scatter(1, lengths, end)[:, 1:]",
    ),
    wrong(
        "start-overwrites-the-first-word",
        "START stands in place of the first word: all words move one place to the right.",
        inputs=f"F.pad(targets, (0, 1), value=pad).masked_fill({COLUMNS} == 0, start)",
    ),
    wrong(
        "last-word-never-read",
        "The last word is missing in the inputs: the decoder reads it before it says END.",
        inputs="F.pad(targets, (1, 0), value=start).scatter(1, lengths, pad)",
    ),
    wrong(
        "one-place-short",
        "Inputs and labels have as many places as the targets: START and END need one more.",
        inputs="F.pad(targets[:, :-1], (1, 0), value=start)",
        labels="longer.scatter(1, lengths, end)[:, :-1]",
    ),
    wrong(
        "targets-as-labels",
        "The labels are the targets: there is a place more, and END is missing.",
        labels="targets",
    ),
    wrong(
        "last-word-lost",
        "Inputs and labels have as many places as the targets: the last word is not read, and END is not said.",
        inputs="F.pad(targets[:, :-1], (1, 0), value=start)",
        labels="targets",
    ),
    wrong(
        "cut-like-a-text",
        "Inputs and labels are cut out of the targets, as of a running text: START and END are missing.",
        inputs="targets[:, :-1]",
        labels="targets[:, 1:]",
    ),
    wrong(
        "roll-wraps-around",
        "START stands at the end of the labels: rolling wraps around, and END is nowhere.",
        labels="inputs.roll(-1, dims=1)",
    ),
    wrong(
        "roll-wraps-around-beside-end",
        "START stands at the end of the labels, behind the padding: rolling wraps around.",
        labels="inputs.roll(-1, dims=1).scatter(1, lengths, end)",
    ),
    wrong(
        "last-place-comes-first",
        "The inputs begin with the last token of the labels: rolling wraps around, and START is nowhere.",
        labels="longer.scatter(1, lengths, end)\n    inputs = labels.roll(1, dims=1)",
    ),
    wrong(
        "padded-on-the-left",
        "In the inputs, padding stands before START: each sentence begins at place 0, the padding is on the right.",
        inputs="torch.stack([row.roll(n - int(k)) for row, k in zip(F.pad(targets, (1, 0), value=start), lengths)])",
    ),
    wrong(
        "start-and-end-exchanged",
        "START and END are exchanged: the decoder reads START, and says END.",
        inputs="F.pad(targets, (1, 0), value=end)",
        labels="longer.scatter(1, lengths, start)",
    ),
    wrong(
        "start-for-end",
        "START stands in place of END: the two are different tokens.",
        labels="longer.scatter(1, lengths, start)",
    ),
    wrong(
        "end-for-start",
        "The inputs begin with END: START is a token of its own.",
        inputs="F.pad(targets, (1, 0), value=end)",
    ),
    wrong(
        "padding-for-start",
        "The inputs begin with padding: START is a token of its own.",
        inputs="F.pad(targets, (1, 0), value=pad)",
    ),
    wrong(
        "zero-for-start",
        "The inputs begin with 0, which is a word here: which token stands for START is an argument.",
        inputs="F.pad(targets, (1, 0))",
    ),
    wrong(
        "usual-numbers",
        "START is taken to be 1 and END to be 2, as in many vocabularies: here they are arguments.",
        inputs="F.pad(targets, (1, 0), value=1)",
        labels="longer.scatter(1, lengths, 2)",
    ),
    wrong(
        "zero-taken-for-padding",
        "Sentences are measured by what is not 0, which is a word here: which token stands for padding is an argument.",
        lengths="(targets != 0).sum(dim=1, keepdim=True)",
    ),
    wrong(
        "filled-with-zero",
        "The labels are filled up with 0, which is a word here: which token stands for padding is an argument.",
        longer="F.pad(targets, (0, 1))",
    ),
    wrong(
        "smaller-taken-for-padding",
        "Words whose number is smaller than that of padding are not counted: compare for being the same.",
        lengths="(targets > pad).sum(dim=1, keepdim=True)",
    ),
    wrong(
        "marked-to-be-ignored",
        "Padding is replaced by -100 in the labels: which token stands for padding is an argument.",
        labels="longer.masked_fill(longer == pad, -100).scatter(1, lengths, end)",
    ),
    wrong(
        "last-word-looked-up",
        "END follows an earlier occurrence of the last word: the same word can stand in a sentence twice.",
        labels="longer.scatter(1, (longer == longer.gather(1, lengths - 1)).int().argmax(1, keepdim=True) + 1, end)",
    ),
    wrong(
        "length-of-the-first",
        "All sentences are taken to be as long as the first: each has a last word of its own.",
        lengths="(targets != pad).sum(dim=1, keepdim=True)[:1].expand(b, 1)",
    ),
    wrong(
        "exchanged",
        "Inputs and labels are handed back in the other order: first what is read, then what is said.",
        returned="labels, inputs",
    ),
    wrong(
        "first-sentence-only",
        "Only the first sentence of the batch is left: all of them are to be learned from.",
        returned="inputs[:1], labels[:1]",
    ),
    wrong(
        "flattened",
        "All sentences stand in one row, one after the other: each should be a row of its own.",
        returned="inputs.flatten(), labels.flatten()",
    ),
    wrong(
        "labels-flattened",
        "The labels of all sentences stand in one row: keep a row for each, as the inputs have.",
        returned="inputs, labels.flatten()",
    ),
    wrong(
        "positions-first",
        "Positions come before sentences: the batch is the first axis, as everywhere.",
        returned="inputs.T, labels.T",
    ),
)

REMEMBERED = """

first, right_answer = [], shift_target


def shift_target(targets, start, end, pad):
    first.append((start, end, pad))
    {change}
    return right_answer(targets, start, end, pad)
"""


def remembering(name: str, hint: str, change: str) -> WrongAnswer:
    """Return the answer that remembers the first tokens it was given, and then does something else."""
    return WrongAnswer(name, hint, MODEL_ANSWER + REMEMBERED.format(change=change))


BEHAVIOURS = misbehaviours(MODEL_ANSWER, "shift_target", longer=(4, 13))
TRIMMED = "inputs[:, : lengths.max() + 1], labels[:, : lengths.max() + 1]"

MISBEHAVING = (
    *(each for each in BEHAVIOURS if each.name not in ("changes-its-input", "cuts-the-gradient")),  # whole numbers
    wrong("labels-alone", BOTH, returned="labels"),
    wrong("all-three", BOTH, returned="inputs, labels, lengths"),
    wrong("stacked", BOTH, returned="torch.stack((inputs, labels))"),
    wrong("list-of-pairs", BOTH, returned="list(zip(inputs, labels))"),
    edited("nothing-returned", BOTH, MODEL_ANSWER, ("    return inputs, labels\n", "")),
    wrong("labels-of-floats", NOT_LONG, returned="inputs, labels.float()"),
    wrong("floats-to-write-into", NOT_LONG, returned="torch.zeros(b, n + 1).copy_(inputs), labels"),
    wrong("of-short-numbers", NOT_LONG, returned="inputs.int(), labels.int()"),
    wrong("rows-as-lists", "Return labels as one tensor.", returned="inputs, labels.tolist()"),
    edited(
        "end-written-into-targets",
        CHANGED,
        MODEL_ANSWER,
        ("    return", "    targets.masked_fill_(targets == pad, end)\n    return"),
    ),
    edited(
        "words-moved-in-place",
        CHANGED,
        MODEL_ANSWER,
        ("    return", "    targets[:, 1:] = targets[:, :-1].clone()\n    return"),
    ),
    wrong("cut-after-the-longest", ONE_SEQUENCE, returned=TRIMMED),
    wrong("fixed-length", OTHER_LENGTH, inputs="F.pad(targets[:, :8], (1, 0), value=start)"),
    remembering("keeps-the-first-end", OTHER_SIZES, "end = first[0][1]"),
    remembering("keeps-the-first-padding", OTHER_SIZES, "pad = first[0][2]"),
    remembering("another-start-the-second-time", CALLED_AGAIN, "start = start if len(first) == 1 else end"),
    wrong("words-and-tokens-mixed", ERROR, inputs="torch.cat([start, targets], dim=1)"),
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
    title="What the decoder reads, and what it says",
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
