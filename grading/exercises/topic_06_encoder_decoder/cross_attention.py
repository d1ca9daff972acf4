"""The exercise of topic 06 about multi-head cross-attention, from a target to a source of another length."""

import math
import random
from collections.abc import Callable

import numpy as np

from grading.judging.judge import values
from grading.judging.mistakes import (
    KEYS_AS_VALUES,
    KEYS_VIEWED,
    loses_a_length_of_one,
    misbehaviours,
    only_in_training,
    scaling_mistakes,
)
from grading.judging.padded_batches import draw_batch
from grading.judging.properties import SEQUENCES_APART, Ask, Property, input_matters, rows_sum_to_one, same
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited, softmax
from transformer_lm.checks.engine.calling import OTHER_SIZES
from transformer_lm.checks.engine.ready_made import READY_MADE
from transformer_lm.checks.topic_06_encoder_decoder.cross_attention import BOTH, CROSS_ATTENTION, LENGTHS

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


PADDING_UNREAD = Property(
    "What stands at the padding of the source has an effect: no query may read it.", _padding_unread
)

KEPT = "Right for the first masks, wrong for others of the same shape: something is kept from the call before."


def right_for_other_masks(reference: Callable[[Arrays], Arrays], *masks: str) -> Property:
    """Return the property of an answer that uses the masks of each call, tested by swapping masks between sequences."""

    def holds(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
        def right(given: Arrays) -> bool:
            found, expected = ask(given), reference(given)
            return all(same(found[name], expected[name]) for name in expected)

        other = case | {name: np.roll(case[name], 1, axis=0) for name in masks}
        return right(other) if right(case) else True  # an answer that is always wrong keeps nothing

    return Property(KEPT, holds)


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


def wrong(name: str, hint: str, *edits: tuple[str, str]) -> WrongAnswer:
    """Return the answer with a mistake."""
    return edited(name, hint, MODEL_ANSWER, *edits)


def seen(visible: str) -> tuple[str, str]:
    """Return the edit that first changes the mask."""
    return SIZES, f"{SIZES}        visible = {visible}\n"


def returned(what: str) -> tuple[str, str]:
    """Return the edit that returns something else."""
    return RETURNED, f"return {what}"


WRONG = (
    wrong(
        "queries-from-source",
        "The queries come from memory: it is the target that asks, and each of its positions gets an output.",
        (QUERIES, "self.split(self.q(memory))"),
    ),
    *scaling_mistakes(MODEL_ANSWER, "dh"),
    wrong(
        "scaled-by-hidden",
        "The scores are scaled by the width of all heads together; a dot product runs over one of them.",
        ("dh**0.5", "hidden**0.5"),
    ),
    wrong(
        "scaled-by-heads",
        "The scores are scaled by how many heads there are; their spread depends on how wide each is.",
        ("dh**0.5", "h**0.5"),
    ),
    wrong(
        "scaled-by-length",
        "The scores are scaled by the length of the target; their spread depends on another size.",
        ("dh**0.5", "n**0.5"),
    ),
    wrong(
        "scaled-by-source-length",
        "The scores are scaled by the length of the source; their spread depends on another size.",
        ("dh**0.5", "m**0.5"),
    ),
    wrong(
        "projections-swapped",
        "The layers of queries and keys are exchanged: self.q is for what asks, self.k for what is read.",
        (QUERIES, "self.split(self.k(x))"),
        (KEYS, "self.split(self.q(memory))"),
    ),
    wrong(
        "key-value-swapped",
        "Keys and values are exchanged: queries are compared with keys, and values are averaged.",
        ("q, k, v = ", "q, v, k = "),
    ),
    wrong("keys-as-values", KEYS_AS_VALUES, ("weights @ v", "weights @ k")),
    wrong(
        "values-as-keys",
        "The queries are compared with the values: the keys are made for that.",
        (COMPARE, "q @ v.transpose(-2, -1)"),
    ),
    wrong(
        "memory-as-keys",
        "The keys are memory itself: it should go through the layer of the keys first.",
        (KEYS, "self.split(memory.contiguous())"),
    ),
    wrong(
        "memory-as-values",
        "The values are memory itself: it should go through the layer of the values first.",
        (VALUES, "self.split(memory.contiguous())"),
    ),
    wrong(
        "x-as-queries",
        "The queries are x itself: it should go through the layer of the queries first.",
        (QUERIES, "self.split(x.contiguous())"),
    ),
    wrong(
        "no-bias",
        "The bias of the projections is missing: you use the weights of the linear layers only.",
        (QUERIES, "self.split(x @ self.q.weight.T)"),
        (KEYS, "self.split(memory @ self.k.weight.T)"),
        (VALUES, "self.split(memory @ self.v.weight.T)"),
    ),
    wrong(
        "keys-viewed",
        KEYS_VIEWED,
        (COMPARE, "q @ k.reshape(b, h, dh, m)"),
    ),
    wrong(
        "lengths-swapped-by-view",
        "The lengths are swapped by view or reshape: that re-cuts the row of numbers, where n = m it is a transpose.",
        (COMPARE, "(k @ q.transpose(-2, -1)).reshape(b, h, n, m)"),
    ),
    wrong(
        "weights-transposed",
        "The weights come back with their lengths swapped: target positions are the rows, the source the columns.",
        returned("output, weights.transpose(-2, -1)"),
    ),
    wrong(
        "softmax-over-queries",
        "The softmax runs over the positions of the target: for each of them, the weights of all keys must sum to 1.",
        (SOFTMAX, "scores.softmax(dim=-2)"),
    ),
    wrong(
        "softmax-over-heads",
        "The softmax runs over the heads of a sequence, so that they compete. Which axis holds the keys?",
        (SOFTMAX, "scores.softmax(dim=1)"),
    ),
    wrong(
        "softmax-over-batch",
        "The softmax runs over the batch, so sequences compete with each other. Which axis holds the keys?",
        (SOFTMAX, "scores.softmax(dim=0)"),
    ),
    wrong(
        "softmax-over-everything",
        "The softmax runs over queries and keys together: each query has weights of its own, which sum to 1.",
        (SOFTMAX, "scores.flatten(2).softmax(dim=-1).view(b, h, n, m)"),
    ),
    wrong(
        "softmax-twice",
        "The softmax is applied twice: the second one flattens the weights towards equal shares.",
        (SOFTMAX, f"{SOFTMAX}.softmax(dim=-1)"),
    ),
    wrong("no-softmax", "There is no softmax: the scores themselves are used as weights.", (SOFTMAX, "scores")),
    wrong(
        "not-normalised",
        "The exponentials are not divided by their sum: the weights of a query must sum to 1.",
        (SOFTMAX, "scores.exp()"),
    ),
    wrong(
        "padding-attended",
        "Padding of the source is read like words: visible has no effect, at least in train mode.",
        seen("torch.ones_like(visible)"),
    ),
    wrong(
        "mask-inverted",
        "The mask is inverted: real tokens of the source are hidden and padding is read.",
        seen("~visible"),
    ),
    wrong(
        "mask-of-the-first",
        "The padding of the first source is hidden in all of them: each has a length of its own.",
        seen("visible[:1].expand(b, m)"),
    ),
    wrong(
        "first-source-only",
        "Padding is hidden in the first source and read in the others: each has padding of its own.",
        seen("visible | (torch.arange(b, device=x.device) > 0)[:, None]"),
    ),
    wrong(
        "mask-of-the-shortest",
        "Every source is treated as if it were as short as the shortest: real tokens are hidden too.",
        seen("visible.all(dim=0).expand(b, m)"),
    ),
    wrong(
        "hides-the-last-word",
        "The mask hides one position too many: the last real token of a source must be read.",
        seen("visible & visible.roll(-1, dims=1)"),
    ),
    wrong(
        "shows-the-first-pad",
        "The mask hides one position too few: the first pad after the last real token is read.",
        seen("visible | visible.roll(1, dims=1)"),
    ),
    wrong(
        "masked-with-zero",
        "The scores of padding are set to 0 before the softmax, but a score of 0 still gets weight.",
        ("-math.inf", "0"),
    ),
    wrong(
        "masked-with-minus-one",
        "The scores of padding are set to a number that real scores may well have: it still gets weight.",
        ("-math.inf", "-1"),
    ),
    wrong(
        "mask-after-softmax",
        "Padding is hidden after the softmax: it takes its share first, and the rest no longer sums to 1.",
        (HIDE, "scores"),
        (SOFTMAX, f"{SOFTMAX}.masked_fill(unreadable, 0)"),
    ),
    wrong(
        "mask-added",
        "True and False are added to the scores as 1 and 0: padding is read all the same, only a little less.",
        (HIDE, "scores + visible[:, None, None, :]"),
    ),
    wrong(
        "padding-zeroed",
        "Padding is set to 0 in memory and then read: zeros take a share of the weights like anything else.",
        (SIZES, f"{SIZES}        memory = memory * visible[..., None]\n"),
        (HIDE, "scores"),
    ),
    wrong(
        "mask-in-another-order",
        "The masks are repeated in another order than batch and heads stand: heads get those of other sequences.",
        ("visible[:, None, None, :]", "visible.repeat(h, 1).view(b, h, 1, m)"),
    ),
    wrong(
        "mask-for-the-first-head",
        "Only the first head of each sequence is kept from padding: the mask holds for all of them.",
        (
            "unreadable = ~visible[:, None, None, :]",
            "unreadable = ~visible[:, None, None, :] & (torch.arange(h, device=x.device) == 0)[:, None, None]",
        ),
    ),
    wrong(
        "causal",
        "There is a causal mask, too: the whole source is known before the first word of the target is.",
        ("unreadable = ~", "unreadable = torch.ones(n, m, device=x.device).triu(1).bool() | ~"),
    ),
    wrong(
        "split-by-view",
        "Heads and positions are mixed: a view alone cuts the row of numbers elsewhere, and swaps no axes.",
        (SPLIT, "x.view(b, self.num_heads, length, -1)"),
    ),
    wrong(
        "split-interleaved",
        "The heads are interleaved: each must be a block of features that stand side by side.",
        (SPLIT, "x.view(b, length, -1, self.num_heads).permute(0, 3, 1, 2)"),
    ),
    wrong(
        "merged-without-transpose",
        "The heads are merged without being transposed back: each output holds numbers of several positions.",
        (MERGE, "heads.reshape(b, n, hidden)"),
    ),
    wrong(
        "merged-interleaved",
        "The heads are merged number by number: all of a head must stand side by side.",
        (MERGE, "heads.permute(0, 2, 3, 1).flatten(2)"),
    ),
    wrong(
        "heads-mixed-with-batch",
        "Heads are mixed with the batch: they are folded together after it, and come apart as if before it.",
        (MERGE, "heads.reshape(h, b, n, dh).permute(1, 2, 0, 3).flatten(2)"),
    ),
    wrong(
        "one-wide-head",
        "There is one head as wide as all of them: the heads are never split.",
        ("self.num_heads = num_heads", "self.num_heads = 1"),
    ),
    wrong("no-mixing", "The mixing layer is missing: nothing combines the heads.", (MIX, MERGE)),
    wrong("no-mixing-bias", "The bias of the mixing layer is missing.", (MIX, f"{MERGE} @ self.mix.weight.T")),
    wrong(
        "residual",
        "The input is added on top: what the heads have read, mixed, is all that is asked for.",
        returned("output + x, weights"),
    ),
    wrong(
        "scores-returned",
        "The scores come back in place of the weights: the softmax turns them into shares.",
        returned("output, scores"),
    ),
    wrong(
        "weights-of-padding-returned",
        "The weights that come back are not those that the output is made with: padding has a share in them.",
        (RETURNED, f"return output, ({COMPARE} / dh ** 0.5).softmax(dim=-1)"),
    ),
    wrong(
        "weights-of-heads-averaged",
        "The weights are averaged over the heads: each head has its own.",
        returned("output, weights.mean(dim=1)"),
    ),
    wrong(
        "weights-folded",
        "The weights have batch and heads in one axis: here each has its own.",
        returned("output, weights.flatten(0, 1)"),
    ),
    wrong(
        "heads-after-positions",
        "The axes of the weights stand in another order: batch, heads, target, source.",
        returned("output, weights.transpose(1, 2)"),
    ),
    wrong(
        "order-of-outputs",
        "The weights come before the output: the output is first.",
        returned("weights, output"),
    ),
)

MISBEHAVING = (
    *misbehaviours(MODEL_ANSWER, "MultiHeadCrossAttention.forward", longer=(5, 17)),
    loses_a_length_of_one(MODEL_ANSWER, "MultiHeadCrossAttention.forward"),
    only_in_training(MODEL_ANSWER, "MultiHeadCrossAttention.forward"),
    wrong("keys-from-target", LENGTHS, (KEYS, "self.split(self.k(x))")),
    wrong("values-from-target", LENGTHS, (VALUES, "self.split(self.v(x))")),
    wrong("self-attention", LENGTHS, (KEYS, "self.split(self.k(x))"), (VALUES, "self.split(self.v(x))")),
    wrong(
        "source-and-target-exchanged",
        LENGTHS,
        (QUERIES, "self.split(self.q(memory))"),
        (KEYS, "self.split(self.k(x))"),
        (VALUES, "self.split(self.v(x))"),
    ),
    wrong("source-split-as-target", LENGTHS, (KEYS, "self.k(memory).view(b, n, h, dh).transpose(1, 2)")),
    wrong("merged-as-source", LENGTHS, (MERGE, "heads.transpose(1, 2).reshape(b, m, hidden)")),
    wrong("square-scores", LENGTHS, (COMPARE, f"({COMPARE}).view(b, h, n, n)")),
    wrong("mask-of-queries", LENGTHS, ("visible[:, None, None, :]", "visible[:, None, :, None]")),
    wrong("mask-without-heads", LENGTHS, ("visible[:, None, None, :]", "visible[:, None, :]")),
    wrong(
        "fixed-number-of-heads",
        OTHER_SIZES,
        ("self.num_heads = num_heads", "self.num_heads = 2"),
    ),
    wrong("masked-with-minus-twenty", OTHER_SIZES, ("-math.inf", "-20")),
    wrong(
        "mask-kept",
        KEPT,
        (
            "        unreadable = ~visible",
            "        if getattr(self, 'kept', visible[:0]).shape != visible.shape:\n"
            "            self.kept = visible.clone()\n"
            "        unreadable = ~self.kept",
        ),
    ),
    wrong("output-alone", BOTH, returned("output")),
    wrong("weights-alone", BOTH, returned("weights")),
    wrong("nothing-returned", BOTH, (RETURNED, "output, weights")),
    wrong("weights-left-out", "Return weights as one tensor.", returned("output, None")),
    wrong(
        "layer-misnamed",
        "Make self.mix a linear layer with a bias in __init__: the check loads its weights by name.",
        ("self.mix = nn.Linear(hidden, hidden)", "self.out = nn.Linear(hidden, hidden)"),
        ("self.mix(heads", "self.out(heads"),
    ),
    wrong(
        "no-module",
        "Derive your class from nn.Module, and give the check the class itself.",
        ("(nn.Module)", ""),
        ("        super().__init__()\n", ""),
    ),
    wrong("ready-made", READY_MADE, ("weights @ v", "F.scaled_dot_product_attention(q, k, v, ~unreadable)")),
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
    title="Cross-attention: the target reads the source",
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
