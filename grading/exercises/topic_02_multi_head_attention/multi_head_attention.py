"""The exercise of topic 02 about multi-head attention, with and without a causal mask."""

import math
import random
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from grading.isolation.answers import Answer
from grading.judging.form import shape_comments, style
from grading.judging.judge import Tolerances, failure_told, of_the_right_shape, part_values, right, values
from grading.judging.mistakes import (
    SOFTMAX,
    comment_mistakes,
    loses_a_length_of_one,
    misbehaviours,
    one_layer_for_all,
    only_in_training,
    overflowing_softmax,
    score_mistakes,
    softmax_mistakes,
    style_mistakes,
)
from grading.judging.properties import SEQUENCES_APART, ignores_the_future, input_matters, rows_sum_to_one
from grading.judging.record import Arrays, Part, ValueRecord, dyadic, edited, softmax
from transformer_lm.checks.engine.verdict import Mark
from transformer_lm.checks.topic_02_multi_head_attention.multi_head_attention import (
    MULTI_HEAD_ATTENTION,
    MULTI_HEAD_DROPOUT,
    compare_half,
    dropout_inputs,
)


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input and the weights of the four layers; all scores of the first head are 0."""
    hidden = sizes["num_heads"] * sizes["head_size"]
    case = {
        "x": dyadic(rng, sizes["b"], sizes["n"], sizes["input_size"], bound=2 * sizes.get("magnitude", 1)),
        "num_heads": np.array(sizes["num_heads"]),
    }
    for layer in ("k", "q", "v", "mix"):
        width = hidden if layer == "mix" else sizes["input_size"]
        case[f"{layer}_weight"] = dyadic(rng, hidden, width, bound=0.75)
        case[f"{layer}_bias"] = dyadic(rng, hidden, bound=1)
    silent = sizes["head_size"]
    case["q_weight"][:silent], case["q_bias"][:silent] = 0, 0
    return case


def reference(case: Arrays) -> Arrays:
    """Return outputs and weights, computed head by head."""
    x, num_heads = case["x"], int(case["num_heads"])
    keys, queries, values = (x @ case[f"{layer}_weight"].T + case[f"{layer}_bias"] for layer in "kqv")
    future = np.triu(np.ones((x.shape[1], x.shape[1]), dtype=bool), k=1)
    outputs = {}
    for suffix in ("", "_causal"):
        heads, weights = [], []
        for k, q, v in zip(*(np.split(part, num_heads, axis=-1) for part in (keys, queries, values)), strict=True):
            scores = np.einsum("bik,bjk->bij", q, k) / math.sqrt(k.shape[-1])
            weights.append(softmax(np.where(future, -np.inf, scores) if suffix else scores))
            heads.append(weights[-1] @ v)
        outputs[f"output{suffix}"] = np.concatenate(heads, axis=-1) @ case["mix_weight"].T + case["mix_bias"]
        outputs[f"weights{suffix}"] = np.stack(weights, axis=1).reshape(-1, *future.shape)  # (b * h, i, j)
    outputs["output_dropped"] = np.zeros_like(outputs["output"]) + case["mix_bias"]
    outputs["output_undropped"] = outputs["output"]
    return outputs


# --- the three parts ----------------------------------------------------------------------------

SCORES, MASK, MIXING, SHAPES, STYLE = (
    f"multi-head-attention-check{part}" for part in ("-scores", "-mask", "", "-shapes", "-style")
)


def weights_in_any_layout(outputs: Arrays, case: Arrays, expected: Arrays) -> Arrays:
    """Return the outputs of the right shape; weights with all axes, in any order, are brought into the right layout.

    The layout of the returned weights counts as part of what follows the scores, and costs points only there.
    """
    read = of_the_right_shape(outputs, case, expected)
    for name in {"weights", "weights_causal"} & outputs.keys():
        layouts = list(_layouts(outputs[name], len(case["x"]), int(case["num_heads"])))
        fitting = [each for each in layouts if np.allclose(each, expected[name], atol=1e-4)]
        if layouts:
            read[name] = (fitting or layouts)[0]
    return read


def _layouts(weights: NDArray[np.float64], b: int, h: int) -> Iterator[NDArray[np.float64]]:
    """Yield possible readings of weights as (b * h, i, j): first as the shape suggests, then with other axis orders."""
    sizes = weights.shape[:-2]
    if sizes not in ((b * h,), (b, h), (h, b)) or weights.shape[-1] != weights.shape[-2]:
        return
    flat = (weights.swapaxes(0, 1) if sizes == (h, b) else weights).reshape(b * h, *weights.shape[-2:])
    heads_first = weights.reshape(h, b, *weights.shape[-2:]).swapaxes(0, 1).reshape(flat.shape)
    for each in (flat, heads_first):
        yield from (each, each.swapaxes(1, 2))


def scores_are_right(outputs: Arrays, case: Arrays, expected: Arrays, allowed: Tolerances) -> bool:
    """Return whether the scores are right, judged by the weights and by what is computed with them.

    If there is no output without a mask, or that output is masked too, they are judged with causal=True.
    """
    if any(right(name, outputs, expected, allowed) for name in ("weights", "output")):
        return True
    causal = any(right(name, outputs, expected, allowed) for name in ("weights_causal", "output_causal"))
    return causal and (_always_masked(outputs) or not outputs.keys() & {"weights", "output"})


def _always_masked(outputs: Arrays) -> bool:
    """Return whether a mask has the same effect with and without causal=True."""
    pairs = [(name, f"{name}_causal") for name in ("weights", "output") if {name, f"{name}_causal"} <= outputs.keys()]
    return bool(pairs) and all(np.allclose(outputs[full], outputs[causal], atol=1e-4) for full, causal in pairs)


def mask_is_right(outputs: Arrays, case: Arrays, expected: Arrays, allowed: Tolerances) -> bool:
    """Return whether the mask is right, whatever the scores are.

    If so, a causal row consists of the visible weights of the full row, scaled to sum to 1, and zeros.
    """
    if _always_masked(outputs):
        return False
    if any(right(name, outputs, expected, allowed) for name in ("weights_causal", "output_causal")):
        return True
    full, causal = outputs.get("weights"), outputs.get("weights_causal")
    if full is None or causal is None:
        return False
    visible = np.tril(full).sum(axis=-1, keepdims=True)
    if np.triu(full, 1).sum() < 0.1 or not np.array_equal(causal, np.tril(causal)):
        return False  # nothing to mask, or not masked
    enough = (visible > 1e-3).squeeze(-1)  # below this fraction, only rounding is left
    return bool(np.allclose(causal[enough], np.tril(full)[enough] / visible[enough], rtol=0, atol=1e-4))


def mixing_is_right(outputs: Arrays, case: Arrays, expected: Arrays, allowed: Tolerances) -> bool:
    """Return whether all that follows the scores is right: softmax, averages, merged heads, output projection, dropout.

    With causal=True, an output must be computed from the returned weights, however they are masked.
    """
    causal = {"output_causal", "weights_causal"}
    needed = expected.keys() - (causal if not causal & outputs.keys() else set())
    if not needed <= outputs.keys() or not right("output_dropped", outputs, expected, allowed):
        return False
    if not np.allclose(outputs["output"], outputs["output_undropped"], rtol=0, atol=allowed["output"]):
        return False
    weights = outputs["weights"]
    if weights.min() < 0 or not np.allclose(weights.sum(axis=-1), 1, atol=1e-5):
        return False
    suffixes = [suffix for suffix in ("", "_causal") if f"output{suffix}" in outputs]
    return all(_is_mixed(outputs, case, suffix, 10 * allowed[f"output{suffix}"]) for suffix in suffixes)


def _is_mixed(outputs: Arrays, case: Arrays, suffix: str, tolerance: float | np.ndarray) -> bool:
    """Return whether an output follows from its own weights, with heads merged and projected."""
    weights, values = outputs.get(f"weights{suffix}"), _values(case)
    if weights is None:
        return False
    attended = weights.reshape(*values.shape[:3], -1) @ values
    mixed = np.concatenate(list(attended.swapaxes(0, 1)), axis=-1) @ case["mix_weight"].T + case["mix_bias"]
    return np.allclose(outputs[f"output{suffix}"], mixed, rtol=0, atol=tolerance, equal_nan=True)


def mixing(record: ValueRecord, part: Part, answer: Answer, rng: random.Random) -> Mark:
    """Judge all that follows the scores and, once everything is right, dropout of half of the weights."""
    mark = values(record, part, answer, rng, rule=mixing_is_right)
    if not mark.is_right:
        return mark
    inputs = dropout_inputs(torch.Generator().manual_seed(rng.getrandbits(63)))
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    reply, found = answer.ask("call_as", arrays, name=record.defines, exercise=MULTI_HEAD_DROPOUT.id)
    failed = failure_told(reply)
    if failed:
        raise failed
    half, whole = found.get("outputs/output_half"), torch.from_numpy(reference(arrays)["output"])
    compare_half(inputs, None if half is None else torch.from_numpy(half), whole)
    return mark


def _values(case: Arrays) -> NDArray[np.float64]:
    """Return the values of all heads, (b, h, n, dh)."""
    heads = np.split(case["x"] @ case["v_weight"].T + case["v_bias"], int(case["num_heads"]), axis=-1)
    return np.stack(heads, axis=1)


# --- answers ------------------------------------------------------------------------------------


INIT = """\
class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False, dropout=0):
        super().__init__()
        self.k = nn.Linear(input_size, hidden)
        self.q = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.num_heads = num_heads
        self.head_size = hidden // num_heads
        self.causal = causal

"""

FORWARD = """\
    def split(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.num_heads, self.head_size).transpose(1, 2).flatten(0, 1)  # (b * h, n, dh)

    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        k, q, v = self.split(self.k(x)), self.split(self.q(x)), self.split(self.v(x))  # (b * h, n, dh)
        scores = q @ k.transpose(1, 2) / self.head_size**0.5  # (b * h, n, n)
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(diagonal=1)  # (n, n)
        if self.causal:
            scores = scores.masked_fill(future, -math.inf)  # (b * h, n, n)
        probs = scores.softmax(dim=-1)  # (b * h, n, n)
        heads = self.dropout(probs) @ v  # (b * h, n, dh)
        att = heads.view(b, self.num_heads, n, self.head_size).transpose(1, 2).reshape(b, n, -1)  # (b, n, hidden)
        att = self.mix(att)  # (b, n, hidden)
        return (att, probs) if return_attention else att
"""

MODEL_ANSWER = INIT + FORWARD

SPLIT = "x.view(b, n, self.num_heads, self.head_size).transpose(1, 2)"
MIX = "self.mix(att)"
FILL = "scores.masked_fill(future, -math.inf)"
DROPPED = "self.dropout(probs) @ v"
START = "b, n, _ = x.shape\n        k, q, v"

WRONG = (
    *score_mistakes(MODEL_ANSWER, "self.head_size", fails=(SCORES,)),
    *softmax_mistakes(MODEL_ANSWER),
    edited("scaled-by-hidden", MODEL_ANSWER, ("self.head_size**0.5", "self.mix.in_features**0.5"), fails=(SCORES,)),
    edited("scaled-by-heads", MODEL_ANSWER, ("self.head_size**0.5", "self.num_heads**0.5"), fails=(SCORES,)),
    edited(
        "softmax-over-heads",
        MODEL_ANSWER,
        (SOFTMAX, "scores.view(b, self.num_heads, n, n).softmax(dim=1).flatten(0, 1)"),
    ),
    *one_layer_for_all(
        MODEL_ANSWER, "self.split(self.k(x)), self.split(self.q(x)), self.split(self.v(x))", fails=(SCORES, MIXING)
    ),
    edited(
        "all-three-split-together",
        MODEL_ANSWER,
        (
            "k, q, v = self.split(self.k(x)), self.split(self.q(x)), self.split(self.v(x))",
            "joined = torch.cat([self.k(x), self.q(x), self.v(x)], dim=-1).view(b, n, self.num_heads, -1)\n"
            "        k, q, v = joined.transpose(1, 2).flatten(0, 1).chunk(3, dim=-1)",
        ),
        fails=(SCORES, MIXING),
    ),
    edited(
        "another-mixing-layer",
        MODEL_ANSWER,
        ("self.num_heads = num_heads\n", "self.num_heads = num_heads\n        self.proj = nn.Linear(hidden, hidden)\n"),
        ("self.mix(att)", "self.proj(att)"),
        fails=(MIXING,),
    ),
    edited("split-by-view", MODEL_ANSWER, (SPLIT, "x.view(b, self.num_heads, n, self.head_size)"), fails=(SCORES,)),
    edited(
        "split-interleaved",
        MODEL_ANSWER,
        (SPLIT, "x.view(b, n, self.head_size, self.num_heads).permute(0, 3, 1, 2)"),
        fails=(SCORES,),
    ),
    edited("merged-without-transpose", MODEL_ANSWER, (".transpose(1, 2).reshape(b, n, -1)", ".reshape(b, n, -1)")),
    edited(
        "merged-interleaved",
        MODEL_ANSWER,
        (".transpose(1, 2).reshape(b, n, -1)", ".permute(0, 2, 3, 1).reshape(b, n, -1)"),
    ),
    edited(
        "heads-before-batch",
        MODEL_ANSWER,
        (SPLIT, "x.view(b, n, self.num_heads, self.head_size).permute(2, 0, 1, 3)"),
        fails=(SCORES,),
    ),
    edited("no-mixing", MODEL_ANSWER, (MIX, "att")),
    edited("no-mixing-bias", MODEL_ANSWER, (MIX, "att @ self.mix.weight.T")),
    edited("keys-as-values", MODEL_ANSWER, ("self.dropout(probs) @ v", "self.dropout(probs) @ k")),
    edited("no-mask", MODEL_ANSWER, ("if self.causal:", "if False:"), fails=(MASK,)),
    edited("always-masked", MODEL_ANSWER, ("if self.causal:", "if True:"), fails=(MASK,)),
    edited("mask-hides-diagonal", MODEL_ANSWER, ("diagonal=1", "diagonal=0"), fails=(MASK,)),
    edited(
        "mask-hides-diagonal-finite",
        MODEL_ANSWER,
        ("diagonal=1", "diagonal=0"),
        ("-math.inf", "-1e9"),
        fails=(MASK,),
        hint="mask-hides-diagonal",
    ),
    edited("mask-one-too-many", MODEL_ANSWER, ("diagonal=1", "diagonal=2"), fails=(MASK,)),
    edited("mask-wrong-triangle", MODEL_ANSWER, (".triu(diagonal=1)", ".tril(diagonal=-1)"), fails=(MASK,)),
    edited("mask-inverted", MODEL_ANSWER, (FILL, "scores.masked_fill(~future, -math.inf)"), fails=(MASK,)),
    edited(
        "mask-after-softmax",
        MODEL_ANSWER,
        (FILL, "scores"),
        (SOFTMAX, f"{SOFTMAX}.masked_fill(future, 0) if self.causal else {SOFTMAX}"),
        fails=(MASK,),
    ),
    edited("masked-with-zero", MODEL_ANSWER, ("-math.inf", "0"), fails=(MASK,)),
    edited(
        "masked-by-value",
        MODEL_ANSWER,
        (FILL, "scores.masked_fill(torch.triu(scores, diagonal=1) != 0, -math.inf)"),
        fails=(MASK,),
    ),
    edited(
        "positions-replace-input",
        MODEL_ANSWER,
        (
            START,
            START.replace("k, q, v", "x = torch.linspace(-2, 2, n).to(x)[None, :, None].expand_as(x)\n        k, q, v"),
        ),
        fails=(SCORES,),
    ),
    edited("no-dropout", MODEL_ANSWER, (DROPPED, "probs @ v")),
    edited(
        "dropout-on-scores", MODEL_ANSWER, (SOFTMAX, "self.dropout(scores).softmax(dim=-1)"), (DROPPED, "probs @ v")
    ),
    edited("dropout-after-mixing", MODEL_ANSWER, (MIX, f"self.dropout({MIX})"), (DROPPED, "probs @ v")),
    edited("dropout-in-eval-mode", MODEL_ANSWER, (DROPPED, "F.dropout(probs, self.dropout.p) @ v")),
    edited("weights-not-flattened", MODEL_ANSWER, ("(att, probs) if", "(att, probs.view(b, self.num_heads, n, n)) if")),
    edited("scores-for-weights", MODEL_ANSWER, ("(att, probs) if", "(att, scores) if")),
)

# Two mistakes, and errors, cost points only in the parts that they are about.
RETURNED = "(att, probs) if"
HEADS_FIRST = "probs.view(b, self.num_heads, n, n).transpose(0, 1).flatten(0, 1)"
MASKED = "if self.causal:"
UNMIXED = (MIX, "att")
UNFLATTENED = (RETURNED, "(att, probs.view(b, self.num_heads, n, n)) if")
PARTLY_RIGHT = tuple(
    edited(name, MODEL_ANSWER, *edits, fails=fails, hint=hint)
    for name, hint, fails, *edits in (
        ("no-mixing-four-axes", "no-mixing", (MIXING,), UNMIXED, UNFLATTENED),
        ("no-mixing-heads-first", "no-mixing", (MIXING,), UNMIXED, (RETURNED, f"(att, {HEADS_FIRST}) if")),
        ("no-mixing-transposed", "no-mixing", (MIXING,), UNMIXED, (RETURNED, "(att, probs.mT) if")),
        ("no-mixing-no-mask", "no-mixing", (MASK, MIXING), UNMIXED, (MASKED, "if False:")),
        ("no-mixing-always-masked", "no-mixing", (MASK, MIXING), UNMIXED, (MASKED, "if True:")),
        ("four-axes-no-mask", "no-mask", (MASK, MIXING), UNFLATTENED, (MASKED, "if False:")),
        (
            "by-length-hides-diagonal",
            "scaled-by-length",
            (SCORES, MASK),
            ("self.head_size**0.5", "n**0.5"),
            ("diagonal=1", "diagonal=0"),
        ),
        ("mask-raises", "shapes-do-not-fit", (MASK,), (FILL, "scores.masked_fill(future[1:], -math.inf)")),
        ("weights-raise", "raises", (MIXING,), (RETURNED, "(att, weights) if")),
        ("weights-always", "not-a-tensor", (MIXING,), (f"{RETURNED} return_attention else att", "att, probs")),
    )
)

MISBEHAVING = (
    *PARTLY_RIGHT,
    *misbehaviours(
        MODEL_ANSWER, "MultiHeadSelfAttention.forward", longer=(4, 17), calls=6, parts=(SCORES, MASK, MIXING)
    ),
    only_in_training(MODEL_ANSWER, "MultiHeadSelfAttention.forward", (SCORES, MASK, MIXING)),
    loses_a_length_of_one(MODEL_ANSWER, "MultiHeadSelfAttention.forward"),
    overflowing_softmax(MODEL_ANSWER, fails=(SCORES, MASK, MIXING)),
    edited("masked-with-minus-a-hundred", MODEL_ANSWER, ("-math.inf", "-100"), fails=(MASK,), hint="other-sizes"),
    *(
        edited(name, MODEL_ANSWER, *edits, hint="not-halved")
        for name, edits in {
            "dropout-on-heads": [(DROPPED, "self.dropout(probs @ v)")],
            "dropout-on-values": [(DROPPED, "probs @ self.dropout(v)")],
            "dropout-before-mixing": [(DROPPED, "probs @ v"), (MIX, "self.mix(self.dropout(att))")],
            "dropout-twice": [(DROPPED, "self.dropout(self.dropout(probs)) @ v")],
            "dropout-only-if-strong": [(DROPPED, "(self.dropout(probs) if self.dropout.p > 0.9 else probs) @ v")],
            "dropout-not-rescaled": [
                (DROPPED, "(self.dropout(probs) * (1 - self.dropout.p if self.training else 1)) @ v")
            ],
        }.items()
    ),
    edited(
        "ready-made-function",
        MODEL_ANSWER,
        ("heads = self.dropout(probs) @ v", "heads = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)"),
        fails=(SCORES, MASK, MIXING),
        hint="ready-made-attention",
    ),
    *comment_mistakes(MODEL_ANSWER, "probs = scores.softmax(dim=-1)", "(b * h, n, n)", "(b, h, n, n)", SHAPES),
    *style_mistakes(MODEL_ANSWER, "heads = self", STYLE),
)

# Each writes shapes in another way.
RIGHT_FORWARDS = {
    "four-axes": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        h, dh = self.num_heads, self.head_size
        q, k, v = (f(x).view(b, n, h, dh).transpose(1, 2) for f in (self.q, self.k, self.v))  # [b, h, n, dh]
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(dh)  # [b, h, n, dh] @ [b, h, dh, n] -> [b, h, n, n]
        if self.causal:
            visible = torch.tril(torch.ones(n, n, device=x.device))  # [n, n]
            scores = scores.masked_fill(visible == 0, float("-inf"))  # [b, h, n, n]
        probs = F.softmax(scores, dim=-1)  # [b, h, n, n]
        att = torch.matmul(self.dropout(probs), v).transpose(1, 2).contiguous().view(b, n, -1)  # [b, n, h * dh]
        att = self.mix(att)  # [b, n, h * dh] @ [h * dh, h * dh] -> [b, n, h * dh]
        if return_attention:
            return att, probs.reshape(b * h, n, n)  # [b, n, h * dh], [b * h, n, n]
        return att
""",
    "comments-below": """\
    def forward(self, x, return_attention=False):
        bs, seq, _ = x.shape
        # Scores.
        k = self.k(x).view(bs, seq, self.num_heads, self.head_size).transpose(1, 2)
        # shape [batch_size, num_heads, seq_len, head_size]
        # 'k' [batch_size, seq_len, input_size]
        # -> view [batch_size, seq_len, num_heads, head_size]
        # -> transpose [batch_size, num_heads, seq_len, head_size]
        q = self.q(x).view(bs, seq, self.num_heads, self.head_size).transpose(1, 2)
        # 'q' [batch_size, seq_len, hidden] -> view [batch_size, seq_len, num_heads, head_size]
        # -> transpose [batch_size, num_heads, seq_len, head_size]
        v = self.v(x).view(bs, seq, self.num_heads, self.head_size).transpose(1, 2)
        # [batch_size, num_heads, seq_len, head_size]
        scores = torch.matmul(q, k.transpose(-2, -1)) / self.head_size**0.5
        # shape [batch_size, num_heads, seq_len, seq_len]
        # 'q' [batch_size, num_heads, seq_len, head_size]
        # @ 'k.T' [batch_size, num_heads, head_size, seq_len]
        # -> [batch_size, num_heads, seq_len, seq_len]
        if self.causal:
            mask = torch.triu(torch.ones(seq, seq, device=x.device), diagonal=1).bool()  # [seq_len, seq_len]
            scores = scores.masked_fill(mask[None, None, :, :], float("-inf"))  # [bs, num_heads, seq_len, seq_len]
        probs = F.softmax(scores, dim=-1)  # [bs, num_heads, seq_len, seq_len]
        dropped = self.dropout(probs)  # [bs, num_heads, seq_len, seq_len]
        att = torch.matmul(dropped, v)
        # [bs, num_heads, seq_len, seq_len]
        # @ [bs, num_heads, seq_len, head_size] -> [bs, num_heads, seq_len, head_size]
        probs = probs.reshape(bs * self.num_heads, seq, seq)
        # 'probs' [bs, num_heads, seq_len, seq_len]
        # -> reshape [bs * num_heads, seq_len, seq_len]
        att = att.transpose(1, 2).contiguous().view(bs, seq, -1)  # [bs, seq_len, hidden]
        att = self.mix(att)
        # [bs, seq_len, hidden] @ [hidden, hidden] -> [bs, seq_len, hidden]
        if return_attention:
            return att, probs
        return att
""",
    "einsum": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        q, k, v = (f(x).unflatten(2, (self.num_heads, -1)) for f in (self.q, self.k, self.v))  # (b, n, h, dh) each
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.head_size**-0.5  # (b, h, i, j)
        if self.causal:
            scores = scores + torch.full((n, n), -torch.inf, device=x.device, dtype=x.dtype).triu(1)  # (b, h, i, j)
        probs = scores.softmax(-1)  # (b, h, i, j)
        att = self.mix(torch.einsum("bhij,bjhd->bihd", self.dropout(probs), v).flatten(2))  # (b, n, hidden)
        return (att, probs.flatten(0, 1)) if return_attention else att  # (b, n, hidden), (b*h, i, j)
""",
    "loop-over-heads": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        heads, weights = [], []
        for h in range(self.num_heads):
            part = slice(h * self.head_size, (h + 1) * self.head_size)
            q, k, v = self.q(x)[..., part], self.k(x)[..., part], self.v(x)[..., part]  # (b, n, head_size)
            scores = torch.bmm(q, k.mT) / self.head_size**0.5  # (b, n, n)
            if self.causal:
                scores[:, *torch.triu_indices(n, n, 1)] = -torch.inf
            weights.append(scores.softmax(-1))
            heads.append(self.dropout(weights[-1]) @ v)
        att = self.mix(torch.cat(heads, dim=-1))  # (b, n, num_heads * head_size)
        if not return_attention:
            return att
        return att, torch.stack(weights, dim=1).view(-1, n, n)  # (b, n, hidden), (b * num_heads, n, n)
""",
    "where-and-own-softmax": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        h, dh = self.num_heads, self.head_size
        q = (self.q(x) / dh**0.5).reshape(b, n, h, dh).permute(0, 2, 1, 3)  # (b, n, h, dh) -> (b, h, n, dh)
        k = self.k(x).reshape(b, n, h, dh).permute(0, 2, 3, 1)  # (b, h, dh, n)
        v = self.v(x).reshape(b, n, h, dh).permute(0, 2, 1, 3)  # (b, h, n, dh)
        scores = q @ k  # (b, h, n, n)
        if self.causal:
            i = torch.arange(n, device=x.device)  # (n,)
            hidden = torch.tensor(-torch.inf, device=x.device, dtype=x.dtype)
            scores = torch.where(i[:, None] >= i, scores, hidden)  # (b, h, n, n)
        e = (scores - scores.max(dim=-1, keepdim=True).values).exp()  # (b, h, n, n)
        probs = e / e.sum(-1, keepdim=True)  # (b, h, n, n) / (b, h, n, 1) -> (b, h, n, n)
        att = self.mix((self.dropout(probs) @ v).permute(0, 2, 1, 3).reshape(b, n, h * dh))  # (b, n, h * dh)
        if return_attention:
            return att, probs.reshape(b * h, n, n)  # (b, n, h * dh) and (b * h, n, n)
        return att
""",
    "baddbmm-and-finite-fill": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        h, dh = self.num_heads, self.head_size
        q, k, v = [f(x).view(b, n, h, dh).transpose(1, 2).reshape(b * h, n, dh) for f in (self.q, self.k, self.v)]
        # each: view (b, n, h, dh) -> transpose (b, h, n, dh) -> reshape (b * h, n, dh)
        bias = x.new_zeros(b * h, n, n)  # (b * h, n, n)
        if self.causal:
            bias = bias + x.new_ones(n, n).triu(1) * -1e4  # (b * h, n, n)
        probs = F.softmax(torch.baddbmm(bias, q, k.transpose(1, 2), alpha=dh**-0.5), dim=2)  # (b * h, n, n)
        att = torch.bmm(self.dropout(probs), v).view(b, h, n, dh).transpose(1, 2).reshape(b, n, h * dh)
        # (b * h, n, dh) -> view (b, h, n, dh) -> transpose (b, n, h, dh) -> reshape (b, n, h * dh)
        att = self.mix(att)  # (b, n, h * dh)
        return (att, probs) if return_attention else att
""",
    "large-negative-fill": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        # (b, self.num_heads, n, self.head_size)
        scores = q @ k.mT / self.head_size**0.5  # (b, self.num_heads, n, n)
        if self.causal:
            scores = scores.masked_fill(torch.ones(n, n, device=x.device).triu(1) == 1, -1e4)
            # (b, self.num_heads, n, n)
        probs = scores.softmax(dim=-1)  # (b, self.num_heads, n, n)
        att = self.mix((self.dropout(probs) @ v).transpose(1, 2).flatten(2))  # (b, n, hidden)
        return (att, probs.flatten(0, 1)) if return_attention else att  # (b, n, hidden), (b * self.num_heads, n, n)
""",
    "dropped-weights-returned": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        # [b, h, n, dh]
        scores = q @ k.mT * self.head_size**-0.5  # [b, h, n, n]
        if self.causal:
            scores = scores.tril() + torch.full_like(scores, float("-inf")).triu(1)  # [b, h, n, n]
        probs = self.dropout(scores.softmax(dim=-1))  # [b, h, n, n]
        att = self.mix((probs @ v).transpose(1, 2).reshape(b, n, -1))  # [b, n, d]
        probs = probs.reshape(b * self.num_heads, n, n)  # [b, h, n, n] → [b * h, n, n]
        return (att, probs) if return_attention else att
""",
    "split-into-chunks": """\
    def heads(self, x):
        return torch.stack(x.chunk(self.num_heads, dim=-1), dim=1)  # b x h x n x dh

    def forward(self, x, return_attention=False):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))  # b x h x n x dh
        scores = q @ k.mT / math.sqrt(self.head_size)  # b x h x n x n
        if self.causal:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)  # b x h x n x n
        probs = scores.softmax(-1)  # b x h x n x n
        att = self.mix(torch.cat((self.dropout(probs) @ v).unbind(1), dim=-1))  # [b x n x hidden]
        return (att, probs.flatten(0, 1)) if return_attention else att  # [b x n x hidden], [b*h x n x n]
""",
    "mixing-head-by-head": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        # (2, 3, 7, 5)
        scores = q @ k.mT / q.shape[-1] ** 0.5  # (2, 3, 7, 7)
        if self.causal:
            scores = scores.masked_fill(scores.new_ones(n, n).triu(1).bool(), float("-inf"))  # (2, 3, 7, 7)
        probs = torch.softmax(scores, dim=-1)  # (2, 3, 7, 7)
        mix = self.mix.weight.view(-1, self.num_heads, self.head_size)  # (15, 3, 5)
        att = torch.einsum("bhij,bhjd,ohd->bio", self.dropout(probs), v, mix) + self.mix.bias  # (2, 7, 15)
        return (att, probs.reshape(-1, n, n)) if return_attention else att  # (2, 7, 15), (6, 7, 7)
""",
    "float64": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        q, k, v = (f(x).double().view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        # (b, h, n, dh) each, from (b, n, h * dh)
        scores = q @ k.mT / q.shape[-1] ** 0.5  # (b, h, n, n)
        if self.causal:
            scores = scores.masked_fill(scores.new_ones(n, n).triu(1).bool(), float("-inf"))  # (b, h, n, n)
        probs = torch.softmax(scores, dim=-1)  # (b, h, n, n)
        att = (self.dropout(probs) @ v).transpose(1, 2).flatten(2)  # (b, n, h * dh)
        att = att @ self.mix.weight.double().T + self.mix.bias  # (b, n, h * dh)
        return (att, probs.flatten(0, 1)) if return_attention else att  # (b, n, h * dh), (b * h, n, n)
""",
}

MULTI_HEAD_ATTENTION_RECORD = ValueRecord(
    public=MULTI_HEAD_ATTENTION,
    title="Several heads, with and without a causal mask",
    defines="MultiHeadSelfAttention",
    parts=(
        Part(SCORES, 3, part_values(scores_are_right, weights_in_any_layout)),
        Part(MASK, 1, part_values(mask_is_right, weights_in_any_layout)),
        Part(MIXING, 2, mixing),
        Part(SHAPES, 0, shape_comments),
        Part(STYLE, 0, style, runs=False),
    ),
    properties=(
        SEQUENCES_APART,
        input_matters("output", "weights", "output_causal", "weights_causal"),
        rows_sum_to_one("weights", "weights_causal"),
        ignores_the_future("output_causal"),
    ),
    first_sizes={"b": 2, "n": 7, "input_size": 11, "num_heads": 3, "head_size": 5},
    other_length={"b": 4, "n": 17},
    other_sizes={
        "b": 8,
        "n": 9,
        "input_size": 10,
        "num_heads": 4,
        "head_size": 6,
        "magnitude": 7,  # some query's largest visible score is below -100, and no query's is below -1,000
    },
    ones=("n", "num_heads"),
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right={name: INIT + forward for name, forward in RIGHT_FORWARDS.items()},
)
