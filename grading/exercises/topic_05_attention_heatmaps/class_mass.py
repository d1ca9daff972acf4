"""The exercise of topic 05 about the attention weight between classes of characters, from queries to keys."""

import random

import numpy as np
from numpy.typing import NDArray

from grading.exercises.topic_05_attention_heatmaps.offset_profile import (
    FIRST,
    LONGER,
    OTHER,
    aggregate_misbehaviours,
    causal_weights,
)
from grading.judging.judge import values
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, edited
from transformer_lm.checks.topic_05_attention_heatmaps.aggregates import ALONE
from transformer_lm.checks.topic_05_attention_heatmaps.class_mass import CLASS_MASS


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return weights and classes; every class occurs in the batch, but the last one not in the last sequence."""
    b, h, n, c = (sizes[name] for name in ("b", "h", "n", "c"))
    drawn = [int(rng.random() * c) for _ in range((b - 1) * n)]
    drawn[:c] = range(c)
    mixed = sorted(drawn, key=lambda each: rng.random())
    last = [int(rng.random() * (c - 1)) for _ in range(n)]
    return {
        "weights": causal_weights(rng, b, h, n),
        "classes": np.array([*mixed, *last]).reshape(b, n),
        "num_classes": np.array(c),
    }


def reference(case: Arrays) -> Arrays:
    """Return the mass in the batch, and that of the last head in the last sequence, where a class is missing."""
    weights, classes, c = case["weights"], case["classes"], int(case["num_classes"])
    return {"mass": _mass(weights, classes, c), f"mass{ALONE}": _mass(weights[-1:, -1:], classes[-1:], c)}


def _mass(weights: NDArray[np.float64], classes: NDArray[np.int64], c: int) -> NDArray[np.float64]:
    """Return the weight from queries of each class to keys of each class, (h, c, c), class by class."""
    mass = np.zeros((weights.shape[1], c, c))
    by_query = weights.transpose(0, 2, 3, 1)  # (b, i, j, h)
    for row in range(c):
        rows = by_query[classes == row]  # (queries, j, h)
        keys = classes[(classes == row).nonzero()[0]]  # (queries, j): the classes in the sequence of each query
        for column in range(c):
            given = np.where((keys == column)[:, :, None], rows, 0).sum(axis=(0, 1))
            mass[:, row, column] = given / max(len(rows), 1)
    return mass


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
def class_mass(weights, classes, num_classes):
    member = F.one_hot(classes, num_classes).to(weights.dtype)  # (b, n, c)
    queries, keys = member, member
    to_class = torch.einsum("bhij,bjs->bhis", weights, keys)  # (b, h, i, c)
    total = torch.einsum("bir,bhis->hrs", queries, to_class)  # (h, c, c)
    count = queries.sum(dim=(0, 1))[:, None]  # (c, 1)
    return total / count.clamp(min=1)
"""

LINES = {
    "member": "F.one_hot(classes, num_classes).to(weights.dtype)",
    "given": "queries, keys = member, member",
    "to_class": 'torch.einsum("bhij,bjs->bhis", weights, keys)',
    "total": 'torch.einsum("bir,bhis->hrs", queries, to_class)',
    "count": "queries.sum(dim=(0, 1))[:, None]",
    "returned": "total / count.clamp(min=1)",
}


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    return edited(name, MODEL_ANSWER, *((LINES[line], theirs) for line, theirs in lines.items()), hint=hint)


BY_SEQUENCE = 'torch.einsum("bir,bhis->bhrs", queries, to_class) / queries.sum(dim=1).clamp(min=1)[:, None, :, None]'

MEAN_MISTAKES = (
    wrong("summed", returned="total"),
    wrong("divided-by-all-queries", returned="total / queries.sum()"),
    wrong("divided-by-positions", returned="total / weights.shape[-1]"),
    wrong("divided-by-sequences", returned="total / len(weights)"),
    wrong("divided-by-keys", returned="total / count.clamp(min=1).T"),
    wrong("mean-weight-of-a-pair", returned="total / (count * count.T).clamp(min=1)"),
    wrong(
        "divided-by-pairs",
        returned='total / torch.einsum("bir,ij,bjs->rs", queries, torch.ones_like(weights[0, 0]).tril(), keys)'
        ".clamp(min=1)",
    ),
    wrong("mean-of-means", total=BY_SEQUENCE, returned="total.mean(dim=0)"),
    wrong(
        "mean-of-means-of-sequences-with-the-class",
        total=BY_SEQUENCE,
        returned="total.sum(dim=0) / (queries.sum(dim=1) > 0).sum(dim=0).clamp(min=1)[:, None]",
    ),
    wrong("columns-made-to-sum-to-one", returned="total / total.sum(dim=1, keepdim=True).clamp(min=1e-9)"),
    wrong("nan-for-a-missing-class", returned="total / count"),
    wrong("ones-for-a-missing-class", returned="torch.where(count > 0, total / count.clamp(min=1), 1 / num_classes)"),
    wrong("largest-key-only", to_class="(weights[..., None] * keys[:, None, None]).amax(dim=3)"),
    wrong(
        "above-uniform",
        to_class='torch.einsum("bhij,bjs->bhis", weights - torch.ones_like(weights).tril()'
        " / torch.arange(1, weights.shape[-1] + 1, device=weights.device)[:, None], keys)",
    ),
)

AXIS_MISTAKES = (
    wrong("transposed", returned="(total / count.clamp(min=1)).mT"),
    wrong("queries-and-keys-swapped", to_class='torch.einsum("bhji,bjs->bhis", weights, keys)'),
    wrong(
        "softmax-twice",
        to_class='torch.einsum("bhij,bjs->bhis", weights.softmax(dim=-1), keys)',
        hint="softmax-of-weights-past-the-diagonal",
    ),
    wrong("itself-left-out", to_class='torch.einsum("bhij,bjs->bhis", weights.tril(-1), keys)'),
    wrong("next-class", given="queries, keys = member.roll(-1, dims=1), member"),
    wrong("class-of-the-key-before", given="queries, keys = member, member.roll(1, dims=1)"),
    wrong("class-zero-left-out", member="F.one_hot(classes, num_classes).to(weights.dtype) * (classes > 0)[..., None]"),
    wrong(
        "first-query-left-out",
        given="queries, keys = member * (torch.arange(classes.shape[1], device=classes.device) > 0)[:, None], member",
    ),
    wrong("as-many-classes-as-occur", member="F.one_hot(classes).to(weights.dtype)"),
    wrong(
        "classes-of-the-first-sequence",
        member="F.one_hot(classes[:1], num_classes).to(weights.dtype).expand(len(classes), -1, -1)",
    ),
    wrong("first-sequence-only", given="weights, queries, keys = weights[:1], member[:1], member[:1]"),
    wrong(
        "maps-averaged-first",
        to_class='torch.einsum("bhij,bjs->bhis", weights.mean(dim=0, keepdim=True).expand_as(weights), keys)',
    ),
    wrong(
        "batch-viewed-as-heads",
        to_class='torch.einsum("bhij,bjs->bhis", weights.reshape(*weights.shape[1::-1], *weights.shape[2:])'
        ".transpose(0, 1), keys)",
    ),
    wrong("heads-averaged", returned="(total / count.clamp(min=1)).mean(dim=0)"),
    wrong("heads-last", returned="(total / count.clamp(min=1)).permute(1, 2, 0)"),
    wrong("sequences-kept", total=BY_SEQUENCE, returned="total"),
    wrong("keys-only", returned="total.sum(dim=1) / queries.sum()"),
)

MISBEHAVING = (
    *aggregate_misbehaviours(MODEL_ANSWER, "class_mass"),
    wrong(
        "classes-changed",
        member="F.one_hot(classes, num_classes).to(weights.dtype)\n    classes += 1",
        hint="input-changed",
    ),
    wrong("at-most-seven-classes", returned="total[:, :7, :7] / count.clamp(min=1)[:7]", hint="other-sizes"),
    wrong("classes-as-bools", member="F.one_hot(classes.bool(), num_classes).to(weights.dtype)", hint="raises"),
    wrong("a-table-in-python", returned="(total / count.clamp(min=1)).tolist()", hint="not-a-tensor"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {LINES['returned']}", LINES["returned"]), hint="not-a-tensor"),
)

RIGHT = {
    "one-einsum": """\
def class_mass(weights, classes, num_classes):
    member = torch.eye(num_classes, device=weights.device)[classes]  # (b, n, c)
    total = torch.einsum("bir,bhij,bjs->hrs", member, weights, member)
    return total / member.sum(dim=(0, 1)).clamp(min=1).unsqueeze(1)
""",
    "matrix-products": """\
def class_mass(weights, classes, num_classes):
    member = F.one_hot(classes, num_classes).float()[:, None].to(weights.dtype)  # (b, 1, n, c)
    total = (member.mT @ weights @ member).sum(dim=0)  # (h, c, c)
    count = member.sum(dim=(0, 1, 2))
    return total / torch.where(count == 0, 1, count)[:, None]
""",
    "class-by-class": """\
def class_mass(weights, classes, num_classes):
    h = weights.shape[1]
    mass = torch.zeros(h, num_classes, num_classes, device=weights.device)
    for r in range(num_classes):
        is_query = classes == r  # (b, n)
        if not is_query.any():
            continue
        for s in range(num_classes):
            given = (weights * (classes == s)[:, None, None, :]).sum(dim=-1)  # (b, h, i)
            mass[:, r, s] = given.transpose(1, 2)[is_query].mean(dim=0)
    return mass
""",
    "query-by-query": """\
def class_mass(weights, classes, num_classes):
    b, h, n, _ = weights.shape
    mass = torch.zeros(h, num_classes, num_classes, device=weights.device)
    counts = [0] * num_classes
    for sequence in range(b):
        for i in range(n):
            r = int(classes[sequence, i])
            counts[r] += 1
            for j in range(i + 1):
                mass[:, r, int(classes[sequence, j])] += weights[sequence, :, i, j]
    for r, count in enumerate(counts):
        if count:
            mass[:, r] /= count
    return mass
""",
    "index-add": """\
def class_mass(weights, classes, num_classes):
    b, h, n, _ = weights.shape
    pairs = classes[:, :, None] * num_classes + classes[:, None, :]  # (b, i, j)
    total = torch.zeros(h, num_classes**2, dtype=weights.dtype, device=weights.device)
    total.index_add_(1, pairs.flatten(), weights.transpose(0, 1).flatten(1))
    counts = torch.bincount(classes.flatten(), minlength=num_classes).clamp(min=1)
    return total.view(h, num_classes, num_classes) / counts[:, None]
""",
    "scatter-add": """\
def class_mass(weights, classes, num_classes):
    b, h, n, _ = weights.shape
    to_class = weights.new_zeros(b, h, n, num_classes)
    to_class.scatter_add_(3, classes[:, None, None, :].expand(b, h, n, n), weights)
    rows = to_class.permute(1, 0, 2, 3).reshape(h, b * n, num_classes)
    total = weights.new_zeros(h, num_classes, num_classes).index_add(1, classes.reshape(-1), rows)
    count = torch.stack([(classes == r).sum() for r in range(num_classes)])
    return total / count.clamp(min=1).reshape(-1, 1)
""",
    "rows-made-to-sum-to-one": """\
def class_mass(weights, classes, num_classes):
    member = (classes[..., None] == torch.arange(num_classes, device=classes.device)).to(weights.dtype)
    total = torch.einsum("bir,bhij,bjs->hrs", member, weights, member)
    return total / total.sum(dim=-1, keepdim=True).clamp(min=1e-12)  # the rows of the weights sum to 1
""",
    "nan-to-num": """\
@torch.no_grad()
def class_mass(weights, classes, num_classes):
    member = F.one_hot(classes, num_classes).to(weights)
    to_class = weights @ member[:, None]  # (b, h, i, s)
    total = (member.transpose(1, 2)[:, None] @ to_class).sum(0)
    return (total / member.sum(dim=1).sum(dim=0)[:, None]).nan_to_num(0.0)
""",
    "selected-rows": """\
def class_mass(weights, classes, num_classes):
    rows = weights.transpose(1, 2)  # (b, i, h, j)
    tables = []
    for r in range(num_classes):
        sequence, query = (classes == r).nonzero(as_tuple=True)
        given, keys = rows[sequence, query], classes[sequence]  # (queries, h, j), (queries, j)
        sums = [(given * (keys == s)[:, None]).sum(dim=(0, 2)) for s in range(num_classes)]
        tables.append(torch.stack(sums, dim=1) / max(len(given), 1))  # (h, c)
    return torch.stack(tables, dim=1)
""",
    "weighted-by-sequence": """\
def class_mass(weights, classes, num_classes):
    total, count = 0, 0
    for maps, own in zip(weights, classes):
        member = F.one_hot(own, num_classes).to(maps.dtype)  # (n, c)
        total = total + member.T @ maps @ member
        count = count + member.sum(dim=0)
    return total / count.clamp_min(1).view(-1, 1)
""",
    "guarded": """\
def class_mass(weights, classes, num_classes):
    member = F.one_hot(classes, num_classes).to(weights.dtype)
    total = torch.einsum("bir,bhij,bjs->hrs", member, weights, member)
    return total / (member.sum(dim=(0, 1)).unsqueeze(-1) + 1e-7)
""",
    "numpy": """\
import numpy as np


def class_mass(weights, classes, num_classes):
    array, own = weights.cpu().numpy(), classes.cpu().numpy()
    member = np.eye(num_classes, dtype=array.dtype)[own]
    total = np.einsum("bir,bhij,bjs->hrs", member, array, member, optimize=True)
    return torch.from_numpy(total / np.maximum(member.sum(axis=(0, 1)), 1)[:, None]).to(weights.device)
""",
}

CLASS_MASS_RECORD = ValueRecord(
    public=CLASS_MASS,
    title="Attention weight between classes of characters",
    defines="class_mass",
    parts=(Part("class-mass-check", 4, values),),
    properties=(),
    first_sizes=FIRST | {"c": 6},
    other_length=LONGER,
    other_sizes=OTHER | {"c": 8},
    ones=("n", "c"),
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=(*MEAN_MISTAKES, *AXIS_MISTAKES),
    misbehaving=MISBEHAVING,
    right=RIGHT,
)
