"""The exercise of topic 04 about sampling a continuation from a model, token by token."""

import math
import random

import numpy as np

from grading.judging.record import Part, Record, WrongAnswer, edited, softmax
from grading.judging.sampled import drawn
from transformer_lm.checks.engine.sampled import Ask
from transformer_lm.checks.topic_04_language_model.sampling import (
    SAMPLING,
    VOCABULARY,
    Choice,
    examine_sampling,
    sampling_hint,
)


def chances(logits: tuple[float, ...], temperature: float, top_k: int) -> tuple[float, ...]:
    """Return the probability of each token; the logits are sorted from the largest to the smallest."""
    limited = np.full(len(logits), -np.inf)
    limited[:top_k] = np.array(logits[:top_k]) / temperature
    return tuple(softmax(limited).tolist())


def choice(logits: tuple[float, ...], temperature: float, top_k: int) -> Choice:
    """Return a choice with its probabilities, and with those that known mistakes give."""
    everything = np.array(chances(logits, temperature, len(logits)))
    late = np.where(np.arange(len(logits)) < top_k, everything, 0)
    late[0] += everything[top_k:].sum()
    mistakes = (
        (sampling_hint("temperature-ignored"), chances(logits, 1, top_k)),
        (sampling_hint("temperature-multiplied"), chances(logits, 1 / temperature, top_k)),
        (sampling_hint("top-k-after-sampling"), tuple(late.tolist())),
        (sampling_hint("softmax-twice"), chances(chances(logits, temperature, top_k), 1, top_k)),
        (sampling_hint("softmax-twice"), chances(tuple(everything), 1, top_k)),
        (sampling_hint("softmax-twice"), chances(chances(logits, 1, len(logits)), temperature, top_k)),
        (sampling_hint("equal-chances"), chances((0,) * len(logits), 1, top_k)),
    )
    return Choice(logits, temperature, top_k, chances(logits, temperature, top_k), mistakes)


def draw_choices(rng: random.Random) -> tuple[Choice, ...]:
    """Return two choices: a high temperature with a small top_k, and a low temperature with all tokens.

    Each token is about two thirds as likely as the one before it, so mistakes change the probabilities by more than
    chance.
    """

    def logits(temperature: float) -> tuple[float, ...]:
        steps = [temperature * math.log(1.5) * rng.uniform(0.93, 1.1) for _ in range(VOCABULARY)]
        return tuple((sum(steps) / 2 - np.cumsum(steps)).tolist())

    high, low = round(rng.uniform(1.7, 2.4), 2), round(rng.uniform(0.4, 0.6), 2)
    return choice(logits(high), high, rng.randint(3, 4)), choice(logits(low), low, VOCABULARY)


def examine(ask: Ask, rng: random.Random) -> None:
    """Examine an answer with choices drawn for it."""
    examine_sampling(ask, rng, draw_choices(rng))


# --- answers ------------------------------------------------------------------------------------

MODEL_ANSWER = """\
@torch.no_grad()
def better_sample_continuation(model, tokens, num_tokens, max_len, temperature, top_k):
    was_training = model.training
    model.eval()
    text = tokens
    for _ in range(num_tokens):
        logits = model(text[:, -max_len:])[:, -1]
        largest, candidates = logits.topk(top_k)
        if temperature == 0:
            chosen = candidates[:, :1]
        else:
            probabilities = (largest / temperature).softmax(dim=-1)
            chosen = candidates.gather(1, probabilities.multinomial(1))
        text = torch.cat([text, chosen], dim=1)
    model.train(was_training)
    return text
"""

NO_GRAD = "@torch.no_grad()\n"
START, EVAL, BACK = "    was_training = ", "    model.eval()\n", "    model.train(was_training)\n"
STEPS = "range(num_tokens)"
LOGITS = "model(text[:, -max_len:])[:, -1]"
TOP = "logits.topk(top_k)"
ZERO = "        if temperature == 0:\n            chosen = candidates[:, :1]\n        else:\n"
PROBABILITIES = "(largest / temperature).softmax(dim=-1)"
CHOSEN = "candidates.gather(1, probabilities.multinomial(1))"
LONGER = "torch.cat([text, chosen], dim=1)"


def wrong(name: str, *edits: tuple[str, str], hint: str = "") -> WrongAnswer:
    """Return the model answer with a mistake."""
    return edited(name, MODEL_ANSWER, *edits, hint=hint)


WRONG_TEXTS = (
    wrong("in-train-mode", (EVAL, "")),
    wrong(
        "train-mode-between-steps",
        (EVAL, ""),
        (LOGITS, "model.train()(text[:, -max_len:])[:, -1]"),
        hint="in-train-mode",
    ),
    wrong("left-in-eval-mode", (BACK, "")),
    wrong("always-back-to-train-mode", (BACK, "    model.train()\n")),
    wrong("with-gradients", (NO_GRAD, "")),
    wrong("detached-later", (NO_GRAD, ""), (LOGITS, f"{LOGITS}.detach()"), hint="with-gradients"),
    wrong("gradients-left-switched-off", (NO_GRAD, ""), (EVAL, f"{EVAL}    torch.set_grad_enabled(False)\n")),
    wrong("model-frozen", (NO_GRAD, ""), (EVAL, "    model.eval().requires_grad_(False)\n")),
    wrong("not-cropped", (LOGITS, "model(text)[:, -1]")),
    wrong(
        "cropped-once",
        ("    text = tokens\n", "    text = tokens[:, -max_len:]\n"),
        (LOGITS, "model(text)[:, -1]"),
        ("return text", "return torch.cat([tokens[:, :-max_len], text], dim=1)"),
        hint="not-cropped",
    ),
    wrong("cropped-one-too-late", (LOGITS, "model(text[:, -max_len - 1 :])[:, -1]"), hint="not-cropped"),
    wrong("cropped-to-the-first", (LOGITS, "model(text[:, :max_len])[:, -1]")),
    wrong("cropped-too-short", (LOGITS, "model(text[:, 1 - max_len :])[:, -1]")),
    wrong("last-token-only", (LOGITS, "model(text[:, -1:])[:, -1]")),
    wrong("prompt-only", (LOGITS, "model(tokens[:, -max_len:])[:, -1]")),
    wrong("last-position-but-one", (LOGITS, "model(text[:, -max_len:])[:, -2]")),
    wrong("first-position", (LOGITS, "model(text[:, -max_len:])[:, 0]")),
    wrong("mean-over-positions", (LOGITS, "model(text[:, -max_len:]).mean(dim=1)"), hint="another-text"),
    wrong("batch-turned-round", (LOGITS, f"{LOGITS}.flip(0)"), hint="another-text"),
    wrong(
        "first-prompt-for-all",
        (LOGITS, "model(text[:, -max_len:])[:1, -1].expand(len(text), -1)"),
        hint="another-text",
    ),
    wrong("text-turned-round", (LOGITS, "model(text[:, -max_len:].flip(1))[:, -1]"), hint="another-text"),
    wrong(
        "last-prompt-token-forgotten",
        ("    text = tokens\n", "    text = tokens[:, :-1]\n"),
        ("return text", "return torch.cat([tokens, text[:, tokens.shape[1] - 1 :]], dim=1)"),
        hint="another-text",
    ),
)

WRONG_RESULTS = (
    wrong("prompt-missing", ("return text", "return text[:, tokens.shape[1] :]")),
    wrong(
        "prompt-cut",
        (LOGITS, "model(text)[:, -1]"),
        ("        logits", "        text = text[:, -max_len:]\n        logits"),
    ),
    wrong("read-part-returned", ("return text", "return text[:, -max_len:]"), hint="other-shape"),
    wrong("on-the-left", (LONGER, "torch.cat([chosen, text], dim=1)")),
    wrong("one-too-few", (STEPS, "range(num_tokens - 1)")),
    wrong("one-too-many", (STEPS, "range(num_tokens + 1)")),
    wrong("num-tokens-in-all", (STEPS, "range(num_tokens - tokens.shape[1])")),
    wrong("one-step", ("    model.train(", "        break\n    model.train("), hint="other-shape"),
    wrong("flattened", ("return text", "return text.flatten()"), hint="other-shape"),
    wrong("positions-first", ("return text", "return text.T"), hint="other-shape"),
    wrong("prompt-sorted", ("text = tokens\n", "text = tokens.sort(dim=1).values\n"), hint="prompt-changed"),
    wrong("ranks-for-tokens", (CHOSEN, "probabilities.multinomial(1)"), ("candidates[:, :1]", "0 * candidates[:, :1]")),
    wrong("floats", ("return text", "return text.float()"), hint="tokens-not-long"),
    wrong("short-numbers", ("return text", "return text.int()"), hint="tokens-not-long"),
    wrong("a-list", ("return text", "return text.tolist()"), hint="not-a-tensor"),
    wrong("nothing", ("    return text\n", ""), hint="not-a-tensor"),
    wrong(
        "numbers-that-are-no-tokens",
        ("return text", "return torch.cat([tokens, text[:, tokens.shape[1] :] + 7], dim=1)"),
    ),
    wrong("loses-a-batch-of-one", ("return text", "return text.squeeze(0)"), hint="one-sequence"),
    wrong("misspelt", ("return text", "return txt"), hint="raises"),
    WrongAnswer(
        "changes-the-prompt",
        MODEL_ANSWER.replace("    return text\n", "    tokens.copy_(text[:, -tokens.shape[1] :])\n    return text\n"),
        hint="input-changed",
    ),
)

WRONG_CHANCES = (
    wrong("temperature-multiplied", ("largest / temperature", "largest * temperature")),
    wrong("temperature-ignored", ("(largest / temperature)", "largest")),
    wrong(
        "temperature-after-softmax",
        (PROBABILITIES, "largest.softmax(dim=-1) / temperature"),
        hint="temperature-ignored",
    ),
    wrong("temperature-of-probabilities", (TOP, "logits.softmax(dim=-1).topk(top_k)"), hint="softmax-twice"),
    wrong("softmax-twice", (PROBABILITIES, f"{PROBABILITIES}.softmax(dim=-1)"), hint="softmax-twice"),
    wrong(
        "softmax-before-top-k-and-after",
        (TOP, "(logits / (temperature or 1)).softmax(dim=-1).topk(top_k)"),
        (PROBABILITIES, "largest.softmax(dim=-1)"),
        hint="softmax-twice",
    ),
    wrong("equal-chances", (PROBABILITIES, "torch.ones_like(largest)")),
    wrong("softmax-over-the-batch", ("softmax(dim=-1)", "softmax(dim=0)"), hint="equal-chances"),
    wrong("always-the-most-likely", (CHOSEN, "candidates[:, :1]")),
    wrong("zero-not-handled", (ZERO, "        if True:\n"), hint="temperature-of-zero"),
    wrong(
        "zero-means-one",
        (ZERO, "        temperature = temperature or 1.0\n        if True:\n"),
        hint="temperature-of-zero",
    ),
    wrong(
        "zero-means-any",
        ("chosen = candidates[:, :1]", "chosen = torch.randint_like(candidates[:, :1], 7)"),
        hint="temperature-of-zero",
    ),
    wrong("top-k-ignored", (TOP, "logits.sort(descending=True)"), hint="still-random"),
    wrong("top-k-plus-one", (TOP, "logits.topk(min(top_k + 1, logits.shape[-1]))"), hint="still-random"),
    wrong("top-k-minus-one", (TOP, "logits.topk(max(top_k - 1, 1))"), hint="top-k-too-few"),
    wrong("top-k-unless-one", (TOP, "logits.topk(1 if top_k == 1 else logits.shape[-1])"), hint="top-k-too-many"),
    wrong("top-k-smallest", (TOP, "logits.topk(top_k, largest=False)")),
    wrong(
        "top-k-after-sampling",
        (TOP, "logits.sort(descending=True)"),
        (CHOSEN, "probabilities.multinomial(1)\n            chosen = candidates.gather(1, chosen * (chosen < top_k))"),
    ),
    wrong("sign-flipped", ("(largest / temperature)", "(-largest / temperature)"), hint="other-chances"),
    wrong(
        "best-of-top-k-samples",
        (TOP, "logits.sort(descending=True)"),
        (
            CHOSEN,
            "probabilities.multinomial(top_k, replacement=True)\n"
            "            chosen = candidates.gather(1, chosen.amin(dim=1, keepdim=True))",
        ),
        hint="still-random",
    ),
    wrong(
        "masked-with-zero",
        (TOP, "(logits * (logits >= logits.topk(top_k).values[:, -1:])).sort(descending=True)"),
        hint="still-random",
    ),
    wrong("one-token-for-all", (CHOSEN, "candidates.gather(1, probabilities[:1].multinomial(1).expand(len(text), 1))")),
    wrong(
        "rows-in-pairs",
        (CHOSEN, "candidates.gather(1, probabilities.multinomial(1)[torch.arange(len(text)) // 2 * 2])"),
    ),
    wrong("places-for-tokens", (CHOSEN, "probabilities.multinomial(1)"), hint="ranks-for-tokens"),
    wrong(
        "second-half-repeats-the-first",
        (
            CHOSEN,
            "candidates.gather(1, probabilities.multinomial(1)[: (len(text) + 1) // 2].repeat(2, 1)[: len(text)])",
        ),
        hint="rows-in-pairs",
    ),
    wrong(
        "whole-numbers-for-probabilities",
        (
            "chosen = candidates[:, :1]",
            "chosen = candidates.gather(1, F.one_hot(0 * text[:, 0], top_k).multinomial(1))",
        ),
        hint="raises",
    ),
    wrong(
        "one-random-number-for-all-steps",
        ("    text = tokens\n", "    text, height = tokens, torch.rand(len(tokens), 1)\n"),
        (CHOSEN, "candidates.gather(1, (probabilities.cumsum(dim=-1)[:, :-1] < height).sum(dim=1, keepdim=True))"),
    ),
    wrong("seed-inside", (START, f"    torch.manual_seed(0)\n{START}"), hint="seed-fixed"),
    wrong("seed-in-every-step", ("        logits", "        torch.manual_seed(0)\n        logits"), hint="seed-fixed"),
    wrong("seed-of-the-clock", (START, f"    torch.seed()\n{START}"), hint="not-torchs-generator"),
    wrong(
        "numpy-random",
        (
            CHOSEN,
            "candidates.gather(1, torch.tensor([[rng.choice(top_k, p=p / p.sum())] for p in "
            "probabilities.double().numpy()]))",
        ),
        (START, f"    import numpy\n    rng = numpy.random.default_rng()\n{START}"),
        hint="not-torchs-generator",
    ),
)

OPENING = """\
def better_sample_continuation(model, tokens, num_tokens, max_len, temperature, top_k):
"""

RIGHT = {
    "masked-logits": OPENING
    + """\
    training = model.training
    model.eval()
    with torch.no_grad():
        for _ in range(num_tokens):
            logits = model(tokens[:, -max_len:])[:, -1, :]
            if temperature == 0:
                new = logits.argmax(dim=-1, keepdim=True)
            else:
                threshold = logits.topk(top_k, dim=-1).values[:, -1, None]
                logits = logits.masked_fill(logits < threshold, float("-inf"))
                new = torch.multinomial(F.softmax(logits / temperature, dim=-1), num_samples=1)
            tokens = torch.cat((tokens, new), dim=1)
    model.train(training)
    return tokens
""",
    "next-probabilities": """\
def next_probabilities(logits, temperature, top_k):
    if temperature == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
    kept = torch.zeros_like(logits).scatter(1, logits.topk(top_k).indices, 1)
    return (logits / temperature + kept.log()).softmax(dim=-1)


@torch.inference_mode()
"""
    + OPENING
    + """\
    mode = model.training
    model.train(False)
    try:
        text = tokens.clone()
        for _ in range(num_tokens):
            probabilities = next_probabilities(model(text[:, -max_len:])[:, -1], temperature, top_k)
            text = torch.hstack([text, torch.multinomial(probabilities, 1)])
        return text
    finally:
        model.train(mode)
""",
    "categorical": OPENING
    + """\
    was_training = model.training
    model.eval()
    text = tokens
    while text.shape[1] < tokens.shape[1] + num_tokens:
        with torch.no_grad():
            values, indices = torch.topk(model(text[:, -max_len:])[:, -1], 1 if temperature == 0 else top_k)
        drawn = torch.distributions.Categorical(logits=values / (temperature or 1)).sample()
        text = torch.cat([text, indices[torch.arange(len(text)), drawn][:, None]], dim=1)
    if was_training:
        model.train()
    return text
""",
    "gumbel": OPENING
    + """\
    was_training = model.training
    model.eval()
    result = F.pad(tokens, (0, num_tokens))
    n = tokens.shape[1]
    with torch.no_grad():
        for end in range(n, n + num_tokens):
            logits = model(result[:, max(0, end - max_len) : end])[:, -1]
            order = logits.argsort(descending=True)
            logits = logits.scatter(1, order[:, top_k:], -torch.inf)
            noise = -torch.log(torch.empty_like(logits).exponential_())
            result[:, end] = (logits + temperature * noise).argmax(dim=1)
    model.train(was_training)
    return result
""",
    "inverse-of-the-distribution": """\
@torch.no_grad()
"""
    + OPENING
    + """\
    was_training = model.training
    model.eval()
    for _ in range(num_tokens):
        logits, order = model(tokens[:, -max_len:])[:, -1].double().sort(dim=1, descending=True)
        weights = torch.exp((logits - logits[:, :1]) / max(temperature, 1e-6))
        weights[:, top_k:] = 0
        heights = weights.cumsum(dim=1)
        height = torch.rand(len(tokens), 1, dtype=torch.float64) * heights[:, -1:]
        tokens = torch.cat([tokens, order.gather(1, (heights <= height).sum(dim=1, keepdim=True))], dim=1)
    model.train(was_training)
    return tokens
""",
    "row-by-row": OPENING
    + """\
    was_training = model.training
    model.eval()
    rows = []
    for row in tokens:
        for _ in range(num_tokens):
            with torch.no_grad():
                logits = model(row[-max_len:].unsqueeze(0))[0, -1]
            values, indices = logits.topk(top_k)
            if temperature == 0:
                place = 0
            else:
                place = torch.multinomial(torch.softmax(values / temperature, dim=0), 1).item()
            row = torch.cat([row, indices[place].view(1)])
        rows.append(row)
    model.train(was_training)
    return torch.stack(rows)
""",
    "refused-until-it-fits": """\
@torch.no_grad()
"""
    + OPENING
    + """\
    was_training = model.training
    model.eval()
    for _ in range(num_tokens):
        logits = model(tokens[:, -max_len:])[:, -1]
        best = logits.topk(1 if temperature == 0 else top_k).indices
        probabilities = (logits / max(temperature, 0.01)).softmax(dim=-1)
        new = torch.multinomial(probabilities, 1)
        while (refused := ~(new == best).any(dim=1)).any():
            new[refused] = torch.multinomial(probabilities[refused], 1)
        tokens = torch.cat([tokens, new], dim=1)
    model.train(was_training)
    return tokens
""",
    "recursion": OPENING
    + """\
    if num_tokens == 0:
        return tokens
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(tokens[:, -max_len:])[:, -1]
    model.train(was_training)
    smallest_kept = logits.kthvalue(logits.shape[-1] - top_k + 1, dim=-1, keepdim=True).values
    logits = torch.where(logits >= smallest_kept, logits, -torch.inf)
    if temperature > 0:
        new = (logits / temperature).softmax(-1).multinomial(1)
    else:
        new = logits.max(dim=-1, keepdim=True).indices
    tokens = torch.cat([tokens, new], dim=-1)
    return better_sample_continuation(model, tokens, num_tokens - 1, max_len, temperature, top_k)
""",
    "a-list-of-columns": """\
@torch.no_grad()
"""
    + OPENING
    + """\
    modes = {module: module.training for module in model.modules()}
    model.eval()
    columns = list(tokens.unbind(dim=1))
    for _ in range(num_tokens):
        logits = model(torch.stack(columns[-max_len:], dim=1))[:, -1]
        values, indices = logits.topk(top_k)
        weights = (values - values[:, :1]).div(temperature).exp() if temperature else (values == values[:, :1]).float()
        columns.append(indices.gather(1, weights.multinomial(1))[:, 0])
    for module, mode in modes.items():
        module.training = mode
    return torch.stack(columns, dim=1)
""",
}

SAMPLING_RECORD = Record(
    public=SAMPLING,
    title="A sampled continuation",
    defines="better_sample_continuation",
    parts=(Part("sampling-check", 4, drawn(examine)),),
    model_answer=MODEL_ANSWER,
    misbehaving=(*WRONG_TEXTS, *WRONG_RESULTS, *WRONG_CHANCES),
    right=RIGHT,
)
