"""The exercise of topic 03 about a sequence classifier that passes the padding mask to its layers and its pool."""

import random

import numpy as np
from numpy.typing import NDArray

from grading.exercises.topic_03_classification.pools import draw_visible
from grading.judging.judge import values
from grading.judging.mistakes import misbehaviours, only_in_training
from grading.judging.properties import Ask, Property
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.topic_03_classification.sequence_classifier import SEQUENCE_CLASSIFIER, SHARES


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return tokens and weights; the embedding of padding is the largest, and the first class has negative scores.

    The token 0 is an ordinary word.
    """
    words, hidden, num_classes = (sizes[name] for name in ("words", "hidden", "num_classes"))
    pad = 1 + words // 2
    visible = draw_visible(rng, sizes["b"], sizes["n"])
    tokens = np.array([int(rng.random() * words) for _ in range(visible.size)]).reshape(visible.shape)
    tokens[tokens >= pad] += 1
    tokens[:, 0] = 0
    embed = dyadic(rng, words + 1, hidden, bound=2)
    embed[pad] += 6
    weight, bias = dyadic(rng, num_classes, hidden, bound=0.75), dyadic(rng, num_classes, bound=1)
    weight[0], bias[0] = -np.abs(weight[0]), -1  # pooled vectors are positive
    return {
        "tokens": np.where(visible, tokens, pad),
        "pad": np.array(pad),
        "embed_weight": embed * sizes.get("magnitude", 1),
        "classify_weight": weight,
        "classify_bias": bias,
    }


def reference(case: Arrays) -> Arrays:
    """Return the scores of the classes, sequence by sequence, from its real tokens alone."""

    def scores(tokens: NDArray[np.int64], shares: tuple[float, ...]) -> NDArray[np.float64]:
        x = case["embed_weight"][tokens[tokens != case["pad"]]]
        for share in shares:
            x = x + share * np.maximum(x + 1, 0).sum(axis=0)
        return case["classify_weight"] @ np.sqrt(np.square(x + 1).sum(axis=0)) + case["classify_bias"]

    shares = {"logits": (), "logits_layered": SHARES}
    return {name: np.stack([scores(tokens, each) for tokens in case["tokens"]]) for name, each in shares.items()}


def _same(ask: Ask, case: Arrays, tokens: NDArray[np.int64]) -> bool:
    """Return whether the first sequence gets the same scores when other tokens change."""
    before, after = ask(case), ask(case | {"tokens": tokens})
    return all(np.allclose(before[name][0], after[name][0], rtol=1e-4, atol=1e-4) for name in before)


def _padding_has_no_effect(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
    more = np.full((len(case["tokens"]), 3), case["pad"])
    return _same(ask, case, np.concatenate([case["tokens"], more], axis=1))


def _sequences_apart(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
    return _same(ask, case, np.repeat(case["tokens"][:1], len(case["tokens"]), axis=0))


PADDING_HAS_NO_EFFECT = Property("more-padding-changes-it", _padding_has_no_effect)
SEQUENCES_APART = Property("sequences-mix", _sequences_apart)

# --- answers ------------------------------------------------------------------------------------

INIT = """\
class SequenceClassifier(nn.Module):
    def __init__(self, vocab_size, hidden, num_classes, pad, pool, layers=()):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden)
        self.layers = nn.ModuleList(layers)
        self.pool = pool
        self.classify = nn.Linear(hidden, num_classes)
        self.pad = pad

"""

FORWARD = """\
    def forward(self, tokens):
        visible = tokens != self.pad
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, visible=visible)
        return self.classify(self.pool(x, visible))
"""

MODEL_ANSWER = INIT + FORWARD

SEEN = "tokens != self.pad"
EMBEDDED = "x = self.embed(tokens)"
LOOP = "for layer in self.layers:"
LAYER = "x = layer(x, visible=visible)"
LOGITS = "self.classify(self.pool(x, visible))"


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    ours = {"seen": SEEN, "embedded": EMBEDDED, "loop": LOOP, "layer": LAYER, "logits": LOGITS}
    return edited(name, MODEL_ANSWER, *((ours[line], theirs) for line, theirs in lines.items()), hint=hint)


WRONG = (
    wrong("softmax-inside", logits=f"{LOGITS}.softmax(dim=-1)"),
    wrong("log-softmax-inside", logits=f"{LOGITS}.log_softmax(dim=-1)"),
    wrong("sigmoid-inside", logits=f"{LOGITS}.sigmoid()"),
    wrong("relu-on-scores", logits=f"{LOGITS}.relu()"),
    wrong("softmax-over-batch", logits=f"{LOGITS}.softmax(dim=0)"),
    wrong("argmax-inside", logits=f"{LOGITS}.argmax(dim=-1)"),
    wrong("visible-inverted", seen="tokens == self.pad"),
    wrong("everything-visible", seen="torch.ones_like(tokens, dtype=torch.bool)"),
    wrong("pad-taken-for-zero", seen="tokens != 0"),
    wrong("visible-above-pad", seen="tokens > self.pad"),
    wrong("layers-not-told", layer="x = layer(x)"),
    wrong("pool-not-told", logits="self.classify(self.pool(x))"),
    wrong(
        "padding-zeroed",
        embedded="x = self.embed(tokens) * visible[:, :, None]",
        layer="x = layer(x)",
        logits="self.classify(self.pool(x))",
    ),
    wrong("layers-left-out", layer="layer"),
    wrong("first-layer-only", loop="for layer in self.layers[:1]:"),
    wrong("layers-reversed", loop="for layer in reversed(self.layers):"),
    wrong("layers-not-chained", layer="x = layer(self.embed(tokens), visible=visible)"),
    wrong("layers-summed", layer="x = x + layer(self.embed(tokens), visible=visible)"),
    wrong("layers-with-residual", layer="x = x + layer(x, visible=visible)"),
    wrong("layers-twice", loop="for layer in [*self.layers, *self.layers]:"),
    wrong("classified-before-pooling", logits="self.pool(self.classify(x), visible)"),
    wrong("no-pool", logits="self.classify(x)"),
    wrong(
        "mean-in-place-of-the-pool",
        logits="self.classify((x * visible[:, :, None]).sum(dim=1) / visible.sum(dim=1, keepdim=True))",
    ),
    wrong("first-position-in-place-of-the-pool", logits="self.classify(x[:, 0])"),
    wrong("no-bias", logits="self.pool(x, visible) @ self.classify.weight.T", hint="no-output-bias"),
    wrong("embeddings-scaled", embedded="x = self.embed(tokens) * self.embed.embedding_dim**0.5"),
)


MISBEHAVING = (
    *misbehaviours(MODEL_ANSWER, "SequenceClassifier.forward", longer=(6, 13), calls=2),
    only_in_training(MODEL_ANSWER, "SequenceClassifier.forward"),
    edited("layers-in-a-plain-list", MODEL_ANSWER, ("nn.ModuleList(layers)", "list(layers)")),
    wrong("fixed-padding", seen="tokens != 6", hint="other-sizes"),
    wrong(
        "always-two-layers",
        loop="if True:",
        layer="x = self.layers[1](self.layers[0](x, visible), visible)",
        hint="raises",
    ),
    wrong("probabilities-too", logits=f"{LOGITS}, {LOGITS}.softmax(dim=-1)", hint="not-a-tensor"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {LOGITS}", LOGITS), hint="not-a-tensor"),
    edited(
        "another-table", MODEL_ANSWER, ("(vocab_size, hidden)", "(hidden, vocab_size)"), hint="not-an-embedding-table"
    ),
    edited("linear-for-a-table", MODEL_ANSWER, ("nn.Embedding", "nn.Linear"), hint="not-an-embedding-table"),
    edited("no-module", MODEL_ANSWER, ("(nn.Module)", ""), ("nn.ModuleList(layers)", "layers"), hint="not-a-module"),
)

FORWARDS = {
    "step-by-step": """\
    def forward(self, tokens):
        visible = tokens.ne(self.pad)  # (b, n)
        embedded = self.embed(tokens)  # (b, n, hidden)
        hidden = embedded
        for layer in self.layers:
            hidden = layer(hidden, visible)
        vector = self.pool(hidden, visible)  # (b, hidden)
        logits = self.classify(vector)  # (b, num_classes)
        return logits
""",
    "padding-first": """\
    def forward(self, tokens):
        padding = tokens == self.pad
        x = self.embed(tokens)
        for number in range(len(self.layers)):
            x = self.layers[number](x, visible=~padding)
        return self.classify(self.pool(x, visible=~padding))
""",
    "reduced": """\
    def forward(self, tokens):
        from functools import reduce

        visible = torch.logical_not(torch.eq(tokens, self.pad))
        x = reduce(lambda x, layer: layer(x, visible=visible), self.layers, self.embed(tokens))
        return self.classify(self.pool(x, visible))
""",
    "recursive": """\
    def through(self, x, visible, layers):
        return self.through(layers[0](x, visible=visible), visible, layers[1:]) if len(layers) else x

    def forward(self, tokens):
        visible = tokens != self.pad
        return self.classify(self.pool(self.through(self.embed(tokens), visible, self.layers), visible))
""",
    "functional": """\
    def forward(self, tokens):
        visible = tokens != self.pad
        x = F.embedding(tokens, self.embed.weight)
        for layer in self.layers:
            x = layer(x, visible=visible)
        return F.linear(self.pool(x, visible), self.classify.weight, self.classify.bias)
""",
    "rows-of-the-table": """\
    def forward(self, tokens):
        visible = tokens != self.pad
        x = self.embed.weight[tokens]
        for layer in self.layers:
            x = layer(x, visible=visible)
        return self.pool(x, visible) @ self.classify.weight.T + self.classify.bias
""",
    "one-hot": """\
    def forward(self, tokens):
        visible = tokens != self.pad
        x = F.one_hot(tokens, self.embed.num_embeddings).to(self.embed.weight.dtype) @ self.embed.weight
        for layer in self.layers:
            x = layer(x, visible=visible)
        return self.classify(self.pool(x, visible))
""",
    "padding-zeroed-and-told": """\
    def forward(self, tokens):
        visible = tokens != self.pad
        x = self.embed(tokens).masked_fill(~visible.unsqueeze(-1), 0)
        for layer in self.layers:
            x = layer(x, visible=visible)
        return self.classify(self.pool(x, visible))
""",
    "one-sequence-at-a-time": """\
    def forward(self, tokens):
        scores = []
        for sequence in tokens:
            real = sequence[sequence != self.pad][None]
            x, visible = self.embed(real), torch.ones_like(real, dtype=torch.bool)
            for layer in self.layers:
                x = layer(x, visible=visible)
            scores.append(self.classify(self.pool(x, visible)))
        return torch.cat(scores)
""",
    "cut-to-the-longest": """\
    def forward(self, tokens):
        tokens = tokens[:, : (tokens != self.pad).sum(dim=1).max()]
        visible = tokens != self.pad
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, visible=visible)
        return self.classify(self.pool(x, visible))
""",
}

SEQUENCE_CLASSIFIER_RECORD = ValueRecord(
    public=SEQUENCE_CLASSIFIER,
    title="A classifier of sequences",
    defines="SequenceClassifier",
    parts=(Part("sequence-classifier-check", 2, values),),
    properties=(PADDING_HAS_NO_EFFECT, SEQUENCES_APART),
    first_sizes={"b": 3, "n": 5, "hidden": 7, "num_classes": 2, "words": 11},
    other_length={"b": 6, "n": 13},
    other_sizes={"b": 8, "n": 6, "hidden": 10, "num_classes": 3, "words": 13, "magnitude": 4},
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=WRONG,
    misbehaving=MISBEHAVING,
    right={name: INIT + forward for name, forward in FORWARDS.items()},
)
