"""The exercise of topic 04 about a language model, from tokens to the logits of the next tokens."""

import random

import numpy as np

from grading.exercises.topic_02_multi_head_attention.decoder_block import linear, normalised
from grading.exercises.topic_03_classification.sequence_classifier import SEQUENCES_APART
from grading.judging.judge import values
from grading.judging.mistakes import loses_a_length_of_one, misbehaviours, no_epsilon, only_in_training
from grading.judging.properties import Ask, Property, same
from grading.judging.record import Arrays, Part, ValueRecord, WrongAnswer, dyadic, edited
from transformer_lm.checks.topic_04_language_model.language_model import LANGUAGE_MODEL

NORMS = ("attention_norm", "mlp_norm")
PARTS = ("attention", "mlp")


def draw(rng: random.Random, sizes: dict[str, int]) -> Arrays:
    """Return tokens, embedding tables, and the weights of all layers, those of the blocks stacked."""
    b, n, vocab_size, num_layers = (sizes[name] for name in ("b", "n", "vocab_size", "num_layers"))
    hidden = max(4, sizes["hidden"])  # a norm over two numbers is little more than a sign, and magnifies rounding
    bound = 2 * sizes.get("magnitude", 1)
    case = {
        "tokens": np.array([int(rng.random() * vocab_size) for _ in range(b * n)]).reshape(b, n),
        "tokens_weight": dyadic(rng, vocab_size, hidden, bound=bound),
        "positions_weight": dyadic(rng, n + sizes["spare"], hidden, bound=bound),
        "final_norm_weight": 1 + dyadic(rng, hidden, bound=0.75),
        "final_norm_bias": dyadic(rng, hidden, bound=1),
        "unembed_weight": dyadic(rng, vocab_size, hidden, bound=0.75),
        "unembed_bias": dyadic(rng, vocab_size, bound=1),
    }
    second = min(1, n - 1)
    # There, a norm needs its epsilon.
    case["tokens_weight"][case["tokens"][0, second]] = case["positions_weight"][second] = 0
    for norm in NORMS:
        case[f"{norm}_weight"] = 1 + dyadic(rng, num_layers, hidden, bound=0.75)
        case[f"{norm}_bias"] = dyadic(rng, num_layers, hidden, bound=1)
    for part in PARTS:
        case[f"{part}_weight"] = dyadic(rng, num_layers, hidden, hidden, bound=0.75)
        case[f"{part}_bias"] = dyadic(rng, num_layers, hidden, bound=1)
    return case


def reference(case: Arrays) -> Arrays:
    """Return the logits, from embeddings to which each block adds the outputs of attention and of the MLP."""
    tokens = case["tokens"]
    n = tokens.shape[1]
    x = case["tokens_weight"][tokens] + case["positions_weight"][:n]
    stacked = [f"{layer}_{part}" for layer in (*NORMS, *PARTS) for part in ("weight", "bias")]
    for number in range(len(case["attention_weight"])):
        block = {name: case[name][number] for name in stacked}
        seen = np.cumsum(normalised(block, "attention_norm", x), axis=1) / np.arange(1, n + 1)[:, None]
        x = x + linear(block, "attention", seen)
        x = x + np.tanh(linear(block, "mlp", normalised(block, "mlp_norm", x)))
    return {"logits": linear(case, "unembed", normalised(case, "final_norm", x))}


def _ignores_the_future(ask: Ask, case: Arrays, reads: tuple[str, ...], rng: random.Random) -> bool:
    tokens = np.array(case["tokens"])
    tokens[:, -1] = (tokens[:, -1] + 1) % len(case["tokens_weight"])
    before, after = ask(case)["logits"], ask(case | {"tokens": tokens})["logits"]
    return same(before[:, :-1], after[:, :-1])


IGNORES_THE_FUTURE = Property("last-token-read-before-it", _ignores_the_future)

# --- answers ------------------------------------------------------------------------------------

INIT = """\
class LanguageModel(nn.Module):
    def __init__(self, vocab_size, hidden, max_len, attentions, mlps):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden)
        self.positions = nn.Embedding(max_len, hidden)
        self.attentions = nn.ModuleList(attentions)
        self.mlps = nn.ModuleList(mlps)
        self.attention_norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in attentions)
        self.mlp_norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in mlps)
        self.final_norm = nn.LayerNorm(hidden)
        self.unembed = nn.Linear(hidden, vocab_size)

"""

FORWARD = """\
    def forward(self, tokens):
        b, n = tokens.shape
        places = torch.arange(n, device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        blocks = zip(self.attention_norms, self.attentions, self.mlp_norms, self.mlps)
        for attention_norm, attention, mlp_norm, mlp in blocks:
            x = x + attention(attention_norm(x))
            x = x + mlp(mlp_norm(x))
        return self.unembed(self.final_norm(x))
"""

MODEL_ANSWER = INIT + FORWARD

PLACES = "torch.arange(n, device=tokens.device)"
EMBEDDED = "x = self.tokens(tokens) + self.positions(places)"
BLOCKS = "zip(self.attention_norms, self.attentions, self.mlp_norms, self.mlps)"
READ = "x = x + attention(attention_norm(x))"
THINK = "x = x + mlp(mlp_norm(x))"
LOGITS = "self.unembed(self.final_norm(x))"


def wrong(name: str, hint: str = "", **lines: str) -> WrongAnswer:
    """Return the model answer with a mistake in some of its lines."""
    ours = {"places": PLACES, "embedded": EMBEDDED, "blocks": BLOCKS, "read": READ, "think": THINK, "logits": LOGITS}
    return edited(name, MODEL_ANSWER, *((ours[line], theirs) for line, theirs in lines.items()), hint=hint)


EMBEDDING_MISTAKES = (
    wrong(
        "positions-replace-embeddings",
        embedded="x = self.tokens(tokens)\n        x = self.positions(places).expand_as(x)",
    ),
    wrong("no-positions", embedded="x = self.tokens(tokens)"),
    wrong("positions-multiplied", embedded="x = self.tokens(tokens) * self.positions(places)"),
    wrong("positions-subtracted", embedded="x = self.tokens(tokens) - self.positions(places)", hint="subtracted"),
    wrong("embeddings-averaged", embedded="x = (self.tokens(tokens) + self.positions(places)) / 2"),
    wrong(
        "embeddings-scaled",
        embedded="x = self.tokens(tokens)\n        x = x * x.shape[-1] ** 0.5 + self.positions(places)",
        hint="scaled-by-root",
    ),
    wrong("counted-from-one", places="torch.arange(1, n + 1, device=tokens.device)"),
    wrong("counted-from-the-end", places="torch.arange(n, device=tokens.device).flip(0)"),
    wrong("last-rows", places="torch.arange(-n, 0, device=tokens.device) + len(self.positions.weight)"),
    wrong("all-the-first", places="torch.zeros(n, dtype=torch.long, device=tokens.device)"),
    wrong("numbers-of-sequences", places="torch.arange(b, device=tokens.device)[:, None]"),
    wrong(
        "counted-through-the-batch",
        places="torch.arange(b * n, device=tokens.device).view(b, n) % len(self.positions.weight)",
    ),
    wrong("tokens-as-positions", places="tokens"),
    wrong("positions-in-every-block", read=f"x = x + self.positions(places)\n            {READ}"),
)

RESIDUAL_MISTAKES = (
    wrong("no-residual", read="x = attention(attention_norm(x))", think="x = mlp(mlp_norm(x))"),
    wrong("no-residual-around-attention", read="x = attention(attention_norm(x))"),
    wrong("no-residual-around-mlp", think="x = mlp(mlp_norm(x))"),
    wrong(
        "residual-of-the-normalised",
        read="x = attention_norm(x) + attention(attention_norm(x))",
        think="x = mlp_norm(x) + mlp(mlp_norm(x))",
    ),
    wrong("residual-of-the-normalised-before-attention", read="x = attention_norm(x) + attention(attention_norm(x))"),
    wrong("residual-of-the-normalised-before-mlp", think="x = mlp_norm(x) + mlp(mlp_norm(x))"),
    wrong(
        "input-added-again", read="attended = x + attention(attention_norm(x))", think="x = x + mlp(mlp_norm(attended))"
    ),
    wrong(
        "embeddings-added-again",
        embedded=f"{EMBEDDED}\n        embedded = x",
        read="x = embedded + attention(attention_norm(x))",
    ),
    wrong(
        "in-parallel",
        read="before = x\n            x = x + attention(attention_norm(x))",
        think="x = x + mlp(mlp_norm(before))",
    ),
    wrong(
        "residual-around-the-block-too",
        read=f"before = x\n            {READ}",
        think="x = before + x + mlp(mlp_norm(x))",
    ),
    wrong("one-residual-for-both", read="read = attention(attention_norm(x))", think="x = x + mlp(mlp_norm(read))"),
)

NORM_MISTAKES = (
    no_epsilon(MODEL_ANSWER, "attention_norm(x)", "mlp_norm(x)", "self.final_norm(x)"),
    wrong("post-norm", read="x = attention_norm(x + attention(x))", think="x = mlp_norm(x + mlp(x))"),
    wrong("norm-of-outputs", read="x = x + attention_norm(attention(x))", think="x = x + mlp_norm(mlp(x))"),
    wrong("no-norms-in-blocks", read="x = x + attention(x)", think="x = x + mlp(x)"),
    wrong("no-norm-before-attention", read="x = x + attention(x)"),
    wrong("no-norm-before-mlp", think="x = x + mlp(x)"),
    wrong("norms-swapped", blocks="zip(self.mlp_norms, self.attentions, self.attention_norms, self.mlps)"),
    wrong("attention-norm-twice", think="x = x + mlp(attention_norm(x))"),
    wrong("mlp-norm-twice", read="x = x + attention(mlp_norm(x))"),
    wrong(
        "final-norm-everywhere", read="x = x + attention(self.final_norm(x))", think="x = x + mlp(self.final_norm(x))"
    ),
    wrong(
        "norms-of-the-first-block",
        read="x = x + attention(self.attention_norms[0](x))",
        think="x = x + mlp(self.mlp_norms[0](x))",
    ),
    wrong("no-final-norm", logits="self.unembed(x)"),
    wrong("final-norm-in-every-block", think=f"{THINK}\n            x = self.final_norm(x)", logits="self.unembed(x)"),
    wrong("final-norm-first", embedded=f"{EMBEDDED}\n        x = self.final_norm(x)", logits="self.unembed(x)"),
)

BLOCK_MISTAKES = (
    wrong("blocks-reversed", blocks=f"reversed(list({BLOCKS}))"),
    wrong("first-block-only", blocks=f"list({BLOCKS})[:1]"),
    wrong("last-block-only", blocks=f"list({BLOCKS})[-1:]"),
    wrong("first-block-each-time", blocks=f"list({BLOCKS})[:1] * len(self.mlps)"),
    wrong("no-blocks", blocks="[]"),
    wrong("blocks-twice", blocks=f"list({BLOCKS}) * 2"),
    wrong("mlp-first", read="x = mlp(mlp_norm(x)) + x", think="x = attention(attention_norm(x)) + x"),
    wrong(
        "all-attentions-first",
        think=f"pass\n        for mlp_norm, mlp in zip(self.mlp_norms, self.mlps):\n            {THINK}",
    ),
    wrong("no-attention", read="pass"),
    wrong("no-mlp", think="pass"),
    wrong("reads-the-future", read="x = x + attention(attention_norm(x).flip(1)).flip(1)"),
)

LOGITS_MISTAKES = (
    wrong("softmax-inside", logits=f"{LOGITS}.softmax(dim=-1)"),
    wrong("log-softmax-inside", logits=f"{LOGITS}.log_softmax(dim=-1)"),
    wrong("softmax-over-positions", logits=f"{LOGITS}.softmax(dim=1)"),
    wrong("relu-on-logits", logits=f"{LOGITS}.relu()"),
    wrong("tied", logits="self.final_norm(x) @ self.tokens.weight.T"),
    wrong("no-bias", logits="self.final_norm(x) @ self.unembed.weight.T", hint="no-output-bias"),
    wrong("last-position-only", logits="self.unembed(self.final_norm(x))[:, -1]"),
    wrong("last-position-alone", logits="self.unembed(self.final_norm(x))[:, -1:]", hint="last-position-only"),
    wrong("mean-over-positions", logits="self.unembed(self.final_norm(x).mean(dim=1))"),
    wrong("argmax-inside", logits=f"{LOGITS}.argmax(dim=-1)"),
    wrong("not-unembedded", logits="self.final_norm(x)"),
    wrong("vocabulary-second", logits=f"{LOGITS}.transpose(1, 2)"),
)

MISBEHAVING = (
    *misbehaviours(MODEL_ANSWER, "LanguageModel.forward", longer=(6, 16)),
    loses_a_length_of_one(MODEL_ANSWER, "LanguageModel.forward"),
    only_in_training(MODEL_ANSWER, "LanguageModel.forward"),
    wrong(
        "adds-in-place",
        read="x += attention(attention_norm(x))",
        think="x += mlp(mlp_norm(x))",
        hint="changed-in-place",
    ),
    wrong("always-two-blocks", blocks=f"list({BLOCKS})[:2]", hint="other-sizes"),
    wrong(
        "centred-over-positions",
        embedded=f"{EMBEDDED}\n        x = x - x.mean(1, True)",
        hint="last-token-read-before-it",
    ),
    wrong(
        "unknown-mixture-of-sequences", embedded=f"{EMBEDDED}\n        x = x - x.mean(0, True)", hint="sequences-mix"
    ),
    wrong(
        "whole-table-of-positions", embedded="x = self.tokens(tokens) + self.positions.weight", hint="shapes-do-not-fit"
    ),
    wrong("list-called", read="x = x + self.attentions(attention_norm(x))", hint="raises"),
    wrong("probabilities-too", logits=f"{LOGITS}, {LOGITS}.softmax(dim=-1)", hint="not-a-tensor"),
    edited("nothing-returned", MODEL_ANSWER, (f"return {LOGITS}", LOGITS), hint="not-a-tensor"),
    edited("no-module", MODEL_ANSWER, ("(nn.Module)", ""), hint="not-a-module"),
    *(
        edited(name, MODEL_ANSWER, edit, hint="init-changed")
        for name, edit in {
            "list-of-attentions": ("nn.ModuleList(attentions)", "attentions"),
            "mlps-renamed": ("self.mlps = nn", "self.parts = nn"),
            "list-of-norms": (
                "nn.ModuleList(nn.LayerNorm(hidden) for _ in mlps)",
                "[nn.LayerNorm(hidden) for _ in mlps]",
            ),
            "one-norm-for-all": ("nn.ModuleList(nn.LayerNorm(hidden) for _ in mlps)", "nn.LayerNorm(hidden)"),
            "table-turned-round": ("nn.Embedding(vocab_size, hidden)", "nn.Embedding(hidden, vocab_size)"),
            "no-bias-in-unembed": ("(hidden, vocab_size)\n", "(hidden, vocab_size, bias=False)\n"),
            "no-final-norm-in-init": ("self.final_norm = nn.LayerNorm(hidden)", "self.final_norm = nn.Identity()"),
        }.items()
    ),
)

FORWARDS = {
    "step-by-step": """\
    def forward(self, tokens):
        embedded = self.tokens(tokens)  # (b, n, hidden)
        positions = self.positions(torch.arange(tokens.size(1), device=tokens.device))  # (n, hidden)
        x = embedded + positions
        for i in range(len(self.attentions)):
            residual = x
            x = self.attention_norms[i](x)
            x = self.attentions[i](x)
            x = residual + x
            residual = x
            x = self.mlp_norms[i](x)
            x = self.mlps[i](x)
            x = residual + x
        x = self.final_norm(x)
        logits = self.unembed(x)  # (b, n, v)
        return logits
""",
    "rows-of-the-tables": """\
    def forward(self, tokens):
        x = self.tokens.weight[tokens] + self.positions.weight[: tokens.shape[1]]
        for norm, attention, other_norm, mlp in zip(
            self.attention_norms, self.attentions, self.mlp_norms, self.mlps, strict=True
        ):
            x = torch.add(x, attention(norm(x)))
            x = torch.add(mlp(other_norm(x)), x)
        return self.final_norm(x) @ self.unembed.weight.T + self.unembed.bias
""",
    "with-a-batch-axis": """\
    def forward(self, tokens):
        b, n = tokens.shape
        positions = torch.arange(n, device=tokens.device).unsqueeze(0).expand(b, n)  # (b, n)
        x = self.tokens(tokens) + self.positions(positions)  # (b, n, hidden)
        for attention, attention_norm, mlp, mlp_norm in zip(
            self.attentions, self.attention_norms, self.mlps, self.mlp_norms
        ):
            attended = x + attention(attention_norm(x))
            x = attended + mlp(mlp_norm(attended))
        return self.unembed(self.final_norm(x))
""",
    "one-loop-over-parts": """\
    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[-1], device=tokens.device))
        norms = [norm for pair in zip(self.attention_norms, self.mlp_norms) for norm in pair]
        parts = [part for pair in zip(self.attentions, self.mlps) for part in pair]
        for norm, part in zip(norms, parts):
            x = x + part(norm(x))
        return self.unembed(self.final_norm(x))
""",
    "functional": """\
    def normalised(self, x, norm):
        return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    def forward(self, tokens):
        places = torch.ones_like(tokens).cumsum(dim=1) - 1
        x = F.embedding(tokens, self.tokens.weight) + F.embedding(places, self.positions.weight)
        for i, (attention, mlp) in enumerate(zip(self.attentions, self.mlps)):
            x = x + attention(self.normalised(x, self.attention_norms[i]))
            x = x + mlp(self.normalised(x, self.mlp_norms[i]))
        return F.linear(self.normalised(x, self.final_norm), self.unembed.weight, self.unembed.bias)
""",
    "norm-by-hand": """\
    def normalised(self, x, norm):
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for i in range(len(self.mlps)):
            x = x + self.attentions[i](self.normalised(x, self.attention_norms[i]))
            x = x + self.mlps[i](self.normalised(x, self.mlp_norms[i]))
        return self.unembed(self.normalised(x, self.final_norm))
""",
    "recursive": """\
    def through(self, x, block):
        if block == len(self.attentions):
            return x
        x = x + self.attentions[block](self.attention_norms[block](x))
        return self.through(x + self.mlps[block](self.mlp_norms[block](x)), block + 1)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.unembed(self.final_norm(self.through(x, 0)))
""",
    "reduced": """\
    def forward(self, tokens):
        from functools import reduce

        def with_block(x, block):
            x = x + self.attentions[block](self.attention_norms[block](x))
            return x + self.mlps[block](self.mlp_norms[block](x))

        places = torch.tensor(range(tokens.shape[1]), device=tokens.device)
        x = reduce(with_block, range(len(self.mlps)), self.tokens(tokens) + self.positions(places))
        return nn.Sequential(self.final_norm, self.unembed)(x)
""",
    "sum-of-all-that-is-found": """\
    def forward(self, tokens):
        found = [self.tokens(tokens), self.positions.weight[: tokens.shape[1]].expand(len(tokens), -1, -1)]
        for attention_norm, attention, mlp_norm, mlp in zip(
            self.attention_norms, self.attentions, self.mlp_norms, self.mlps
        ):
            found.append(attention(attention_norm(sum(found))))
            found.append(mlp(mlp_norm(sum(found))))
        return self.unembed(self.final_norm(torch.stack(found).sum(dim=0)))
""",
    "one-sequence-at-a-time": """\
    def forward(self, tokens):
        rows = []
        for sequence in tokens:
            x = (self.tokens(sequence) + self.positions.weight[: len(sequence)])[None]
            for attention_norm, attention, mlp_norm, mlp in zip(
                self.attention_norms, self.attentions, self.mlp_norms, self.mlps
            ):
                x = x + attention(attention_norm(x))
                x = x + mlp(mlp_norm(x))
            rows.append(self.unembed(self.final_norm(x)))
        return torch.cat(rows)
""",
    "one-hot": """\
    def forward(self, tokens):
        words, places = self.tokens.weight, self.positions.weight
        x = F.one_hot(tokens, len(words)).to(words.dtype) @ words
        x = x + torch.eye(x.shape[1], len(places), device=x.device, dtype=x.dtype) @ places
        for block in zip(self.attention_norms, self.attentions, self.mlp_norms, self.mlps):
            for norm, part in (block[:2], block[2:]):
                x = part(norm(x)) + x
        return torch.einsum("bnd,vd->bnv", self.final_norm(x), self.unembed.weight) + self.unembed.bias
""",
    "in-place-on-copies": """\
    def forward(self, tokens):
        x = self.tokens(tokens)
        x += self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for i in range(len(self.attentions)):
            x = x.clone().add_(self.attentions[i](self.attention_norms[i](x)))
            x = x.clone().add_(self.mlps[i](self.mlp_norms[i](x)))
        return self.unembed(self.final_norm(x))
""",
}

LANGUAGE_MODEL_RECORD = ValueRecord(
    public=LANGUAGE_MODEL,
    title="A language model",
    defines="LanguageModel",
    parts=(Part("language-model-check", 4, values),),
    properties=(SEQUENCES_APART, IGNORES_THE_FUTURE),
    first_sizes={"b": 3, "n": 5, "hidden": 7, "spare": 11, "vocab_size": 13, "num_layers": 2},
    other_length={"b": 6, "n": 16},  # the largest number of positions
    other_sizes={"b": 4, "n": 6, "hidden": 10, "spare": 8, "vocab_size": 11, "num_layers": 3, "magnitude": 4},
    ones=("n",),
    draw=draw,
    reference=reference,
    model_answer=MODEL_ANSWER,
    wrong=(*EMBEDDING_MISTAKES, *RESIDUAL_MISTAKES, *NORM_MISTAKES, *BLOCK_MISTAKES, *LOGITS_MISTAKES),
    misbehaving=MISBEHAVING,
    right={name: INIT + forward for name, forward in FORWARDS.items()},
)
