"""Topic 02: several heads, with and without a causal mask."""

import math
import random

import numpy as np

from grading.judge import values
from grading.mistakes import (
    KEYS_AS_VALUES,
    READY_MADE,
    SOFTMAX,
    attention_mistakes,
    misbehaviours,
    only_in_training,
)
from grading.properties import INPUT_MATTERS, SEQUENCES_APART, ignores_the_future, rows_sum_to_one
from grading.record import Arrays, Part, Record, dyadic, edited, softmax
from transformer_lm.checks.multi_head_attention import MULTI_HEAD_ATTENTION


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input and the weights of the four layers; all scores of the first `silent_heads` heads are 0."""
    hidden = sizes["num_heads"] * sizes["head_size"]
    case = {
        "x": dyadic(rng, sizes["b"], sizes["n"], sizes["input_size"], bound=2 * sizes.get("magnitude", 1)),
        "num_heads": np.array(sizes["num_heads"]),
    }
    for layer in ("k", "q", "v", "mix"):
        width = hidden if layer == "mix" else sizes["input_size"]
        case[f"{layer}_weight"] = dyadic(rng, hidden, width, bound=0.75)
        case[f"{layer}_bias"] = dyadic(rng, hidden, bound=1)
    silent = sizes.get("silent_heads", 0) * sizes["head_size"]
    case["q_weight"][:silent], case["q_bias"][:silent] = 0, 0
    return case


def reference(case: Arrays) -> Arrays:
    """Return outputs and weights of all heads, one head after the other."""
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
    return outputs


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
        return x.view(b, n, self.num_heads, self.head_size).transpose(1, 2).flatten(0, 1)

    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        k, q, v = self.split(self.k(x)), self.split(self.q(x)), self.split(self.v(x))
        scores = q @ k.transpose(1, 2) / self.head_size**0.5
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(diagonal=1)
        if self.causal:
            scores = scores.masked_fill(future, -math.inf)
        probs = scores.softmax(dim=-1)
        heads = self.dropout(probs) @ v
        att = heads.view(b, self.num_heads, n, self.head_size).transpose(1, 2).reshape(b, n, -1)
        att = self.mix(att)
        return (att, probs) if return_attention else att
"""

MODEL_ANSWER = INIT + FORWARD

SPLIT = "x.view(b, n, self.num_heads, self.head_size).transpose(1, 2)"
MIX = "self.mix(att)"
FILL = "scores.masked_fill(future, -math.inf)"
DIAGONAL = "The mask hides the diagonal: a position may read itself and what came before."

WRONG = (
    *attention_mistakes(MODEL_ANSWER, "self.head_size"),
    edited(
        "scaled-by-hidden",
        "The scores are scaled by the width of all heads together; each dot product runs over one head only.",
        MODEL_ANSWER,
        ("self.head_size**0.5", "self.mix.in_features**0.5"),
    ),
    edited(
        "scaled-by-heads",
        "The scores are scaled by the number of heads; what matters is how wide each of them is.",
        MODEL_ANSWER,
        ("self.head_size**0.5", "self.num_heads**0.5"),
    ),
    edited(
        "softmax-over-heads",
        "The softmax runs over the heads of a sequence, so heads compete with each other. Which axis holds the keys?",
        MODEL_ANSWER,
        (SOFTMAX, "scores.view(b, self.num_heads, n, n).softmax(dim=1).flatten(0, 1)"),
    ),
    edited(
        "split-by-view",
        "The heads are split by view or reshape alone: the numbers of one head now come from several positions.",
        MODEL_ANSWER,
        (SPLIT, "x.view(b, self.num_heads, n, self.head_size)"),
    ),
    edited(
        "split-interleaved",
        "The heads are interleaved: each must be a block of neighbouring features.",
        MODEL_ANSWER,
        (SPLIT, "x.view(b, n, self.head_size, self.num_heads).permute(0, 3, 1, 2)"),
    ),
    edited(
        "merged-without-transpose",
        "The heads are merged without being transposed back: each output holds numbers of several positions.",
        MODEL_ANSWER,
        (".transpose(1, 2).reshape(b, n, -1)", ".reshape(b, n, -1)"),
    ),
    edited(
        "merged-interleaved",
        "The heads are merged number by number: head after head must stand side by side.",
        MODEL_ANSWER,
        (".transpose(1, 2).reshape(b, n, -1)", ".permute(0, 2, 3, 1).reshape(b, n, -1)"),
    ),
    edited(
        "heads-before-batch",
        "Batch and heads are folded together in the wrong order and come apart mixed up.",
        MODEL_ANSWER,
        (SPLIT, "x.view(b, n, self.num_heads, self.head_size).permute(2, 0, 1, 3)"),
    ),
    edited("no-mixing", "The mixing layer is missing: nothing combines the heads.", MODEL_ANSWER, (MIX, "att")),
    edited(
        "no-mixing-bias", "The bias of the mixing layer is missing.", MODEL_ANSWER, (MIX, "att @ self.mix.weight.T")
    ),
    edited("keys-as-values", KEYS_AS_VALUES, MODEL_ANSWER, ("self.dropout(probs) @ v", "self.dropout(probs) @ k")),
    edited(
        "no-mask",
        "The mask has no effect: with causal=True positions still read the future.",
        MODEL_ANSWER,
        ("if self.causal:", "if False:"),
    ),
    edited(
        "always-masked",
        "The mask is always applied: without causal=True every position reads every other.",
        MODEL_ANSWER,
        ("if self.causal:", "if True:"),
    ),
    edited("mask-hides-diagonal", DIAGONAL, MODEL_ANSWER, ("diagonal=1", "diagonal=0")),
    edited("mask-hides-diagonal-finite", DIAGONAL, MODEL_ANSWER, ("diagonal=1", "diagonal=0"), ("-math.inf", "-1e9")),
    edited(
        "mask-one-too-many",
        "The mask leaves one position of the future visible.",
        MODEL_ANSWER,
        ("diagonal=1", "diagonal=2"),
    ),
    edited(
        "mask-wrong-triangle",
        "The mask hides the past and shows the future: it is on the wrong triangle.",
        MODEL_ANSWER,
        (".triu(diagonal=1)", ".tril(diagonal=-1)"),
    ),
    edited(
        "mask-inverted",
        "The mask is inverted: what it hides should be seen, and what it shows should be hidden.",
        MODEL_ANSWER,
        (FILL, "scores.masked_fill(~future, -math.inf)"),
    ),
    edited(
        "mask-after-softmax",
        "The mask comes after the softmax: the future takes its share first, and the rows no longer sum to 1.",
        MODEL_ANSWER,
        (FILL, "scores"),
        (SOFTMAX, f"{SOFTMAX}.masked_fill(future, 0) if self.causal else {SOFTMAX}"),
    ),
    edited(
        "masked-with-zero",
        "Masked scores are set to 0 before the softmax, but a score of 0 still gets weight: e to the 0 is 1.",
        MODEL_ANSWER,
        ("-math.inf", "0"),
    ),
    edited(
        "masked-by-value",
        "The mask is found from the values of the scores: it must depend on positions alone.",
        MODEL_ANSWER,
        (FILL, "scores.tril() + torch.where(scores.triu(1) != 0, -1.0, 0.0)"),
    ),
    edited(
        "weights-not-flattened",
        "Batch and heads are two axes of the weights; they must be one, sequence by sequence.",
        MODEL_ANSWER,
        ("(att, probs) if", "(att, probs.view(b, self.num_heads, n, n)) if"),
    ),
    edited(
        "scores-for-weights",
        "These are the scores before the softmax, not the weights.",
        MODEL_ANSWER,
        ("(att, probs) if", "(att, scores) if"),
    ),
)

MISBEHAVING = (
    *misbehaviours(MODEL_ANSWER, "MultiHeadSelfAttention.forward", longer=(4, 17), calls=4),
    only_in_training(MODEL_ANSWER, "MultiHeadSelfAttention.forward"),
    edited(
        "ready-made-function",
        READY_MADE,
        MODEL_ANSWER,
        ("heads = self.dropout(probs) @ v", "heads = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)"),
    ),
)

RIGHT_FORWARDS = {
    "four-axes": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        h, dh = self.num_heads, self.head_size
        q, k, v = (f(x).view(b, n, h, dh).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(dh)
        if self.causal:
            visible = torch.tril(torch.ones(n, n, device=x.device))
            scores = scores.masked_fill(visible == 0, float("-inf"))
        probs = F.softmax(scores, dim=-1)
        att = torch.matmul(self.dropout(probs), v).transpose(1, 2).contiguous().view(b, n, -1)
        att = self.mix(att)
        if return_attention:
            return att, probs.reshape(b * h, n, n)
        return att
""",
    "einsum": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        q, k, v = (f(x).unflatten(2, (self.num_heads, -1)) for f in (self.q, self.k, self.v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.head_size**-0.5
        if self.causal:
            scores = scores + torch.full((n, n), -torch.inf, device=x.device, dtype=x.dtype).triu(1)
        probs = scores.softmax(-1)
        att = self.mix(torch.einsum("bhij,bjhd->bihd", self.dropout(probs), v).flatten(2))
        return (att, probs.flatten(0, 1)) if return_attention else att
""",
    "loop-over-heads": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        heads, weights = [], []
        for h in range(self.num_heads):
            part = slice(h * self.head_size, (h + 1) * self.head_size)
            q, k, v = self.q(x)[..., part], self.k(x)[..., part], self.v(x)[..., part]
            scores = torch.bmm(q, k.mT) / self.head_size**0.5
            if self.causal:
                scores[:, *torch.triu_indices(n, n, 1)] = -torch.inf
            weights.append(scores.softmax(-1))
            heads.append(self.dropout(weights[-1]) @ v)
        att = self.mix(torch.cat(heads, dim=-1))
        return (att, torch.stack(weights, dim=1).view(-1, n, n)) if return_attention else att
""",
    "where-and-own-softmax": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        h, dh = self.num_heads, self.head_size
        q = (self.q(x) / dh**0.5).reshape(b, n, h, dh).permute(0, 2, 1, 3)
        k = self.k(x).reshape(b, n, h, dh).permute(0, 2, 3, 1)
        v = self.v(x).reshape(b, n, h, dh).permute(0, 2, 1, 3)
        scores = q @ k
        if self.causal:
            i = torch.arange(n, device=x.device)
            scores = torch.where(i[:, None] >= i, scores, torch.tensor(-torch.inf, device=x.device, dtype=x.dtype))
        e = (scores - scores.max(dim=-1, keepdim=True).values).exp()
        probs = e / e.sum(-1, keepdim=True)
        att = self.mix((self.dropout(probs) @ v).permute(0, 2, 1, 3).reshape(b, n, h * dh))
        if return_attention:
            return att, probs.reshape(b * h, n, n)
        return att
""",
    "baddbmm-and-finite-fill": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        h, dh = self.num_heads, self.head_size
        q, k, v = [f(x).view(b, n, h, dh).transpose(1, 2).reshape(b * h, n, dh) for f in (self.q, self.k, self.v)]
        bias = x.new_zeros(b * h, n, n)
        if self.causal:
            bias = bias + x.new_ones(n, n).triu(1) * -1e4
        probs = F.softmax(torch.baddbmm(bias, q, k.transpose(1, 2), alpha=dh**-0.5), dim=2)
        att = torch.bmm(self.dropout(probs), v).view(b, h, n, dh).transpose(1, 2).reshape(b, n, h * dh)
        att = self.mix(att)
        return (att, probs) if return_attention else att
""",
    "split-into-chunks": """\
    def heads(self, x):
        return torch.stack(x.chunk(self.num_heads, dim=-1), dim=1)

    def forward(self, x, return_attention=False):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        scores = q @ k.mT / math.sqrt(self.head_size)
        if self.causal:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
        probs = scores.softmax(-1)
        att = self.mix(torch.cat((self.dropout(probs) @ v).unbind(1), dim=-1))
        return (att, probs.flatten(0, 1)) if return_attention else att
""",
    "mixing-head-by-head": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(scores.new_ones(n, n).triu(1).bool(), float("-inf"))
        probs = torch.softmax(scores, dim=-1)
        mix = self.mix.weight.view(-1, self.num_heads, self.head_size)
        att = torch.einsum("bhij,bhjd,ohd->bio", self.dropout(probs), v, mix) + self.mix.bias
        return (att, probs.reshape(-1, n, n)) if return_attention else att
""",
    "float64": """\
    def forward(self, x, return_attention=False):
        b, n, _ = x.shape
        q, k, v = (f(x).double().view(b, n, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(scores.new_ones(n, n).triu(1).bool(), float("-inf"))
        probs = torch.softmax(scores, dim=-1)
        att = (self.dropout(probs) @ v).transpose(1, 2).flatten(2)
        att = att @ self.mix.weight.double().T + self.mix.bias
        return (att, probs.flatten(0, 1)) if return_attention else att
""",
}

RECORDS = (
    Record(
        public=MULTI_HEAD_ATTENTION,
        title="Several heads, with and without a causal mask",
        defines="MultiHeadSelfAttention",
        parts=(Part("multi-head-attention-check", 6, values),),
        hides=(
            "attention.create_causal_mask",
            "attention.attention_weights",
            "attention._corner",
            "attention.self_attention",
            "attention.self_attention_layer",
            "attention.multi_head_attention_layer",
            "modeling_attention.MultiHeadSelfAttention",
            "modeling_attention.CausalSelfAttention",
        ),
        forbids_attention=True,
        properties=(
            SEQUENCES_APART,
            INPUT_MATTERS,
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
            "magnitude": 4,
            "silent_heads": 1,
        },
        draw=draw,
        reference=reference,
        model_answer=MODEL_ANSWER,
        wrong=WRONG,
        misbehaving=MISBEHAVING,
        right={name: INIT + forward for name, forward in RIGHT_FORWARDS.items()},
    ),
)
