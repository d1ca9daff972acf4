"""The shape comments: right ones are accepted, mistakes are found, and the code stays as it was."""

import inspect
import json
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from transformer_lm.checks import EXERCISES, CheckFailed
from transformer_lm.checks.engine.observed_shapes import observe
from transformer_lm.checks.engine.shape_comments import Finding, check_shape_comments, findings

B, N, INPUT_SIZE, NUM_HEADS, HEAD_SIZE = 2, 7, 11, 3, 5
HIDDEN = NUM_HEADS * HEAD_SIZE

NAMES = {"torch": torch, "nn": nn, "F": F, "__name__": "cell"}

INIT = """\
class Attention(nn.Module):
    def __init__(self, input_size, hidden, num_heads, causal=False):
        super().__init__()
        self.k = nn.Linear(input_size, hidden)  # [input_size, hidden]
        self.q = nn.Linear(input_size, hidden)  # [input_size, hidden]
        self.v = nn.Linear(input_size, hidden)  # [input_size, hidden]
        self.mix = nn.Linear(hidden, hidden)
        self.num_heads = num_heads
        self.head_size = hidden // num_heads
        self.causal = causal

"""
ABOVE = INIT.count("\n")  # lines above a forward


def run_layer(answer) -> None:
    torch.manual_seed(0)
    for causal in (False, True):
        layer = answer(INPUT_SIZE, HIDDEN, NUM_HEADS, causal)
        layer(torch.randn(B, N, INPUT_SIZE))
        if "return_attention" in inspect.signature(layer.forward).parameters:
            layer(torch.randn(B, N, INPUT_SIZE), return_attention=True)


def run_function(answer) -> None:
    """Call f(x), f(x, layer) or f(q, k)."""
    names = list(inspect.signature(answer).parameters)
    given = {"x": (B, N, INPUT_SIZE), "q": (B, N, HEAD_SIZE), "k": (B, N + 2, HEAD_SIZE), "m": (N, INPUT_SIZE)}
    layer = nn.Linear(INPUT_SIZE, 3 * HEAD_SIZE)
    answer(*(layer if name == "layer" else torch.randn(given[name]) for name in names))


def found_in(source: str, name: str, run) -> list[Finding]:
    observations = observe(source, name, NAMES, run)
    return findings(source, json.loads(json.dumps(observations)))


def verdict(source: str) -> list[tuple[int, str]]:
    """Return lines and kinds: of a function f, or of the class Attention given by its forward."""
    if source.startswith("    def "):
        found = found_in(INIT + source, "Attention", run_layer)
        return [(finding.line - ABOVE, finding.kind) for finding in found]
    return [(finding.line, finding.kind) for finding in found_in(source, "f", run_function)]


HEADINGS = """\
    def forward(self, x):
        b, n, _ = x.shape
        h, dh = self.num_heads, self.head_size
        q = self.q(x).view(b, n, h, dh).transpose(1, 2)  # (b, h, n, dh)
        # split: (b, n, hidden) -> (b, n, h, dh)
        k = self.k(x).view(b, n, h, dh).transpose(1, 2)  # (b, h, n, dh)
        # Scores: (b, h, n, dh) @ (b, h, dh, n)
        # gives (b, h, n, n), one table per head
        scores = q @ k.mT / dh ** 0.5  # (b, h, n, n)
        # causal mask (n, n): True above the diagonal
        if self.causal:
            mask = torch.ones(n, n).triu(1).bool()  # (n, n)
            scores = scores.masked_fill(mask, float("-inf"))  # (b, h, n, n)
        att = scores.softmax(-1) @ k  # (b, h, n, dh)
        # (b, n, h, dh), then (b, n, hidden)
        att = att.transpose(1, 2).flatten(2)  # (b, n, hidden)
        # mix the heads, W_mix is (hidden, hidden)
        att = self.mix(att)  # (b, n, hidden)
        return att
"""

LAYERS = {
    "comments below the lines, as in the assignment": (
        """\
    def forward(self, x, return_attention=False):
        \"\"\"x: FloatTensor[batch_size, seq_len, input_size]\"\"\"
        bs, seq, _ = x.shape

        # YOUR CODE STARTS HERE
        keys = self.k(x).view(bs, seq, self.num_heads, self.head_size).transpose(1, 2)
        # shape [batch_size, num_heads, seq_len, head_size]
        # 'keys' [batch_size, seq_len, input_size]
        # -> view [batch_size, seq_len, num_heads, head_size]
        # -> transpose [batch_size, num_heads, seq_len, head_size]
        queries = self.q(x).view(bs, seq, self.num_heads, self.head_size).transpose(1, 2)
        # shape [batch_size, num_heads, seq_len, head_size]
        # 'queries' [batch_size, seq_len, input_size]
        # -> view [batch_size, seq_len, num_heads, head_size]
        # -> transpose [batch_size, num_heads, seq_len, head_size]
        values = self.v(x).view(bs, seq, self.num_heads, self.head_size).transpose(1, 2)
        # shape [batch_size, num_heads, seq_len, head_size]
        scores = torch.matmul(queries, keys.transpose(-2, -1)) / self.head_size ** 0.5
        # shape [batch_size, num_heads, seq_len, seq_len]
        # 'queries' [batch_size, num_heads, seq_len, head_size]
        # @ 'keys.T' [batch_size, num_heads, head_size, seq_len]
        # -> [batch_size, num_heads, seq_len, seq_len]
        # YOUR CODE ENDS HERE

        if self.causal:
            # Apply the mask to the scores, as x = torch.zeros(3, 5)  # shape [batch_size, seq_len]
            mask = torch.triu(torch.ones(seq, seq, device=x.device), diagonal=1).bool()  # [seq_len, seq_len]
            scores = scores.masked_fill(mask[None, None, :, :], float("-inf"))  # [bs, num_heads, seq_len, seq_len]

        probs = F.softmax(scores, dim=-1)  # [bs, num_heads, seq_len, seq_len]
        att = torch.matmul(probs, values)
        # [bs, num_heads, seq_len, seq_len]
        # @ [bs, num_heads, seq_len, head_size] -> [bs, num_heads, seq_len,
        # head_size]
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
        [],
    ),
    "a wrong view in between, and one line without": (
        """\
    def forward(self, x):
        b, n, _ = x.shape
        k = self.k(x).view(b, n, self.num_heads, self.head_size).transpose(1, 2)
        # 'k' [b, n, input_size] -> view [b, num_heads, n, head_size, 1] -> transpose [b, num_heads, n, head_size]
        q = self.q(x).view(b, n, self.num_heads, self.head_size).transpose(1, 2)
        # split into heads
        return q @ k.mT  # [b, num_heads, n, n]
""",
        [(3, "wrong"), (5, "missing")],
    ),
    "a loop over the heads": (
        """\
    def forward(self, x):
        b, n, _ = x.shape
        keys, queries, values = self.k(x), self.q(x), self.v(x)  # (b, n, hidden) each
        heads = []
        for h in range(self.num_heads):
            part = slice(h * self.head_size, (h + 1) * self.head_size)
            k = keys[..., part]  # (b, n, dh)
            q = queries[..., part]  # (b, n, dh)
            scores = q @ k.transpose(1, 2)  # (b, n, dh) @ (b, dh, n) -> (b, n, n)
            heads.append(scores.softmax(-1) @ values[..., part])  # (b, n, dh)
        return self.mix(torch.cat(heads, dim=-1))  # (b, n, h * dh)
""",
        [],
    ),
    "a loop over the heads with a stale comment": (
        """\
    def forward(self, x):
        b, n, _ = x.shape
        keys, queries = self.k(x), self.q(x)  # (b, n, hidden) each
        for h in range(self.num_heads):
            k = keys[..., h * self.head_size: (h + 1) * self.head_size]  # (b, n, hidden)
        return keys
""",
        [(5, "wrong")],
    ),
    "helper methods": (
        """\
    def split(self, t):
        b, n, hidden = t.shape
        t = t.view(b, n, self.num_heads, -1)  # (b, n, h, dh)
        return t.transpose(1, 2).reshape(b * self.num_heads, n, -1)  # (b * h, n, dh)

    def forward(self, x):
        k, q, v = (self.split(layer(x)) for layer in (self.k, self.q, self.v))  # (b*h, n, dh) each
        # (b, n, hidden) -> view (b, n, h, dh) -> (b*h, n, dh)
        scores = q @ k.mT  # (b*h, n, n)
        return self.mix(self.merged(scores.softmax(-1) @ v))  # (b, n, hidden)

    def merged(self, t):
        _, n, dh = t.shape
        return t.view(-1, self.num_heads, n, dh).transpose(1, 2).flatten(2)  # [b*h, n, dh] -> [b, n, h*dh]
""",
        [],
    ),
    "a return that depends, with both shapes": (
        """\
    def forward(self, x, return_attention=False):
        att = self.k(x)  # (b, n, hidden)
        probs = (att @ att.mT).softmax(-1)  # (b, n, n)
        return (self.mix(att), probs) if return_attention else self.mix(att)  # (b, n, hidden), (b, n, n)
""",
        [],
    ),
    "the layer's width taken for that of its input": (
        """\
    def forward(self, x):
        k = self.k(x)  # (b, n, input_size)
        q = self.q(x)  # (b, n, input_size)
        return q @ k.mT  # (b, n, n)
""",
        [(2, "wrong"), (3, "wrong")],
    ),
    "a product of the wrong names": (
        """\
    def forward(self, x):
        b, n, _ = x.shape
        h, dh = self.num_heads, self.head_size
        k = self.k(x).view(b, n, h, dh).transpose(1, 2)  # (b, h, n, dh)
        k = k.reshape(b * h, n, dh)  # (h*dh, n, dh)
        return k @ k.mT  # (b*h, n, n)
""",
        [(5, "wrong")],
    ),
    "sizes in words, divided": (
        """\
    def forward(self, x):
        b, n, _ = x.shape
        k = self.k(x).view(b, n, self.num_heads, -1)  # [batch, seq, num_heads, hidden / num_heads]
        k = k.transpose(1, 2).flatten(0, 1)  # [batch * num_heads, seq, hidden // num_heads]
        scores = k @ k.transpose(1, 2)  # [batch*num_heads, seq, seq]
        return scores.view(b, -1, n, n)  # [batch, num_heads, seq, seq]
""",
        [],
    ),
    "headings": (HEADINGS, []),
}

FUNCTIONS = {
    "brackets, swapped": (
        "def f(x):\n"
        "    y = x + 1  # [batch, seq, h]\n"
        "    y = x.transpose(0, 1)  # [batch, seq, h]\n"
        "    return y * 1  # [seq, batch, h]\n",
        [(3, "wrong")],
    ),
    "an arrow with a stranger before it": (
        "def f(x):\n    b, n, d = x.shape\n    return x.mT  # (b, d, n, n) -> (b, d, n)\n",
        [(3, "wrong")],
    ),
    "operands without a result": (
        "def f(x):\n    y = x @ x.mT  # [b, n, d] @ [b, d, n]\n    return y\n",
        [(2, "missing")],
    ),
    "times": (
        "def f(x):\n    y = x.mT  # b x d x n\n    y = y * 1  # [b x d x n]\n    return y + 1  # (b × d × n)\n",  # noqa: RUF001
        [],
    ),
    "one axis, wrong": (
        "def f(x):\n    n = x.shape[1]\n    y = x[0, 0]  # (n,)\n    return y + 1  # [n]\n",
        [(3, "wrong"), (4, "wrong")],
    ),
    "an axis of one": (
        "def f(x):\n"
        "    n = x.shape[1]\n"
        "    mask = torch.ones(n, n).tril()[None]  # (1, n, n)\n"
        "    return mask * 1  # (n, n, 1)\n",
        [(4, "wrong")],
    ),
    "numbers": (
        "def f(x):\n    y = x.mT  # [2, 11, 7]\n    return x @ y  # [2, 7, 11] @ [2, 11, 7] -> [2, 7, 7]\n",
        [],
    ),
    "numbers, wrong": ("def f(x):\n    y = x.mT  # [2, 7, 11]\n    return x @ y  # [2, 7, 7]\n", [(2, "wrong")]),
    "one shape for several": (
        "def f(x, layer):\n"
        "    k, q, v = layer(x).chunk(3, dim=-1)  # (b, n, dh) each, cut from (b, n, 3 * dh)\n"
        "    return k, q, v\n",
        [],
    ),
    "a shape for each": (
        "def f(x):\n    y, z = x.mT, x @ x.mT  # (b, d, n), (b, n, n)\n    return y, z\n",
        [],
    ),
    "a shape for each, in the wrong order": (
        "def f(x):\n    b, n, d = x.shape\n    y, z = x.mT, x @ x.mT  # (b, n, n), (b, d, n)\n    return y, z\n",
        [(3, "wrong")],
    ),
    "too few shapes for a tuple": (
        "def f(x):\n    b, n, d = x.shape\n    return x.mT, x @ x.mT  # (b, d, n)\n",
        [(3, "wrong")],
    ),
    "einsum, swapped": (
        "def f(q, k):\n"
        "    s = torch.einsum('bid,bjd->bji', q, k)  # (b, i, j)\n"
        "    s = s.mT  # (b, i, j)\n"
        "    return s.softmax(-1)  # (b, i, j)\n",
        [(2, "wrong")],
    ),
    "one name for two sizes": (
        "def f(q, k):\n"
        "    q, k = q * 1, k * 1  # (b, n, dh), (b, m, dh)\n"
        "    s = q @ k.mT  # (b, n, n)\n"
        "    return s.softmax(-1)  # (b, n, m)\n",
        [(3, "wrong")],
    ),
    "a wrong comment at the top leaves the right ones alone": (
        "def f(x):\n"
        "    y = x.mT  # (b, n, d)\n"
        "    y = x + 1  # (b, n, d)\n"
        "    z = y * 1  # (b, n, d)\n"
        "    return z @ y.mT  # (b, n, n)\n",
        [(2, "wrong")],
    ),
    "one wrong comment of three is the only one blamed": (
        "def f(m):\n    a = m.T @ m  # (n, n)\n    b = m @ a  # (n, d)\n    return b * 2  # (n, d)\n",
        [(2, "wrong")],
    ),
    "steps by several lines": (
        """\
def f(x, layer):
    b, n, _ = x.shape
    y = (
        layer(x)  # (b, n, 3 * dh)
        .view(b, n, 3, -1)  # (b, n, 3, dh)
        .transpose(1, 2)  # (b, 3, n, dh)
    )
    return y.flatten(
        2  # joins the last two
    )  # (b, 3, n*dh)
""",
        [],
    ),
    "in place, wrong": (
        """\
def f(x):
    b, n, d = x.shape
    scores = x @ x.mT  # (b, n, n)
    scores.masked_fill_(torch.ones(n, n).triu(1).bool(), float("-inf"))  # (b, n, d)
    scores /= d ** 0.5  # (b, d, n)
    scores[0] = 0  # (b, n, d)
    return scores
""",
        [(4, "wrong"), (5, "wrong"), (6, "wrong")],
    ),
    "words and no shape": (
        "def f(x):\n"
        "    y = x.softmax(-1)  # see (again) view(b, n, d), x[:, 0] (Vaswani, 2017)\n"
        "    return y  # done\n",
        [(2, "missing")],
    ),
    "a heading below": (
        "def f(x):\n"
        "    y = x.softmax(-1)  # (b, n, d)\n"
        "    # swap: (b, n, d) -> (b, d, n)\n"
        "    z = y.mT  # (b, d, n)\n"
        "    # and multiply\n"
        "    return x @ z  # (b, n, n)\n",
        [],
    ),
    "above the line instead of below": (
        "def f(x):\n"
        "    b, n, d = x.shape\n"
        "    # (b, d, n)\n"
        "    y = x.transpose(1, 2)\n"
        "    # (b, n, n)\n"
        "    return x @ y\n",
        [],
    ),
    "above several lines": (
        "def f(x):\n    # (b, n, d)\n    q = x * 1\n    k = x * 2\n    # (b, n, n)\n    return q @ k.mT\n",
        [],
    ),
    "above several lines, right for the first": (
        "def f(x):\n    b, n, d = x.shape\n    # (b, n, d)\n    q = x * 1\n    k = x.transpose(1, 2)\n    return q\n",
        [(5, "missing")],
    ),
    "a comment below one line is not that of the next": (
        "def f(x):\n    y = x * 1\n    # (b, n, d)\n    z = x * 2\n    return z\n",
        [(4, "missing")],
    ),
    "above, with where it comes from": (
        "def f(x):\n    b, n, d = x.shape\n    # y: (b, d, n)\n    y = x.mT  # from (b, n, d)\n"
        "    # z: (b, d, n)\n    z = x.mT  # from (b, n, d)\n    # (b, d, n)\n    return z * y\n",
        [],
    ),
    "one comment for a group": (
        "def f(x):\n    q = x * 1\n    k = x * 2\n    v = x * 3\n    # q, k, v: (b, n, d)\n"
        "    return q @ k.mT  # (b, n, n)\n",
        [],
    ),
    "a chain below that ends in the wrong order": (
        "def f(x):\n"
        "    y = x.transpose(1, 2)  # shape [b, d, n]\n"
        "    # 'x' [b, n, d] -> transpose [b, n, d]\n"
        "    return y @ x  # [b, d, d]\n",
        [(2, "wrong")],
    ),
    "a chain below in two sentences": (
        "def f(x):\n"
        "    y = x.transpose(1, 2).flatten(1)\n"
        "    # 'x' [b, n, d] -> transpose [b, d, n]\n"
        "    # and then flatten -> [b, d*n]\n"
        "    return y + 1  # [b, d*n]\n",
        [],
    ),
    "a line apart": ("def f(x):\n    y = x.transpose(1, 2)\n\n    # (b, d, n)\n\n    return y\n", [(2, "missing")]),
    "missing": ("def f(x):\n    y = x.transpose(1, 2)\n    return x @ y  # (b, n, n)\n", [(2, "missing")]),
    "nothing to comment on": (
        """\
def f(x):
    b, n, d = x.shape
    y = x
    parts = [x[0], x[1]]
    layer = nn.Linear(d, 5)  # [d, n]
    loss = x.sum()
    if n > 100:
        y = x.mT
    return y
""",
        [],
    ),
    "a decorator, a nested function, a lambda": (
        """\
@torch.no_grad()
def f(x):
    def swapped(t):
        return t.mT  # (b, d, n)

    double = lambda t: t * 2  # twice (b, n, d)
    y = double(swapped(x))  # (b, d, n)
    return x @ y  # (b, n, n)
""",
        [],
    ),
    "a wrong table": (
        "def f(x, layer):\n    b, n, d = x.shape\n    y = layer(x)  # [b, n, d] @ [n, e] -> [b, n, e]\n    return y\n",
        [(3, "wrong")],
    ),
}


@pytest.mark.parametrize("case", [*LAYERS.values(), *FUNCTIONS.values()], ids=[*LAYERS, *FUNCTIONS])
def test_right_comments_are_accepted_and_mistakes_found(case):
    source, expected = case
    assert verdict(source) == expected


ONE_LINE = """\
    def forward(self, x):
        b, n, _ = x.shape
        h, dh = self.num_heads, self.head_size
        k = self.k(x).view(b, n, h, dh).transpose(1, 2)  # (b, h, n, dh)
        y = k * 1  # {}
        return y
"""

IN_OTHER_WORDS = (
    "the values again, (b, h, n, dh), as in view(b, n)",
    "[b, h, n, dh], one (n, dh) matrix per head",
    "(b, h, n, dh) = (b, n, h, dh) transposed",
    "b x h x n x dh",
    "b × h × n × dh",  # noqa: RUF001
    "torch.Size([b, h, n, dh])",
    "(2, 3, 7, 5)",
    "(B, H, T, D)",
    "(b, self.num_heads, n, hidden / num_heads)",
)
NOT_UNDERSTOOD = (
    "b, h, n, dh",
    "[b h n dh]",
    "(b h n dh)",
    'Float[Tensor, "b h n dh"]',
    "{b, h, n, dh}",
    "bxhxnxdh",
    "(..., n, dh)",
    "(b, h, n, dh = hidden / h)",
    "[batch size, heads, length, width]",
    "[b, h, n, dh] -> one (n, dh) matrix per head",
    "(4, 8, 64, 32)",
    "(see the long paper)",
    "the mask, (n, n), is True above the diagonal",
)
WRONG = (
    "(b, n, h, dh)",
    "[b, h, n, dh] -> [n, dh]",
    "'k' [b, n, h, dh] -> transpose [b, n, h, dh]",
    "b x n x h x dh",
    "shape: (2, 7, 3, 5)",
    "(b, h, dh, n) @ (b, h, n, dh)",
    "the weights",
    "next",
    "",
)


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        *((comment, []) for comment in IN_OTHER_WORDS),
        *((comment, ["not understood"]) for comment in NOT_UNDERSTOOD),
        *(
            (comment, ["wrong" if "(" in comment or "[" in comment or " x " in comment else "missing"])
            for comment in WRONG
        ),
    ],
)
def test_comments_are_right_in_any_words_and_wrong_only_in_the_notation_of_the_assignments(comment, expected):
    found = verdict(ONE_LINE.format(comment))
    assert found == [(5, kind) for kind in expected]


@pytest.mark.parametrize(("right", "unclear", "is_free"), [(2, 2, True), (3, 1, True), (1, 2, False), (0, 1, False)])
def test_what_is_not_understood_is_free_only_beside_as_much_that_is_right(right, unclear, is_free):
    lines = ["    x = x * 2  # (b, n, d)"] * right + ["    x = x * 2  # [b n d]"] * unclear
    found = found_in("\n".join(["def f(x):", *lines, "    return x", ""]), "f", run_function)
    assert [finding.line for finding in found] == list(range(2 + right, 2 + right + unclear))
    assert {finding.costs for finding in found} == {not is_free}


def test_a_comment_for_every_shape_there_is_is_wrong():
    everything = "(b, h, n, n), (b, n, d), (b, n, hidden), (b, h, n, dh), (n, n), (b, h, n, dh)"
    assert verdict(ONE_LINE.format(everything)) == [(5, "wrong")]


def test_a_finding_says_what_is_claimed_and_what_there_was():
    source = (
        "def f(x):\n    b, n, d = x.shape\n    y = x * 2\n    z = x @ y.mT  # [b, n, d]\n"
        "    return z @ x  # (b, n, n, d) -> (b, n, d)\n"
    )
    assert found_in(source, "f", run_function) == [
        Finding(3, "missing", "`y` has no shape comment; its shape was (2, 7, 11)"),
        Finding(4, "wrong", "`z` is said to be [b, n, d], its shape was (2, 7, 7) (b=2, n=7, d=11)"),
        Finding(
            5,
            "wrong",
            "(b, n, n, d) is the shape of no tensor in this line (there are (2, 7, 7), (2, 7, 11))",
        ),
    ]


# --- notations at random ------------------------------------------------------------------------

SIZES = {"b": 2, "n": 7, "d": 12, "m": 5}
ALL_SIZES = SIZES | {"h": 3, "dh": 4}
FRAMES = ("{}", "shape {}", "scores: {}", "FloatTensor{}")


def written(names: list[str], style: str) -> str:
    """Return a shape in one notation; a name may be a product."""
    if style == "numbers":
        names = [str(size_of(name)) for name in names]
    inner = " x ".join(names) if style == "times" and len(names) > 1 else ", ".join(names)
    if style == "round":
        return f"({inner},)" if len(names) == 1 else f"({inner})"
    return f"[{inner}]"


def size_of(name: str) -> int:
    return eval(name, {}, dict(ALL_SIZES))


@st.composite
def chains(draw) -> tuple[list[str], list[list[str]], list[str]]:
    """Return lines of code, for each of them the shape it makes, and whether the line has a step in between."""
    axes, lines, shapes, steps = ["b", "n", "d"], [], [], []
    for _ in range(draw(st.integers(1, 5))):
        options = ["transpose", "permute", "matmul"]
        options += ["view"] if "d" in axes else []
        options += ["flatten"] if len(axes) > 1 else []
        option = draw(st.sampled_from(options))
        before = list(axes)
        if option == "transpose" and len(axes) > 1:
            first, second = draw(st.permutations(range(len(axes))))[:2]
            axes[first], axes[second] = axes[second], axes[first]
            code = f"x.transpose({first}, {second})"
        elif option == "view":
            place = axes.index("d")
            axes[place : place + 1] = ["h", "dh"]
            code = f"x.unflatten({place}, ({ALL_SIZES['h']}, {ALL_SIZES['dh']}))"
        elif option == "flatten" and len(axes) > 1:
            place = draw(st.integers(0, len(axes) - 2))
            axes[place : place + 2] = [f"{axes[place]}*{axes[place + 1]}"]
            code = f"x.flatten({place}, {place + 1})"
        elif option == "matmul":
            code = f"x @ torch.ones({size_of(axes[-1])}, {SIZES['m']})"
            axes[-1] = "m"
        else:
            order = draw(st.permutations(range(len(axes))))
            axes = [axes[place] for place in order]
            code = f"x.permute({', '.join(map(str, order))})"
        lines.append(code)
        shapes.append(list(axes))
        steps.append(before)
    return lines, shapes, steps


def commented(draw, lines: list[str], shapes: list[list[str]], steps: list[list[str]], sizes="b, n, d") -> str:
    """Return a function with a comment for each line, in any notation, on the line or below."""
    style = draw(st.sampled_from(["square", "round", "times", "numbers"]))
    text = ["def f(x):"]
    if style != "numbers":
        text.append(f"    {sizes} = x.shape")
    for line, shape, before in zip(lines, shapes, steps, strict=True):
        frame = draw(st.sampled_from(FRAMES if style not in ("round", "times") else FRAMES[:3]))
        comment = frame.format(written(shape, style))
        if draw(st.booleans()):
            arrow = draw(st.sampled_from(["->", "→", "=>"]))
            comment = f"{written(before, style)} {arrow} {comment}"
        place = draw(st.sampled_from(["on", "below", "continued"]))
        if place == "on":
            text.append(f"    x = {line}  # {comment}")
        elif place == "below":
            text += [f"    x = {line}", f"    # {comment}"]
        else:
            text += [f"    x = {line}  # 'x' {written(before, style)}", f"    # -> {comment}"]
    return "\n".join([*text, "    return x", ""])


def run_chain(answer) -> None:
    answer(torch.zeros(SIZES["b"], SIZES["n"], SIZES["d"]))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_comments_made_from_the_true_shapes_are_accepted_in_any_notation(data):
    sizes = data.draw(st.sampled_from(["b, n, d", "b, n, _", "b, *_", "*_, input_size"]))
    source = commented(data.draw, *data.draw(chains()), sizes)
    assert found_in(source, "f", run_chain) == [], source


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_one_wrong_axis_at_the_end_is_found(data):
    lines, shapes, steps = data.draw(chains())
    lines, shapes, steps = [*lines, "x * 1"], [*shapes, list(shapes[-1])], [*steps, shapes[-1]]
    place = data.draw(st.integers(0, len(shapes[-1]) - 1))
    said = [name for shape in [["b", "n", "d"], *shapes] for name in shape]
    others = [name for name in said if size_of(name) != size_of(shapes[-1][place])]
    shapes[-1][place] = data.draw(st.sampled_from(others))
    source = commented(data.draw, lines, shapes, steps)
    assert found_in(source, "f", run_chain), source


# --- the code stays as it was -------------------------------------------------------------------

EVERYTHING = '''\
from __future__ import annotations
import contextlib
%matplotlib inline
!pip install "nothing
print("side effect")

TOTAL = 0
ORDER = []


def noted(value):
    ORDER.append(value)
    return value


def doubled(function):
    def inner(*given, **options):
        return function(*given, **options) * 2
    return inner


@doubled
def helper(x, *rest, scale=1, **options):
    """Doc."""
    global TOTAL
    TOTAL += 1
    return x * scale + sum(rest)


def steps(x):
    for row in x:
        got = yield row
        if got:
            yield got


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.__hidden = d
        self.weight = nn.Parameter(torch.linspace(-1, 1, d * d).view(d, d))
        self.layers = nn.ModuleList([nn.Identity()])

    @property
    def hidden(self) -> int:
        return self.__hidden

    def forward(self, x):
        count = 0

        def counted(t):
            nonlocal count
            count += 1
            return t

        print(f"{x.shape!r:>20} {count=}")
        b: int
        b, (n, *_), d = x.shape[0], x.shape[1:], self.hidden
        y = z = counted(helper(x, *[1, 2], scale=2, **{"unused": 0}))
        rows = torch.stack([t for t in steps(y) if (s := t.sum()) is not None])
        first, *others = [noted(1), noted(2)], noted(3)
        rows[noted(0)], kept = (noted(4) * rows[0], noted(5))
        rows = rows if 0 < n <= 7 < 100 else None
        with contextlib.suppress(ZeroDivisionError), torch.enable_grad():
            rows = rows + 1 / 0
        for layer in self.layers:
            z = layer(z) if True else z
        key = lambda t: t @ self.weight
        z += (lambda: counted(rows))()
        match (b, n):
            case (2, size):
                z = z * size
            case _:
                z = None
        z = (
            key(z)
            .relu()
        )
        return z, count, s.item(), locals().keys() >= {"x", "b", "n", "d"}
'''


def test_watching_changes_neither_results_nor_gradients_nor_order():
    runs = []

    def run(answer) -> None:
        layer = answer(INPUT_SIZE)
        x = torch.linspace(0, 1, B * N * INPUT_SIZE).view(B, N, INPUT_SIZE).requires_grad_()
        z, *others = layer(x)
        z.square().sum().backward()
        order = list(answer.forward.__globals__["ORDER"])
        total = answer.forward.__globals__["TOTAL"]
        runs.append((z, x.grad, layer.weight.grad, torch.tensor([float(each) for each in others]), order, total))

    plain = "\n".join("" if line.startswith(("%", "!")) else line for line in EVERYTHING.split("\n"))
    namespace = dict(NAMES)
    exec(compile(plain, "plain", "exec", dont_inherit=True), namespace)
    run(namespace["Layer"])
    before = dict(NAMES)
    observations = observe(EVERYTHING, "Layer", NAMES, run)
    assert before == NAMES
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    json.dumps(observations)


def test_magics_and_prints_do_no_harm(capsys):
    source = "%%time\n!ls | grep 'a\nfiles = !ls\nprint('above')\ndef f(x):\n    print(x)\n    %time\n"
    source += "    return x * 2  # (b, n)\nf(3)\n"
    assert verdict(source) == [(8, "wrong")]
    assert capsys.readouterr().out == ""


def test_a_percent_sign_that_is_no_magic_stays():
    source = "def f(x):\n    y = (x\n         % 2)  # (b, n, d)\n    return y\n"
    assert verdict(source) == []


def test_observations_are_few_however_long_a_loop():
    source = "def g(t):\n    return t + 1\n\ndef f(x):\n"
    source += "    for i in range(500):\n        y = g(x[:, : 1 + i % 7])\n    return y * 1\n"
    observations = observe(source, "f", NAMES, run_function)
    assert len(observations) < 30
    assert max(len(call["statements"]) for call in observations) < 20
    assert [finding.line for finding in findings(source, observations)] == [2, 6, 7]


def test_a_cell_without_the_name_or_that_is_not_python_is_refused():
    with pytest.raises(ValueError, match="the cell must define f, got g"):
        observe("def g(x): return x", "f", NAMES | {"f": 1}, run_function)
    for source in ("def f(x:\n", "x = " + "(" * 500 + ")" * 500, "%\n" * 10_000, "x = 1\0"):
        with pytest.raises(ValueError, match=r"the cell must be Python|null bytes"):
            findings(source, [])


def test_an_error_in_the_code_comes_out():
    with pytest.raises(RuntimeError, match="size"):
        observe("def f(x):\n    return x @ x\n", "f", NAMES, run_function)


def malformed() -> list:
    good = observe("def f(x):\n    return x * 2\n", "f", NAMES, run_function)
    call, statement = good[0], good[0]["statements"][0]
    shapes = [None, "abc", 3, {}, [1], [["a"]], [[True]], [[-1]], [[2**50]], [[[1]]], [[1.5]], [[1] * 100], [[1]] * 999]
    worse = [statement | {part: shape} for part in ("shapes", "parts") for shape in shapes]
    worse += [statement | {"line": 99}, statement | {"line": []}, statement | {"column": None}, {}, None, 3]
    worse += [statement | {"targets": 3}, {key: statement[key] for key in statement if key != "kind"}]
    calls = [call | {"statements": [each]} for each in worse]
    calls += [
        call | {"statements": 3},
        call | {"statements": [statement] * 9999},
        call | {"function": "f"},
        {},
        None,
        "a",
    ]
    calls += [
        call | {part: bad} for part in ("values", "attributes") for bad in (3, [], {"a": "b"}, {3: 3}, {"a": [[]]})
    ]
    calls += [call | {"values": {"a": []}}, call | {"values": {"a": [True]}}, call | {"attributes": {"a": True}}]
    return [None, 3, "abc", {}, [good] * 5, good * 999, *([each] for each in calls)]


@pytest.mark.parametrize("observations", malformed(), ids=lambda observations: str(observations)[:60])
def test_malformed_observations_are_refused(observations):
    with pytest.raises(ValueError, match="observations must be those of observe"):
        findings("def f(x):\n    return x * 2\n", observations)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="()[],->→@bnd*/+-x.= '19", max_size=80))
def test_no_comment_breaks_the_reading(text):
    found = found_in(f"def f(x):\n    return x * 2  # {text}\n", "f", run_function)
    assert len(found) <= 1


def test_a_long_comment_without_a_shape_is_none():
    for text in (
        "(" * 19_000,
        "[b, " * 4000,
        "b x " * 4000,
        "-" * 19_000,
        "(A" * 9000,
        " " * 19_000,
    ):
        assert verdict(f"def f(x):\n    return x * 2  # {text}\n") == [(2, "missing")]


@pytest.mark.parametrize(
    "line",
    [
        f" y = x * 1  # {', '.join(['(q*q+0, q*q+1, q*q+2)'] * 30)}\n",
        " y=x*1 # (b, n, d)\n # 'a' (b, d, n) -> (b, n, d)\n",
        " y=x*1#b,n,d\n #{n,b,d}\n",
        " y=x*1\n #y,y:(b,n)\n",
    ],
)
def test_many_comments_are_read_in_time(line):
    source = "def f(x):\n" + line * (10_000 // len(line))
    observations = observe(source, "f", NAMES, lambda f: f(torch.empty(9999, 9998, 9997, device="meta")))
    start = time.process_time()
    findings(source, observations)
    assert time.process_time() - start < 10  # it takes about one second


def test_observations_without_a_statement_are_refused():
    source = "def f(x):\n    return x * 2\n"
    silent = [call | {"statements": []} for call in observe(source, "f", NAMES, run_function)]
    for observations in ([], silent):
        with pytest.raises(ValueError, match="observations must be those of observe"):
            findings(source, observations)
    assert findings("def f(x):\n    'Doc.'\n    return\n", []) == []


# --- in the notebook ----------------------------------------------------------------------------


class SelfAttention(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.q = nn.Linear(input_size, hidden)
        self.k = nn.Linear(input_size, hidden)
        self.v = nn.Linear(input_size, hidden)

    def forward(self, x):
        k, q, v = self.k(x), self.q(x), self.v(x)  # [b, n, input_size] @ [input_size, hidden] -> [b, n, hidden]
        return (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1) @ v  # (b, n, n) @ (b, n, hidden) -> (b, n, hidden)


class WrongComments(SelfAttention):
    def forward(self, x):
        k, q, v = self.k(x), self.q(x), self.v(x)  # (b, n, input_size)
        weights = (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1)
        return weights @ v  # (b, n, hidden)


def test_the_check_passes_in_one_line(capsys):
    check_shape_comments(EXERCISES["self-attention"], SelfAttention)
    assert capsys.readouterr().out == "✓ self-attention: every tensor's shape is given, and right.\n"


def test_the_check_names_lines_and_shapes_in_four_lines():
    with pytest.raises(CheckFailed) as caught:
        check_shape_comments(EXERCISES["self-attention"], WrongComments)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["tried", "yours", "expected", "hint"]
    assert "`weights` has no shape comment; its shape was (2, 5, 5)" in caught.value.yours


def test_an_answer_that_breaks_is_told_in_four_lines():
    with pytest.raises(CheckFailed, match="tried:"):
        check_shape_comments(EXERCISES["multi-head-attention"], SelfAttention)
