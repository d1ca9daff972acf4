"""Topic 01: keys, queries and values in one product; attention scores; one attention head."""

import math
import random

import numpy as np

from grading.form import shape_comments, short_forward, style
from grading.judge import layers, values
from grading.mistakes import (
    KEYS_AS_VALUES,
    KEYS_VIEWED,
    SCALED_BY_LENGTH,
    SOFTMAX,
    comment_mistakes,
    loses_a_length_of_one,
    misbehaviours,
    one_layer_for_all,
    only_in_training,
    overflowing_softmax,
    scaling_mistakes,
    score_mistakes,
    softmax_mistakes,
    style_mistakes,
)
from grading.properties import SEQUENCES_APART, input_matters
from grading.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited, softmax
from transformer_lm.checks.ready_made import READY_MADE
from transformer_lm.checks.topic_01_self_attention.attention_scores import ATTENTION_SCORES
from transformer_lm.checks.topic_01_self_attention.kqv import KQV, kqv_parameters
from transformer_lm.checks.topic_01_self_attention.linear_layers import CONSTANT
from transformer_lm.checks.topic_01_self_attention.self_attention import SELF_ATTENTION, self_attention_layers

# --- kqv ----------------------------------------------------------------------------------------


def draw_kqv(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input and the weights of one linear layer that makes keys, queries and values."""
    b, n, input_size, hidden = (sizes[name] for name in ("b", "n", "input_size", "hidden"))
    return {
        "x": dyadic(rng, b, n, input_size, bound=2 * sizes.get("magnitude", 1)),
        "weight": dyadic(rng, 3 * hidden, input_size, bound=0.75),
        "bias": dyadic(rng, 3 * hidden, bound=1),
    }


def reference_kqv(case: Arrays) -> Arrays:
    """Return keys, queries and values, each from its own third of the layer."""
    thirds = zip(np.split(case["weight"], 3), np.split(case["bias"], 3), strict=True)
    outputs = [case["x"] @ weight.T + bias for weight, bias in thirds]
    return dict(zip(("keys", "queries", "values"), outputs, strict=True))


KQV_PARAMETERS = """\
def create_kqv_parameters(input_size, hidden):
    return nn.Linear(input_size, 3 * hidden)


"""

KQV_ANSWER = (
    KQV_PARAMETERS
    + """\
def kqv(x, kqv_parameters):
    keys, queries, values = kqv_parameters(x).chunk(3, dim=-1)
    return keys, queries, values
"""
)


def wrong_order(name: str, order: str) -> WrongAnswer:
    """Return the answer that hands the three back in another order."""
    hint = f"The three are right but in another order: yours come as {order}."
    return edited(name, hint, KQV_ANSWER, ("return keys, queries, values", f"return {order}"))


KQV_WRONG = (
    wrong_order("queries-first", "queries, keys, values"),
    wrong_order("values-second", "keys, values, queries"),
    wrong_order("backwards", "values, queries, keys"),
    wrong_order("values-first", "values, keys, queries"),
    wrong_order("queries-first-keys-last", "queries, values, keys"),
    edited(
        "no-bias",
        "The bias of the layer is missing: you use its weights only.",
        KQV_ANSWER,
        ("kqv_parameters(x)", "(x @ kqv_parameters.weight.T)"),
    ),
    edited(
        "interleaved",
        "The three are interleaved: every third number goes to the same one. Each must be a block of its own.",
        KQV_ANSWER,
        (".chunk(3, dim=-1)", ".unflatten(-1, (-1, 3)).unbind(-1)"),
    ),
    edited(
        "view-without-position",
        "The three are cut out of the flattened sequence: each position must keep its own key, query and value.",
        KQV_ANSWER,
        ("kqv_parameters(x).chunk(3, dim=-1)", "kqv_parameters(x).view(x.shape[0], 3, x.shape[1], -1).unbind(1)"),
    ),
    edited(
        "reshape-three-first",
        "The three are cut out of the whole batch in the order of memory: each position must keep its own.",
        KQV_ANSWER,
        ("kqv_parameters(x).chunk(3, dim=-1)", "kqv_parameters(x).reshape(3, *x.shape[:2], -1).unbind(0)"),
    ),
    edited(
        "batch-overwritten",
        "Every sequence gets the result of the first one: the batch axis is lost on the way.",
        KQV_ANSWER,
        ("kqv_parameters(x)", "kqv_parameters(x)[:1].expand(x.shape[0], -1, -1)"),
    ),
)

ONE_PRODUCT = "One product is enough: the layer holds the weights of all three, and takes the whole batch."
LINEAR = "nn.Linear(input_size, 3 * hidden)"


def wrong_parameters(name: str, hint: str, layer: str) -> WrongAnswer:
    """Return the answer that makes another layer."""
    return edited(name, hint, KQV_ANSWER, (LINEAR, layer), fails=("kqv-check-parameters",))


NARROW = "The layer is too narrow for all that must come out of it."

KQV_MISBEHAVING = (
    *misbehaviours(KQV_ANSWER, "kqv", longer=(3, 13)),
    loses_a_length_of_one(KQV_ANSWER, "kqv"),
    edited(
        "three-products",
        ONE_PRODUCT,
        KQV_ANSWER,
        ("keys, queries, values = kqv_parameters(x)", "keys, queries, values = torch.cat(parts, dim=-1)"),
        (
            "def kqv(x, kqv_parameters):\n",
            "def kqv(x, kqv_parameters):\n"
            "    weights = zip(kqv_parameters.weight.chunk(3), kqv_parameters.bias.chunk(3))\n"
            "    parts = [F.linear(x, weight, bias) for weight, bias in weights]\n",
        ),
    ),
    edited(
        "one-product-a-sequence",
        ONE_PRODUCT,
        KQV_ANSWER,
        ("kqv_parameters(x)", "torch.stack([kqv_parameters(sequence) for sequence in x])"),
    ),
    *(
        edited(
            f"weights-all-{value}",
            CONSTANT,
            KQV_ANSWER,
            (f"return {LINEAR}", f"layer = {LINEAR}\n    nn.init.constant_(layer.weight, {value})\n    return layer"),
            fails=("kqv-check-parameters",),
        )
        for value in (0, 0.02)
    ),
    wrong_parameters("one-key-wide", NARROW, "nn.Linear(input_size, hidden)"),
    wrong_parameters("queries-and-keys-only", NARROW, "nn.Linear(input_size, 2 * hidden)"),
    wrong_parameters(
        "sizes-swapped",
        "The two sizes are swapped: nn.Linear takes the size in, then the size out.",
        "nn.Linear(3 * hidden, input_size)",
    ),
    wrong_parameters(
        "parameters-without-bias",
        "The layer has no bias; nn.Linear has one unless you switch it off.",
        "nn.Linear(input_size, 3 * hidden, bias=False)",
    ),
    wrong_parameters(
        "fixed-sizes",
        "A position of input_size numbers goes in; count the numbers that must come out of it.",
        "nn.Linear(7, 33)",
    ),
    wrong_parameters(
        "frozen-parameters",
        "The layer is frozen, so it cannot learn: leave its requires_grad as it is.",
        "nn.Linear(input_size, 3 * hidden).requires_grad_(False)",
    ),
    wrong_parameters(
        "bare-tensor", "It must be an nn.Linear itself.", "nn.Parameter(torch.randn(3 * hidden, input_size))"
    ),
    wrong_parameters(
        "three-layers",
        "It must be an nn.Linear itself.",
        "nn.ModuleList([nn.Linear(input_size, hidden) for _ in range(3)])",
    ),
)

KQV_RIGHT = {
    name: KQV_PARAMETERS + answer
    for name, answer in {
        "split": """\
def kqv(x, kqv_parameters):
    hidden = kqv_parameters.out_features // 3
    return torch.split(kqv_parameters(x), hidden, dim=2)
""",
        "slices": """\
def kqv(x, kqv_parameters):
    y = kqv_parameters(x)
    h = y.shape[-1] // 3
    return y[..., :h], y[..., h : 2 * h], y[:, :, 2 * h :]
""",
        "view": """\
def kqv(x, kqv_parameters):
    b, n, _ = x.shape
    return kqv_parameters(x).view(b, n, 3, -1).unbind(2)
""",
        "einsum": """\
def kqv(x, linear):
    y = torch.einsum("bnd,hd->bnh", x, linear.weight) + linear.bias
    return y.tensor_split(3, dim=-1)
""",
        "float64": """\
def kqv(x, linear):
    y = F.linear(x.double(), linear.weight.double(), linear.bias.double())
    return tuple(y.chunk(3, -1))
""",
        "list": """\
def kqv(x, kqv_parameters):
    return list(torch.chunk(kqv_parameters.forward(x), 3, dim=2))
""",
        "product-by-hand": """\
def kqv(x, kqv_parameters):
    together = x @ kqv_parameters.weight.T + kqv_parameters.bias
    return torch.tensor_split(together, 3, -1)
""",
        "narrow": """\
def kqv(x, kqv_parameters):
    together = kqv_parameters(x)
    size = together.size(-1) // 3
    return tuple(together.narrow(-1, third * size, size) for third in range(3))
""",
    }.items()
}

# --- attention-scores ---------------------------------------------------------------------------


def draw_scores(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return queries and keys of two different lengths."""
    bound = 2 * sizes.get("magnitude", 1)
    return {
        "queries": dyadic(rng, sizes["b"], sizes["i"], sizes["dh"], bound=bound),
        "keys": dyadic(rng, sizes["b"], sizes["j"], sizes["dh"], bound=bound),
    }


def reference_scores(case: Arrays) -> Arrays:
    """Return the dot products over the root of the width."""
    products = np.einsum("bik,bjk->bij", case["queries"], case["keys"])
    return {"scores": products / math.sqrt(case["keys"].shape[-1])}


SCORES_ANSWER = """\
def attention_scores(queries, keys):
    dh = queries.shape[-1]
    return queries @ keys.transpose(1, 2) / dh**0.5
"""

SCORES_WRONG = (
    *scaling_mistakes(SCORES_ANSWER, "dh"),
    edited("scaled-by-queries", SCALED_BY_LENGTH, SCORES_ANSWER, ("queries.shape[-1]", "queries.shape[1]")),
    edited("scaled-by-keys", SCALED_BY_LENGTH, SCORES_ANSWER, ("queries.shape[-1]", "keys.shape[1]")),
    edited(
        "scaled-by-batch",
        "The scores are scaled by the size of the batch; a sequence must not depend on how many others there are.",
        SCORES_ANSWER,
        ("queries.shape[-1]", "queries.shape[0]"),
    ),
    edited(
        "weights-already",
        "These are weights, after a softmax; the scores are what goes into it.",
        SCORES_ANSWER,
        ("dh**0.5", "dh**0.5).softmax(dim=-1)"),
        ("return queries", "return (queries"),
    ),
    edited(
        "weights-over-queries-already",
        "These are weights, after a softmax over the queries; the scores are what goes into a softmax.",
        SCORES_ANSWER,
        ("dh**0.5", "dh**0.5).softmax(dim=1)"),
        ("return queries", "return (queries"),
    ),
    edited(
        "cosine",
        "Queries and keys are normalised first: that gives cosines, which forget how long a vector is.",
        SCORES_ANSWER,
        (
            "queries @ keys.transpose(1, 2) / dh**0.5",
            "F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).transpose(1, 2)",
        ),
    ),
    edited(
        "keys-viewed",
        KEYS_VIEWED,
        SCORES_ANSWER,
        ("keys.transpose(1, 2)", "keys.reshape(keys.shape[0], dh, -1)"),
    ),
    edited(
        "negative-distance",
        "These are negative distances between queries and keys, not dot products.",
        SCORES_ANSWER,
        ("queries @ keys.transpose(1, 2)", "-torch.cdist(queries, keys)"),
    ),
    edited(
        "transposed",
        "There is a row for each key and a column for each query: the two have changed places.",
        SCORES_ANSWER,
        ("queries @ keys.transpose(1, 2)", "keys @ queries.transpose(1, 2)"),
    ),
)

SCORES_RIGHT = {
    "einsum": """\
def attention_scores(a, b):
    return torch.einsum("bid,bjd->bij", a, b) / math.sqrt(a.size(-1))
""",
    "bmm": """\
def attention_scores(queries, keys):
    return torch.bmm(queries, keys.permute(0, 2, 1)).div(queries.size(2) ** 0.5)
""",
    "baddbmm": """\
def attention_scores(queries, keys):
    b, i, dh = queries.shape
    return torch.baddbmm(queries.new_zeros(b, i, keys.shape[1]), queries, keys.mT, alpha=dh**-0.5)
""",
    "scaled-queries": """\
def attention_scores(queries, keys):
    queries = queries / math.sqrt(queries.shape[-1])
    return queries @ keys.mT
""",
    "loop": """\
def attention_scores(queries, keys):
    rows = [(queries[:, i, None] * keys).sum(-1) for i in range(queries.shape[1])]
    return torch.stack(rows, dim=1) / math.sqrt(keys.shape[-1])
""",
    "flattened-loop-over-batch": """\
def attention_scores(queries, keys):
    return torch.stack([q.mm(k.t()) for q, k in zip(queries, keys)]) * keys.size(2) ** -0.5
""",
    "tensordot": """\
def attention_scores(queries, keys):
    products = torch.tensordot(queries, keys, dims=([2], [2]))  # (b, i, b, j)
    return torch.diagonal(products, dim1=0, dim2=2).permute(2, 0, 1) / keys.shape[-1] ** 0.5
""",
    "float64": """\
def attention_scores(queries, keys):
    return queries.double() @ keys.double().transpose(-2, -1) / math.sqrt(keys.shape[-1])
""",
}

SCORES_MISBEHAVING = (
    *misbehaviours(SCORES_ANSWER, "attention_scores", longer=(3, 13)),
    loses_a_length_of_one(SCORES_ANSWER, "attention_scores"),
    edited(
        "ready-made",
        READY_MADE,
        SCORES_ANSWER,
        (
            "return queries @ keys.transpose(1, 2) / dh**0.5",
            "one_hot = torch.eye(keys.shape[1]).expand(len(keys), -1, -1)\n"
            "    return F.scaled_dot_product_attention(queries, keys, one_hot).log()",
        ),
    ),
)

# --- self-attention -----------------------------------------------------------------------------


def draw_self_attention(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return an input and the weights of the three layers."""
    bound = 2 * sizes.get("magnitude", 1)
    case = {"x": dyadic(rng, sizes["b"], sizes["n"], sizes["input_size"], bound=bound)}
    for layer in "kqv":
        case[f"{layer}_weight"] = dyadic(rng, sizes["hidden"], sizes["input_size"], bound=0.75)
        case[f"{layer}_bias"] = dyadic(rng, sizes["hidden"], bound=1)
    return case


def reference_self_attention(case: Arrays) -> Arrays:
    """Return softmax(Q K^T / sqrt(dh)) V."""
    keys, queries, values = (case["x"] @ case[f"{layer}_weight"].T + case[f"{layer}_bias"] for layer in "kqv")
    scores = np.einsum("bik,bjk->bij", queries, keys) / math.sqrt(keys.shape[-1])
    return {"output": softmax(scores) @ values}


HEAD_ANSWER = """\
class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.k = nn.Linear(input_size, hidden)
        self.q = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)

    def forward(self, x):
        k, q, v = self.k(x), self.q(x), self.v(x)  # (b, n, hidden) each
        scores = q @ k.transpose(1, 2) / self.q.out_features**0.5  # (b, n, n)
        weights = scores.softmax(dim=-1)  # (b, n, n)
        return weights @ v  # (b, n, hidden)
"""

WIDTH = "self.q.out_features"

HEAD_WRONG = (
    *score_mistakes(HEAD_ANSWER, WIDTH),
    *softmax_mistakes(HEAD_ANSWER),
    *one_layer_for_all(HEAD_ANSWER, "self.k(x), self.q(x), self.v(x)"),
    *(
        edited(
            name,
            "Features attend to features: a score compares two positions, each by all of its features.",
            HEAD_ANSWER,
            ("q @ k.transpose(1, 2)", "q.transpose(1, 2) @ k"),
            ("weights @ v", averaged),
        )
        for name, averaged in (
            ("over-features", "v @ weights.transpose(1, 2)"),
            ("over-features-transposed", "v @ weights"),
        )
    ),
    edited(
        "scaled-after-softmax",
        "The scale is applied after the softmax: rows of the weights no longer sum to 1.",
        HEAD_ANSWER,
        (f" / {WIDTH}**0.5", ""),
        (SOFTMAX, f"{SOFTMAX} / {WIDTH}**0.5"),
    ),
    edited(
        "softmax-over-everything",
        "The softmax runs over the whole matrix: each row of the weights must sum to 1 by itself.",
        HEAD_ANSWER,
        (SOFTMAX, "scores.flatten(1).softmax(dim=-1).view_as(scores)"),
    ),
    edited(
        "weights-transposed",
        "The weights are transposed before they meet the values: row i must weigh what query i reads.",
        HEAD_ANSWER,
        ("weights @ v", "weights.transpose(1, 2) @ v"),
    ),
    edited("keys-as-values", KEYS_AS_VALUES, HEAD_ANSWER, ("weights @ v", "weights @ k")),
    edited(
        "queries-as-values",
        "The queries are averaged in place of the values.",
        HEAD_ANSWER,
        ("weights @ v", "weights @ q"),
    ),
    edited(
        "scores-of-the-input",
        "The scores compare the input with itself: queries and keys are never used.",
        HEAD_ANSWER,
        ("q @ k.transpose(1, 2)", "x @ x.transpose(1, 2)"),
    ),
    edited(
        "input-as-values",
        "The input is averaged in place of the values.",
        HEAD_ANSWER,
        ("weights @ v", "weights @ x"),
    ),
    edited(
        "weights-returned", "These are the weights: the values are still to be averaged.", HEAD_ANSWER, (" @ v", "")
    ),
    edited(
        "queries-as-keys",
        "The scores compare queries with queries: the keys are never used.",
        HEAD_ANSWER,
        ("q @ k.transpose", "q @ q.transpose"),
    ),
    edited(
        "keys-viewed",
        KEYS_VIEWED,
        HEAD_ANSWER,
        ("k.transpose(1, 2)", "k.reshape(k.shape[0], k.shape[2], -1)"),
    ),
    edited(
        "hardmax",
        "Each query reads its best key only: the weights are an argmax, not a softmax.",
        HEAD_ANSWER,
        (SOFTMAX, "F.one_hot(scores.argmax(dim=-1), x.shape[1]).to(v.dtype)"),
    ),
    edited(
        "causal",
        "The future is masked: in this exercise every position reads every other.",
        HEAD_ANSWER,
        (f"{WIDTH}**0.5", f"{WIDTH}**0.5 + torch.full_like(q @ k.mT, -math.inf).triu(1)"),
    ),
    edited(
        "residual",
        "The input or the values are added on top: return the weighted average alone.",
        HEAD_ANSWER,
        ("weights @ v", "weights @ v + v"),
    ),
)

HEAD_SHAPES, HEAD_STYLE = "self-attention-check-shapes", "self-attention-check-style"
BOTH = ("self-attention-check-layers", "self-attention-check")
K = "self.k = nn.Linear(input_size, hidden)"

HEAD_MISBEHAVING = (
    *misbehaviours(HEAD_ANSWER, "SelfAttention.forward", longer=(3, 13)),
    loses_a_length_of_one(HEAD_ANSWER, "SelfAttention.forward"),
    only_in_training(HEAD_ANSWER, "SelfAttention.forward"),
    overflowing_softmax(HEAD_ANSWER),
    edited(
        "ready-made-function",
        READY_MADE,
        HEAD_ANSWER,
        ("return weights @ v", "return F.scaled_dot_product_attention(q, k, v)"),
    ),
    edited(
        "ready-made-layer",
        READY_MADE,
        HEAD_ANSWER,
        (
            "return weights @ v",
            "attention = nn.MultiheadAttention(v.shape[-1], 1, batch_first=True)\n        return attention(q, k, v)[0]",
        ),
    ),
    edited(
        "one-layer-for-two",
        "Give each of the three a layer of its own, with its own weight and bias.",
        HEAD_ANSWER,
        ("self.q = nn.Linear(input_size, hidden)", "self.q = self.k"),
        fails=BOTH,
    ),
    edited(
        "layer-sizes-swapped",
        "The two sizes are swapped: nn.Linear takes the size in, then the size out.",
        HEAD_ANSWER,
        (K, "self.k = nn.Linear(hidden, input_size)"),
        fails=BOTH,
    ),
    edited(
        "layer-without-bias",
        "The layer has no bias; nn.Linear has one unless you switch it off.",
        HEAD_ANSWER,
        (K, "self.k = nn.Linear(input_size, hidden, bias=False)"),
        fails=BOTH,
    ),
    edited(
        "layer-misnamed",
        "Make the three layers in __init__, each under its own name.",
        HEAD_ANSWER,
        (K, "self.key = nn.Linear(input_size, hidden)"),
        ("self.k(x)", "self.key(x)"),
        fails=BOTH,
    ),
    edited(
        "no-module",
        "Derive your class from nn.Module.",
        HEAD_ANSWER,
        ("SelfAttention(nn.Module)", "SelfAttention"),
        fails=BOTH,
    ),
    *comment_mistakes(HEAD_ANSWER, "weights = scores.softmax(dim=-1)", "(b, n, n)", "(b, n, hidden)", HEAD_SHAPES),
    *style_mistakes(HEAD_ANSWER, "weights = scores", HEAD_STYLE),
)

HEAD_INIT, _, _ = HEAD_ANSWER.partition("    def forward")

# Each with another way to write shapes.
HEAD_FORWARDS = {
    "einsum": """\
    def forward(self, x):
        scores = torch.einsum("bid,bjd->bij", self.q(x), self.k(x)) / math.sqrt(self.q.out_features)  # [b, i, j]
        return torch.einsum("bij,bjd->bid", torch.softmax(scores, -1), self.v(x))  # [b, i, d]
""",
    "bmm-in-three-lines": """\
    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)  # [batch_size, seq_len, hidden] each
        probs = F.softmax(torch.bmm(q, k.mT) / q.shape[-1] ** 0.5, dim=-1)  # [batch_size, seq_len, seq_len]
        return torch.bmm(probs, v)
        # [batch_size, seq_len, seq_len] @ [batch_size, seq_len, hidden] -> [batch_size, seq_len, hidden]
""",
    "baddbmm": """\
    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)  # (b, n, dh), (b, n, dh), (b, n, dh)
        scores = torch.baddbmm(x.new_zeros(b, n, n), q, k.mT, alpha=q.shape[-1] ** -0.5)  # (b, n, n)
        return scores.softmax(2).bmm(v)  # (b, n, n) @ (b, n, dh) -> (b, n, dh)
""",
    "own-softmax": """\
    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT / math.sqrt(self.q.out_features)  # b x n x n
        exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # b x n x n
        return exponentials @ self.v(x) / exponentials.sum(dim=-1, keepdim=True)  # b x n x hidden
""",
    "scaled-queries": """\
    def forward(self, x):
        q = self.q(x) / self.q.out_features**0.5  # x [N, L, E] -> q [N, L, H]
        return torch.softmax(q @ self.k(x).permute(0, 2, 1), dim=-1) @ self.v(x)
        # q [N, L, H] @ permuted [N, H, L] -> scores [N, L, L]
        # -> [N, L, H]
""",
    "loop-over-batch": """\
    def forward(self, x):
        rows = []
        for sequence in x:
            q, k, v = self.q(sequence), self.k(sequence), self.v(sequence)  # (n, hidden) each
            rows.append(F.softmax(q @ k.T / q.shape[1] ** 0.5, dim=1) @ v)
        return torch.stack(rows)  # (b, n, hidden)
""",
    "joined-weights": """\
    def forward(self, x):
        weight = torch.cat([self.q.weight, self.k.weight, self.v.weight])  # (3 * hidden, input_size)
        bias = torch.cat([self.q.bias, self.k.bias, self.v.bias])  # (3 * hidden,)
        q, k, v = F.linear(x, weight, bias).chunk(3, dim=-1)  # (b, n, 3 * hidden) -> (b, n, hidden)
        return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v  # (b, n, hidden)
""",
    "where-nothing-is-masked": """\
    def forward(self, x):
        # Shapes: (batch, query, key) and (batch, query, hidden).
        scores = self.q(x) @ self.k(x).mT / math.sqrt(self.q.out_features)  # [batch, query, key]
        visible = torch.ones_like(scores, dtype=torch.bool)  # [batch, query, key]
        scores = torch.where(visible, scores, torch.full_like(scores, float("-inf")))  # [batch, query, key]
        return scores.softmax(dim=-1) @ self.v(x)  # [batch, query, hidden]
""",
    "log-softmax": """\
    def forward(self, x):
        scores = self.q(x).matmul(self.k(x).transpose(-1, -2)).mul(self.q.out_features**-0.5)  # (2, 5, 5)
        return F.log_softmax(scores, dim=-1).exp().matmul(self.v(x))  # (2, 5, 5) @ (2, 5, 11) -> (2, 5, 11)
""",
    "float64": """\
    def forward(self, x):
        q, k, v = self.q(x).double(), self.k(x).double(), self.v(x).double()  # (b, n, d)
        return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v  # (b, n, d)
""",
}

RECORDS = (
    ValueRecord(
        public=KQV,
        title="Keys, queries and values in one product",
        defines="kqv",
        parts=(
            Part(
                "kqv-check-parameters",
                1,
                layers(kqv_parameters, "create_kqv_parameters", ("",)),
                calls="create_kqv_parameters",
            ),
            Part("kqv-check", 1, values),
        ),
        hides=("attention.create_kqv_parameters", "attention.kqv"),
        properties=(SEQUENCES_APART, input_matters("keys", "queries", "values")),
        first_sizes={"b": 2, "n": 5, "input_size": 7, "hidden": 11},
        other_length={"b": 3, "n": 13},
        other_sizes={"b": 4, "n": 13, "input_size": 6, "hidden": 10, "magnitude": 4},
        ones=("n",),
        draw=draw_kqv,
        reference=reference_kqv,
        model_answer=KQV_ANSWER,
        wrong=KQV_WRONG,
        misbehaving=KQV_MISBEHAVING,
        right=KQV_RIGHT,
    ),
    ValueRecord(
        public=ATTENTION_SCORES,
        title="Attention scores",
        defines="attention_scores",
        parts=(Part("attention-scores-check", 2, values),),
        hides=("attention.attention_scores", "modeling_attention.SimpleSelfAttention"),
        properties=(SEQUENCES_APART, input_matters("scores")),
        first_sizes={"b": 2, "i": 5, "j": 7, "dh": 11},
        other_length={"b": 3, "i": 13, "j": 17},
        other_sizes={"b": 6, "i": 10, "j": 13, "dh": 3, "magnitude": 4},
        ones=("i", "j"),
        draw=draw_scores,
        reference=reference_scores,
        model_answer=SCORES_ANSWER,
        wrong=SCORES_WRONG,
        misbehaving=SCORES_MISBEHAVING,
        right=SCORES_RIGHT,
    ),
    ValueRecord(
        public=SELF_ATTENTION,
        title="One attention head",
        defines="SelfAttention",
        parts=(
            Part("self-attention-check-layers", 1, layers(self_attention_layers, "SelfAttention", ("k", "q", "v"))),
            Part("self-attention-check", 3, values),
            Part(HEAD_SHAPES, 0, shape_comments),
            Part(HEAD_STYLE, 0, style, runs=False),
            Part("self-attention-check-length", 0, short_forward, runs=False),
        ),
        hides=("modeling_attention.SelfAttention", "modeling_attention._mask_of_padding"),
        properties=(SEQUENCES_APART, input_matters("output")),
        first_sizes={"b": 2, "n": 5, "input_size": 7, "hidden": 11},
        other_length={"b": 3, "n": 13},
        # Some exponential of a score always overflows.
        other_sizes={"b": 4, "n": 6, "input_size": 10, "hidden": 13, "magnitude": 8},
        ones=("n",),
        draw=draw_self_attention,
        reference=reference_self_attention,
        model_answer=HEAD_ANSWER,
        wrong=HEAD_WRONG,
        misbehaving=HEAD_MISBEHAVING,
        right={name: HEAD_INIT + forward for name, forward in HEAD_FORWARDS.items()},
    ),
)
