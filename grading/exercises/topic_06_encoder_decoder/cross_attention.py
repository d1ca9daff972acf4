"""The exercise of topic 06 about multi-head cross-attention, from a target to a source of another length."""

import math
import random
from collections.abc import Callable

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import (
    loses_a_length_of_one,
    misbehaviours,
    only_in_training,
    scaling_mistakes,
)
from grading.judging.padded_batches import draw_batch
from grading.judging.properties import SEQUENCES_APART, Ask, Property, input_matters, rows_sum_to_one, same
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited, softmax
from transformer_lm.checks.topic_06_encoder_decoder.cross_attention import CROSS_ATTENTION

LAYERS = ("k", "q", "v", "mix")


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return a target, a source of another length with padding, and the weights of the four layers.

    With large numbers, one source has a single word, and some of its scores are lower than a number that an answer
    might use to mask padding.
    """
    hidden = sizes["num_heads"] * sizes["head_size"]
    source = draw_batch(rng, sizes | {"n": sizes["m"]}, hidden, bound=1)
    if "magnitude" in sizes:
        source["visible"][1, 1:] = False
        source["x"][1, 0] *= 2.5
        source["x"][1, 1:] /= 4
    case = {
        "x": dyadic(rng, sizes["b"], sizes["n"], hidden, bound=sizes.get("magnitude", 1)),
        "memory": source["x"],
        "visible": source["visible"],
        "num_heads": np.array(sizes["num_heads"]),
    }
    for layer in LAYERS:
        case[f"{layer}_weight"] = dyadic(rng, hidden, hidden, bound=3 / math.sqrt(hidden))
        case[f"{layer}_bias"] = dyadic(rng, hidden, bound=1)
    return case


def reference(case: Arrays) -> Arrays:
    """Return the heads' attention to the real tokens of the source, after the output projection, and their weights."""
    x, memory = case["x"], case["memory"]
    b, n, hidden = x.shape
    h, m = int(case["num_heads"]), memory.shape[1]
    heads, weights = np.zeros((b, n, hidden)), np.zeros((b, h, n, m))
    queries, keys, values = (
        given @ case[f"{name}_weight"].T + case[f"{name}_bias"]
        for name, given in (("q", x), ("k", memory), ("v", memory))
    )
    for sequence, length in enumerate(case["visible"].sum(axis=1)):
        for head, features in enumerate(np.split(np.arange(hidden), h)):
            query, key = queries[sequence][:, features], keys[sequence, :length][:, features]
            found = softmax(query @ key.T / math.sqrt(hidden / h))
            weights[sequence, head, :, :length] = found
            heads[sequence][:, features] = found @ values[sequence, :length][:, features]
    return {"output": heads @ case["mix_weight"].T + case["mix_bias"], "weights": weights}


def _padding_unread(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
    other = dyadic(rng, *case["memory"].shape, bound=2)
    before, after = ask(case), ask(case | {"memory": np.where(case["visible"][..., None], case["memory"], other)})
    return all(same(before[name], after[name]) for name in before)


PADDING_UNREAD = Property("padding-of-the-source-read", _padding_unread)


def right_for_other_masks(reference: Callable[[Arrays], Arrays], *masks: str) -> Property:
    """Return the property of an answer that uses the masks of each call, tested by swapping masks between sequences."""

    def holds(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
        def right(given: Arrays) -> bool:
            found, expected = ask(given), reference(given)
            return all(same(found[name], expected[name]) for name in expected)

        other = case | {name: np.roll(case[name], 1, axis=0) for name in masks}
        return right(other) if right(case) else True  # an answer that is always wrong keeps nothing

    return Property("mask-kept", holds)


# --- answers ------------------------------------------------------------------------------------

INIT = """\
class MultiHeadCrossAttention(nn.Module):
    def __init__(self, hidden, num_heads):
        super().__init__()
        self.k = nn.Linear(hidden, hidden)
        self.q = nn.Linear(hidden, hidden)
        self.v = nn.Linear(hidden, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.num_heads = num_heads

"""

FORWARD = """\
    def split(self, x):
        b, length, hidden = x.shape
        return x.view(b, length, self.num_heads, -1).transpose(1, 2)  # (b, h, length, dh)

    def forward(self, x, memory, visible):
        b, n, hidden = x.shape
        h, m, dh = self.num_heads, memory.shape[1], hidden // self.num_heads
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        scores = q @ k.transpose(-2, -1) / dh**0.5  # (b, h, n, m)
        unreadable = ~visible[:, None, None, :]
        scores = scores.masked_fill(unreadable, -math.inf)
        weights = scores.softmax(dim=-1)
        heads = weights @ v  # (b, h, n, dh)
        output = self.mix(heads.transpose(1, 2).flatten(2))
        return output, weights
"""

MODEL_ANSWER = INIT + FORWARD

QUERIES, KEYS, VALUES = "self.split(self.q(x))", "self.split(self.k(memory))", "self.split(self.v(memory))"
COMPARE = "q @ k.transpose(-2, -1)"
SPLIT = "x.view(b, length, self.num_heads, -1).transpose(1, 2)"
HIDE = "scores.masked_fill(unreadable, -math.inf)"
SOFTMAX = "scores.softmax(dim=-1)"
MERGE = "heads.transpose(1, 2).flatten(2)"
MIX = f"self.mix({MERGE})"
RETURNED = "return output, weights"
SIZES = "h, m, dh = self.num_heads, memory.shape[1], hidden // self.num_heads\n"


def wrong(name: str, *edits: tuple[str, str], hint: str = "") -> WrongAnswer:
    """Return the answer with a mistake."""
    return edited(name, MODEL_ANSWER, *edits, hint=hint)


def seen(visible: str) -> tuple[str, str]:
    """Return the edit that first changes the mask."""
    return SIZES, f"{SIZES}        visible = {visible}\n"


def returned(what: str) -> tuple[str, str]:
    """Return the edit that returns something else."""
    return RETURNED, f"return {what}"


WRONG = (
    wrong("queries-from-source", (QUERIES, "self.split(self.q(memory))")),
    *scaling_mistakes(MODEL_ANSWER, "dh"),
    wrong("scaled-by-hidden", ("dh**0.5", "hidden**0.5")),
    wrong("scaled-by-heads", ("dh**0.5", "h**0.5")),
    wrong("scaled-by-length", ("dh**0.5", "n**0.5")),
    wrong("scaled-by-source-length", ("dh**0.5", "m**0.5")),
    wrong("projections-swapped", (QUERIES, "self.split(self.k(x))"), (KEYS, "self.split(self.q(memory))")),
    wrong("key-value-swapped", ("q, k, v = ", "q, v, k = ")),
    wrong("keys-as-values", ("weights @ v", "weights @ k")),
    wrong("values-as-keys", (COMPARE, "q @ v.transpose(-2, -1)")),
    wrong("memory-as-keys", (KEYS, "self.split(memory.contiguous())")),
    wrong("memory-as-values", (VALUES, "self.split(memory.contiguous())")),
    wrong("x-as-queries", (QUERIES, "self.split(x.contiguous())")),
    wrong(
        "no-bias",
        (QUERIES, "self.split(x @ self.q.weight.T)"),
        (KEYS, "self.split(memory @ self.k.weight.T)"),
        (VALUES, "self.split(memory @ self.v.weight.T)"),
    ),
    wrong("keys-viewed", (COMPARE, "q @ k.reshape(b, h, dh, m)")),
    wrong("lengths-swapped-by-view", (COMPARE, "(k @ q.transpose(-2, -1)).reshape(b, h, n, m)")),
    wrong("weights-transposed", returned("output, weights.transpose(-2, -1)")),
    wrong("softmax-over-queries", (SOFTMAX, "scores.softmax(dim=-2)")),
    wrong("softmax-over-heads", (SOFTMAX, "scores.softmax(dim=1)")),
    wrong("softmax-over-batch", (SOFTMAX, "scores.softmax(dim=0)")),
    wrong("softmax-over-everything", (SOFTMAX, "scores.flatten(2).softmax(dim=-1).view(b, h, n, m)")),
    wrong("softmax-twice", (SOFTMAX, f"{SOFTMAX}.softmax(dim=-1)")),
    wrong("no-softmax", (SOFTMAX, "scores")),
    wrong("not-normalised", (SOFTMAX, "scores.exp()")),
    wrong("padding-attended", seen("torch.ones_like(visible)")),
    wrong("mask-inverted", seen("~visible")),
    wrong("mask-of-the-first", seen("visible[:1].expand(b, m)")),
    wrong("first-source-only", seen("visible | (torch.arange(b, device=x.device) > 0)[:, None]")),
    wrong("mask-of-the-shortest", seen("visible.all(dim=0).expand(b, m)")),
    wrong("hides-the-last-word", seen("visible & visible.roll(-1, dims=1)")),
    wrong("shows-the-first-pad", seen("visible | visible.roll(1, dims=1)")),
    wrong("masked-with-zero", ("-math.inf", "0")),
    wrong("masked-with-minus-one", ("-math.inf", "-1")),
    wrong("mask-after-softmax", (HIDE, "scores"), (SOFTMAX, f"{SOFTMAX}.masked_fill(unreadable, 0)")),
    wrong("mask-added", (HIDE, "scores + visible[:, None, None, :]")),
    wrong("padding-zeroed", (SIZES, f"{SIZES}        memory = memory * visible[..., None]\n"), (HIDE, "scores")),
    wrong("mask-in-another-order", ("visible[:, None, None, :]", "visible.repeat(h, 1).view(b, h, 1, m)")),
    wrong(
        "mask-for-the-first-head",
        (
            "unreadable = ~visible[:, None, None, :]",
            "unreadable = ~visible[:, None, None, :] & (torch.arange(h, device=x.device) == 0)[:, None, None]",
        ),
    ),
    wrong("causal", ("unreadable = ~", "unreadable = torch.ones(n, m, device=x.device).triu(1).bool() | ~")),
    wrong("split-by-view", (SPLIT, "x.view(b, self.num_heads, length, -1)")),
    wrong("split-interleaved", (SPLIT, "x.view(b, length, -1, self.num_heads).permute(0, 3, 1, 2)")),
    wrong("merged-without-transpose", (MERGE, "heads.reshape(b, n, hidden)")),
    wrong("merged-interleaved", (MERGE, "heads.permute(0, 2, 3, 1).flatten(2)")),
    wrong("heads-mixed-with-batch", (MERGE, "heads.reshape(h, b, n, dh).permute(1, 2, 0, 3).flatten(2)")),
    wrong("one-wide-head", ("self.num_heads = num_heads", "self.num_heads = 1")),
    wrong("no-mixing", (MIX, MERGE)),
    wrong("no-mixing-bias", (MIX, f"{MERGE} @ self.mix.weight.T")),
    wrong("residual", returned("output + x, weights")),
    wrong("scores-returned", returned("output, scores")),
    wrong("weights-of-padding-returned", (RETURNED, f"return output, ({COMPARE} / dh ** 0.5).softmax(dim=-1)")),
    wrong("weights-of-heads-averaged", returned("output, weights.mean(dim=1)")),
    wrong("weights-folded", returned("output, weights.flatten(0, 1)")),
    wrong("heads-after-positions", returned("output, weights.transpose(1, 2)")),
    wrong("order-of-outputs", returned("weights, output")),
)

MISBEHAVING = (
    *misbehaviours(MODEL_ANSWER, "MultiHeadCrossAttention.forward", longer=(5, 17)),
    loses_a_length_of_one(MODEL_ANSWER, "MultiHeadCrossAttention.forward"),
    only_in_training(MODEL_ANSWER, "MultiHeadCrossAttention.forward"),
    wrong("keys-from-target", (KEYS, "self.split(self.k(x))")),
    wrong("values-from-target", (VALUES, "self.split(self.v(x))"), hint="keys-from-target"),
    wrong(
        "self-attention", (KEYS, "self.split(self.k(x))"), (VALUES, "self.split(self.v(x))"), hint="keys-from-target"
    ),
    wrong(
        "source-and-target-exchanged",
        (QUERIES, "self.split(self.q(memory))"),
        (KEYS, "self.split(self.k(x))"),
        (VALUES, "self.split(self.v(x))"),
        hint="keys-from-target",
    ),
    wrong(
        "source-split-as-target", (KEYS, "self.k(memory).view(b, n, h, dh).transpose(1, 2)"), hint="keys-from-target"
    ),
    wrong("merged-as-source", (MERGE, "heads.transpose(1, 2).reshape(b, m, hidden)"), hint="keys-from-target"),
    wrong("square-scores", (COMPARE, f"({COMPARE}).view(b, h, n, n)"), hint="keys-from-target"),
    wrong("mask-of-queries", ("visible[:, None, None, :]", "visible[:, None, :, None]"), hint="keys-from-target"),
    wrong("mask-without-heads", ("visible[:, None, None, :]", "visible[:, None, :]"), hint="keys-from-target"),
    wrong("fixed-number-of-heads", ("self.num_heads = num_heads", "self.num_heads = 2"), hint="other-sizes"),
    wrong("masked-with-minus-twenty", ("-math.inf", "-20"), hint="other-sizes"),
    wrong(
        "mask-kept",
        (
            "        unreadable = ~visible",
            "        if getattr(self, 'kept', visible[:0]).shape != visible.shape:\n"
            "            self.kept = visible.clone()\n"
            "        unreadable = ~self.kept",
        ),
    ),
    wrong("output-alone", returned("output"), hint="not-two-values"),
    wrong("weights-alone", returned("weights"), hint="not-two-values"),
    wrong("nothing-returned", (RETURNED, "output, weights"), hint="not-two-values"),
    wrong("weights-left-out", returned("output, None"), hint="not-a-tensor"),
    wrong(
        "layer-misnamed",
        ("self.mix = nn.Linear(hidden, hidden)", "self.out = nn.Linear(hidden, hidden)"),
        ("self.mix(heads", "self.out(heads"),
        hint="no-such-parameter",
    ),
    wrong("no-module", ("(nn.Module)", ""), ("        super().__init__()\n", ""), hint="not-a-module"),
    wrong(
        "ready-made",
        ("weights @ v", "F.scaled_dot_product_attention(q, k, v, ~unreadable)"),
        hint="ready-made-attention",
    ),
)

FORWARDS = {
    "four-axes": """\
    def forward(self, x, memory, visible):
        (b, n, hidden), m = x.shape, memory.size(1)
        h, dh = self.num_heads, hidden // self.num_heads
        queries = self.q(x).view(b, n, h, dh).transpose(1, 2)
        keys = self.k(memory).view(b, m, h, dh).transpose(1, 2)
        values = self.v(memory).view(b, m, h, dh).transpose(1, 2)
        scores = torch.matmul(queries, keys.transpose(2, 3)) / math.sqrt(dh)
        scores = scores.masked_fill(visible.view(b, 1, 1, m) == 0, float("-inf"))
        weights = torch.softmax(scores, dim=3)
        heads = torch.matmul(weights, values).transpose(1, 2).contiguous().view(b, n, hidden)
        return self.mix(heads), weights
""",
    "einsum": """\
    def forward(self, x, memory, visible):
        q, k, v = (
            layer(read).unflatten(2, (self.num_heads, -1))
            for layer, read in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        weights = torch.where(visible[:, None, None], scores, -torch.inf).softmax(-1)
        return [self.mix(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)), weights]
""",
    "loop-over-heads": """\
    def forward(self, x, memory, visible):
        dh = x.shape[-1] // self.num_heads
        bias = torch.zeros_like(visible, dtype=x.dtype).masked_fill(~visible, -1e9)[:, None]  # (b, 1, m)
        maps, heads = [], []
        for q, k, v in zip(self.q(x).split(dh, -1), self.k(memory).split(dh, -1), self.v(memory).split(dh, -1)):
            maps.append(torch.softmax(q @ k.mT / dh**0.5 + bias, dim=-1))
            heads.append(maps[-1] @ v)
        return self.mix(torch.cat(heads, dim=-1)), torch.stack(maps, dim=1)
""",
    "loop-over-sequences": """\
    def forward(self, x, memory, visible):
        outputs, maps = [], []
        for target, source, real in zip(x, memory, visible):
            q = self.q(target).view(len(target), self.num_heads, -1).transpose(0, 1)
            k = self.k(source[real]).view(int(real.sum()), self.num_heads, -1).transpose(0, 1)
            v = self.v(source[real]).view(int(real.sum()), self.num_heads, -1).transpose(0, 1)
            weights = F.softmax(torch.bmm(q, k.mT) / k.shape[-1] ** 0.5, dim=-1)
            outputs.append(self.mix(torch.bmm(weights, v).transpose(0, 1).reshape(target.shape)))
            maps.append(F.pad(weights, (0, len(source) - int(real.sum()))))
        return torch.stack(outputs), torch.stack(maps)
""",
    "query-by-query": """\
    def forward(self, x, memory, visible):
        b, m, hidden = memory.shape
        h = self.num_heads
        k, v = (layer(memory).view(b, m, h, -1) for layer in (self.k, self.v))
        outputs, maps = [], []
        for position in x.unbind(dim=1):
            q = self.q(position).view(b, 1, h, hidden // h)
            scores = (q * k).sum(dim=-1) / math.sqrt(hidden // h)  # (b, m, h)
            weights = scores.masked_fill(~visible.unsqueeze(-1), -math.inf).softmax(dim=1)
            outputs.append(self.mix((weights.unsqueeze(-1) * v).sum(dim=1).flatten(1)))
            maps.append(weights.transpose(1, 2))
        return torch.stack(outputs, dim=1), torch.stack(maps, dim=2)
""",
    "heads-folded-into-the-batch": """\
    def fold(self, x):
        b, length, hidden = x.shape
        return x.view(b, length, self.num_heads, -1).transpose(1, 2).reshape(b * self.num_heads, length, -1)

    def forward(self, x, memory, visible):
        b, n, hidden = x.shape
        q, k, v = self.fold(self.q(x)), self.fold(self.k(memory)), self.fold(self.v(memory))
        scores = q.bmm(k.transpose(1, 2)) / q.shape[-1] ** 0.5
        hidden_keys = ~visible.repeat_interleave(self.num_heads, dim=0).unsqueeze(1)
        weights = scores.masked_fill(hidden_keys, -math.inf).softmax(dim=-1)
        heads = weights.bmm(v).view(b, self.num_heads, n, -1).transpose(1, 2).reshape(b, n, hidden)
        return self.mix(heads), weights.view(b, self.num_heads, n, -1)
""",
    "heads-before-batch-both-ways": """\
    def forward(self, x, memory, visible):
        h = self.num_heads
        q, k, v = (torch.stack(t.chunk(h, dim=-1)) for t in (self.q(x), self.k(memory), self.v(memory)))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible.unsqueeze(1), -math.inf)  # (h, b, n, m)
        weights = scores.softmax(-1)
        return self.mix(torch.cat((weights @ v).unbind(0), dim=-1)), weights.transpose(0, 1)
""",
    "shared-out-again": """\
    def forward(self, x, memory, visible):
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).permute(0, 2, 1, 3)
            for t in (self.q(x), self.k(memory), self.v(memory))
        )
        shares = (q @ k.mT / q.size(-1) ** 0.5).softmax(dim=-1) * visible[:, None, None]
        weights = shares / shares.sum(dim=-1, keepdim=True)
        return self.mix((weights @ v).permute(0, 2, 1, 3).flatten(-2)), weights.detach()
""",
    "own-softmax": """\
    def forward(self, x, memory, visible):
        (b, n, hidden), m, h = x.shape, memory.shape[1], self.num_heads
        q = (self.q(x) / math.sqrt(hidden // h)).reshape(b, n, h, -1).transpose(1, 2)
        k = self.k(memory).reshape(b, m, h, -1).permute(0, 2, 3, 1)
        v = self.v(memory).reshape(b, m, h, -1).transpose(1, 2)
        scores = (q @ k).masked_fill(~visible[:, None, None], -math.inf)
        exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        weights = exponentials / exponentials.sum(dim=-1, keepdim=True)
        return self.mix((weights @ v).transpose(1, 2).flatten(2)), weights
""",
    "keys-against-queries": """\
    def forward(self, x, memory, visible):
        q, k, v = (t.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
                   for t in (self.q(x), self.k(memory), self.v(memory)))
        scores = k @ q.mT / q.shape[-1] ** 0.5  # (b, h, m, n)
        weights = (scores + visible[:, None, :, None].to(x.dtype).log()).softmax(dim=2).mT
        return self.mix((weights @ v).transpose(1, 2).flatten(2)), weights
""",
    "keys-and-values-in-one-product": """\
    def forward(self, x, memory, visible):
        (b, n, hidden), h = x.shape, self.num_heads
        both = F.linear(memory, torch.cat([self.k.weight, self.v.weight]), torch.cat([self.k.bias, self.v.bias]))
        k, v = (t.view(b, -1, h, hidden // h).transpose(1, 2) for t in both.chunk(2, dim=-1))
        q = self.q(x).view(b, n, h, -1).transpose(1, 2)
        scores = torch.baddbmm(
            x.new_zeros(1), q.flatten(0, 1), k.flatten(0, 1).mT, alpha=(hidden // h) ** -0.5
        ).unflatten(0, (b, h))
        scores[~visible[:, None, None].expand_as(scores)] = torch.finfo(x.dtype).min
        weights = scores.softmax(-1)
        mix = self.mix.weight.view(hidden, h, -1)
        return torch.einsum("bhij,bhjd,ohd->bio", weights, v, mix) + self.mix.bias, weights
""",
    "float64": """\
    def forward(self, x, memory, visible):
        (b, n, hidden), h = x.shape, self.num_heads
        q, k, v = (t.double().view(b, -1, h, hidden // h).transpose(1, 2)
                   for t in (self.q(x), self.k(memory), self.v(memory)))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(visible.logical_not()[:, None, None], -torch.inf)
        weights = scores.softmax(-1)
        heads = (weights @ v).transpose(1, 2).flatten(2)
        return heads @ self.mix.weight.double().T + self.mix.bias, weights
""",
}

CROSS_ATTENTION_RECORD = ValueRecord(
    public=CROSS_ATTENTION,
    title="Cross-attention: the target attends to the source",
    defines="MultiHeadCrossAttention",
    parts=(Part("cross-attention-check", 3, values),),
    properties=(
        SEQUENCES_APART,
        input_matters("output", "weights"),
        rows_sum_to_one("weights"),
        PADDING_UNREAD,
        right_for_other_masks(reference, "visible"),
    ),
    first_sizes={"b": 3, "n": 5, "m": 8, "num_heads": 2, "head_size": 7},
    other_length={"b": 5, "n": 17, "m": 13},
    # Small enough for answers whose softmax includes padding and is renormalised afterwards.
    other_sizes={"b": 4, "n": 7, "m": 11, "num_heads": 3, "head_size": 5, "magnitude": 2},
    ones=("n", "num_heads"),
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right={name: INIT + forward for name, forward in FORWARDS.items()},
)
