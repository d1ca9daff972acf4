"""Measure language models on a CPU: plain and default recipe, the effect of each trick, sampling, a large model.

    python bench/language_model.py [PART ...] [--write]

Prints ratios of processor time, measured in one run with one thread. `--write` also saves the results that lesson 04
shows, part by part. Saved results are not measured again, so an interrupted run can be resumed. All parts take about an
hour. Needs Shakespeare and Hebrew text; see data/README.md.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from transformer_lm.lm import loss_per_token
from transformer_lm.modeling_lm import TransformerLM
from transformer_lm.sampling import continuation
from transformer_lm.texts.corpora import Corpus, load_hebrew, load_shakespeare, load_toy
from transformer_lm.texts.toy_grammar import entropy_per_character, grammatical_share
from transformer_lm.training.loop import History, train
from transformer_lm.training.presets import preset

RESULTS = Path(__file__).parents[1] / "notebooks" / "lm_results.json"
GOAL = 1.89  # nats per character of validation text
SEEDS = (0, 1, 2)

# Single changes to the default preset: to its model, and to its recipe.
CHANGES = {
    "nothing": ({}, {}),
    "AdamW instead of Muon": ({}, {"optimizer": "adamw", "learning_rate": 3e-3}),
    "learned instead of rotary positions": ({"positions": "learned"}, {}),
    "constant learning rate": ({}, {"schedule": "constant"}),
    "cosine instead of plateau": ({}, {"schedule": "cosine"}),
    "GELU instead of squared ReLU": ({"mlp": "gelu"}, {}),
    "no smear": ({"smear": False}, {}),
    "no norm of queries and keys": ({"query_key_norm": False}, {}),
    "output tied to the embedding": ({"tied": True, "init": "gpt2"}, {}),
    "layer norms that learn": ({"norm": "layer"}, {}),
    "no clipping": ({}, {"clip": None}),
}


def run(
    name: str, corpus: Corpus, seed: int, every: int, settings: dict | None = None, **changes: object
) -> tuple[TransformerLM, list[dict]]:
    """Train a preset with changes; return it with the measurements: step, processor seconds of training, loss."""
    torch.manual_seed(seed)
    model = preset(name).make_model(corpus.tokenizer.vocab_size, **settings or {})
    recipe = preset(name).make_recipe(seed=seed, **changes)
    seen, evaluating, started = [], 0.0, time.process_time()

    def look(model: TransformerLM, history: History) -> None:
        nonlocal evaluating
        if history.step % every and history.step != recipe.steps:
            return
        seconds = time.process_time() - started - evaluating
        loss = loss_per_token(model, corpus.validation, model.config.max_len)
        seen.append({"step": history.step, "seconds": round(seconds, 1), "loss": round(loss, 4)})
        evaluating = time.process_time() - started - seconds

    # train() measures on a small part of the validation text, which takes almost no time; here it is measured on all of
    # it.
    scrap = replace(corpus, validation=corpus.validation[: model.config.max_len + 1])
    train(model, scrap, recipe, reports=[look], progress=sys.stderr.isatty())
    return model, seen


def measure_recipes() -> dict:
    """Compare the time that the plain and the default recipe need to reach the same loss."""
    corpus, found = load_shakespeare(), {"goal": GOAL, "runs": []}
    for seed in SEEDS:
        curves = {name: run(name, corpus, seed, every)[1] for name, every in (("default", 5), ("plain", 100))}
        reached = {
            name: next((row["seconds"] for row in rows if row["loss"] <= GOAL), None) for name, rows in curves.items()
        }
        found["runs"].append({"seed": seed, "seconds": reached, "curves": curves})
        last = {name: rows[-1] for name, rows in curves.items()}
        ratio = (reached["plain"] or last["plain"]["seconds"]) / reached["default"]
        print(f"seed {seed}: loss {GOAL} after {reached} processor seconds, {ratio:.1f} times less; at the end {last}")
    return found


def measure_tricks() -> dict:
    """Undo each trick separately, with the same number of steps."""
    corpus, found = load_shakespeare(), {}
    for name, (settings, changes) in CHANGES.items():
        losses = [run("default", corpus, seed, 10**6, settings, **changes)[1][-1]["loss"] for seed in SEEDS[:2]]
        found[name] = losses
        difference = statistics.mean(losses) - statistics.mean(found["nothing"])
        print(f"{name:40}loss {statistics.mean(losses):.3f}, {difference:+.3f}")
    return found


def measure_toy() -> dict:
    """Train on the toy grammar, and count grammatical sentences among samples during training."""
    corpus, rows = load_toy(n=1_000_000), []
    start = torch.tensor([corpus.tokenizer.encode("\n")] * 128)
    for steps in (10, 25, 50, 100, 200, 400, 800):
        model, seen = run("default", corpus, 0, 10**6, steps=steps)
        texts = [corpus.tokenizer.decode(row) for row in continuation(model, start, 400, seed=0)]
        share = statistics.mean(grammatical_share("\n" + text) for text in texts)
        rows.append(seen[-1] | {"share": round(share, 4), "sample": texts[0][:160]})
        print(f"{steps} steps, {seen[-1]['seconds']} seconds: loss {seen[-1]['loss']}, {share:.1%} grammatical")
    return {"entropy": round(entropy_per_character(), 4), "rows": rows}


def measure_hebrew() -> dict:
    """Train the default preset on Hebrew instead of English."""
    corpus, losses = load_hebrew(), []
    for seed in SEEDS:
        model, seen = run("default", corpus, seed, 10**6)
        losses.append(seen[-1]["loss"])
    print(f"{corpus.name}: {corpus.tokenizer.vocab_size} characters, losses {losses}")
    return _with_samples(corpus, model) | {"corpus": corpus.name, "losses": losses}


def measure_large() -> dict:
    """Train the large preset, and record how its loss falls."""
    corpus = load_shakespeare()
    model, seen = run("large", corpus, 0, 100)
    for row in seen:
        print(row)
    test = loss_per_token(model, corpus.test, model.config.max_len)
    print(f"{model.num_parameters:,} parameters, {test:.4f} on test")
    return _with_samples(corpus, model) | {"parameters": model.num_parameters, "curve": seen, "test": round(test, 4)}


def _with_samples(corpus: Corpus, model: TransformerLM) -> dict:
    """Return sizes and a sample, for the lesson."""
    start = torch.tensor([corpus.tokenizer.encode("\n")])
    sample = corpus.tokenizer.decode(continuation(model, start, 300, temperature=0.8, seed=0)[0])
    print(sample)
    return {"characters": corpus.tokenizer.vocab_size, "tokens": len(corpus.train), "sample": sample}


def measure_sampling() -> dict:
    """Compare sampling with and without the KV cache: 500 tokens with a context of 256, for one text and for eight."""
    torch.manual_seed(0)
    model = preset("large").make_model(65, max_len=256).eval()
    torch.nn.init.normal_(model.unembed.weight, std=0.1)
    ratios = {}
    for texts in (1, 8):
        prompt, found = torch.zeros(texts, 16, dtype=torch.long), {}
        for cached in (True, False) * 4:
            started = time.process_time()
            tokens = continuation(model, prompt, 500, seed=0, cached=cached)
            found.setdefault(cached, []).append((time.process_time() - started, tokens))
        assert torch.equal(found[True][0][1], found[False][0][1]), "the cache must not change the characters"
        with_cache, without = (min(seconds for seconds, _ in found[cached]) for cached in (True, False))
        ratios[texts] = round(without / with_cache, 1)
        print(f"{texts} of 500 tokens, context 256: {ratios[texts]} times faster with the cache, the same tokens")
    return ratios


def measure_maps() -> dict:
    """Compare collecting all attention maps of a batch with a plain forward pass."""
    ratios = {}
    for n in (64, 256):
        torch.manual_seed(0)
        model = preset("default").make_model(65, max_len=n).eval()
        tokens = torch.randint(65, (16, n))
        with torch.no_grad():
            times = {call: [_seconds(call, tokens) for _ in range(15)] for call in (model, model.attention_maps)}
        plain, maps = (min(seconds) for seconds in times.values())
        ratios[n] = round(maps / plain, 2)
        print(f"16 sequences of {n}: all attention maps in {ratios[n]} times a plain forward pass")
    return ratios


def _seconds(call: Callable, tokens: torch.Tensor) -> float:
    started = time.process_time()
    call(tokens)
    return time.process_time() - started


PARTS = {
    "sampling": measure_sampling,
    "maps": measure_maps,
    "recipes": measure_recipes,
    "tricks": measure_tricks,
    "toy": measure_toy,
    "hebrew": measure_hebrew,
    "large": measure_large,
}


def main() -> None:
    """Measure all parts, or those named."""
    torch.set_num_threads(1)
    write = "--write" in sys.argv[1:]
    chosen = [name for name in sys.argv[1:] if name != "--write"] or list(PARTS)
    if unknown := set(chosen) - PARTS.keys():
        sys.exit(f"PART must be one of {', '.join(PARTS)}, got {', '.join(unknown)}.")
    for name in chosen:
        print(f"# {name}", flush=True)
        known = json.loads(RESULTS.read_text(encoding="utf-8")) if write and RESULTS.exists() else {}
        if name in known:
            print("measured before")
            continue
        found = PARTS[name]()
        if write:
            known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
            text = json.dumps(known | {name: found}, indent=1, ensure_ascii=False)
            RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
