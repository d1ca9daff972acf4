"""Compare recurrent networks, without and with attention, and a transformer of equal size on translation on a CPU.

    python bench/translation.py [MODEL ...] [--write]

Trains each model on the toy languages, for the same number of steps on the same batches: with each learning rate for
the first seed, and with the best one on the validation part for the others. Prints the fraction of test sentences that
are translated exactly right, by length, and the seconds of training. `--write` also saves the results that lesson 06
shows, run by run. Saved results with the same settings are not measured again, so an interrupted run can be resumed. It
also saves the transformer of the first seed, which is part of the package. All runs take an hour or two.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from transformer_lm.modeling_encoder_decoder import EncoderDecoderConfig, TransformerEncoderDecoder
from transformer_lm.modeling_recurrent import RecurrentConfig, RecurrentEncoderDecoder
from transformer_lm.texts.pairs import Pair, PairCorpus, load_toy_pairs
from transformer_lm.training.checkpoints import save_model
from transformer_lm.training.loop import Recipe, train
from transformer_lm.translation.exact_match import aligned_share, exact_translations

ROOT = Path(__file__).parents[1]
RESULTS, SAVED = (
    ROOT / "notebooks" / "translation_results.json",
    ROOT / "transformer_lm" / "pretrained" / "lorin.safetensors",
)
PAIRS, TESTED, STEPS, BATCH, SEEDS = 100_000, 20_000, 2400, 128, (0, 1, 2)
MUON = 7.5  # its learning rate is this many times that of the other parameters
LENGTHS = {
    "up to 8": range(9),
    "9 to 12": range(9, 13),
    "13 to 16": range(13, 17),
    "17 to 20": range(17, 21),
    "21 or more": range(21, 999),
}

# Widths chosen so that all models have about the same number of parameters.
MODELS = {
    "GRU": {"cell": "gru", "attention": False, "hidden": 104},
    "LSTM": {"cell": "lstm", "attention": False, "hidden": 89},
    "GRU with attention": {"cell": "gru", "attention": True, "hidden": 84},
    "LSTM with attention": {"cell": "lstm", "attention": True, "hidden": 74},
    "transformer": {"hidden": 64, "num_layers": 2, "num_heads": 4, "shift": 30},
}
# A factor of two apart, and enough of them that the best is not the first or the last.
RATES = {
    "GRU": (1e-3, 2e-3, 4e-3, 8e-3),
    "LSTM": (1e-3, 2e-3, 4e-3, 8e-3),
    "GRU with attention": (1e-3, 2e-3, 4e-3),
    "LSTM with attention": (1e-3, 2e-3, 4e-3),
    "transformer": (1e-3, 2e-3, 4e-3, 8e-3),
}


def make_corpus() -> PairCorpus:
    """Return the pairs, with a larger test part, so that there are enough long ones."""
    corpus = load_toy_pairs(20 * TESTED)
    return replace(corpus, train=corpus.train[:PAIRS], validation=corpus.validation[: PAIRS // 20])


def make_model(name: str, corpus: PairCorpus) -> nn.Module:
    """Return an untrained model."""
    sizes = corpus.source_tokenizer.vocab_size, corpus.target_tokenizer.vocab_size
    if name == "transformer":
        return TransformerEncoderDecoder(EncoderDecoderConfig(*sizes, shared=True, **MODELS[name]))
    return RecurrentEncoderDecoder(RecurrentConfig(*sizes, shared=True, **MODELS[name]))


def make_recipe(name: str, seed: int, rate: float) -> Recipe:
    """Return the training settings of a model."""
    rates = {"learning_rate": rate, "matrix_learning_rate": MUON * rate}
    optimizer = "muon" if name == "transformer" else "adamw"
    shape = {"schedule": "plateau", "warmup": 50, "decay": 0.9, "betas": (0.9, 0.98)}
    return Recipe(STEPS, BATCH, optimizer, seed=seed, **rates, **shape)


def measured(name: str, seed: int, rate: float, corpus: PairCorpus) -> tuple[nn.Module, dict]:
    """Train a model; return it with the measurements."""
    torch.manual_seed(seed)
    model, recipe = make_model(name, corpus), make_recipe(name, seed, rate)
    started = time.perf_counter()
    train(model, corpus, recipe, progress=sys.stderr.isatty())
    seconds = time.perf_counter() - started
    exact = exact_translations(model, corpus.test)
    row = {
        "seed": seed,
        "rate": rate,
        "parameters": model.num_parameters,
        "threads": torch.get_num_threads(),
        "seconds": round(seconds),
        "validation": share(exact_translations(model, corpus.validation)),
        "exact": share(exact),
        "by_length": {
            length: share([right for right, pair in zip(exact, corpus.test, strict=True) if len(pair[0]) in words])
            for length, words in LENGTHS.items()
        },
    }
    if getattr(model, "attention", True) is not None:
        row["aligned"] = round(aligned_share(model, corpus.tokenizer, corpus.test[:1000]), 4)
    return model, row


def share(rights: list[bool]) -> float:
    """Return the fraction that is right."""
    return round(sum(rights) / len(rights), 4)


def length_shares(pairs: list[Pair]) -> dict[str, float]:
    """Return the fraction of pairs with a source of each length."""
    return {length: share([len(source) in words for source, _ in pairs]) for length, words in LENGTHS.items()}


def main(arguments: list[str]) -> None:
    """Measure the requested models, print the results, and write them if asked to."""
    write = "--write" in arguments
    names = [name for name in arguments if name != "--write"] or list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        sys.exit(f"MODEL must be one of {', '.join(MODELS)}, got {unknown[0]!r}.")
    corpus = make_corpus()
    for name in names:
        runs: list[dict] = results(corpus)["tried"][name] if write else []
        for seed in SEEDS:
            rates = RATES[name] if seed == SEEDS[0] else [best_run(runs)["rate"]]
            for rate in rates:
                if any(run["seed"] == seed and run["rate"] == rate for run in runs):
                    continue
                model, row = measured(name, seed, rate, corpus)
                print(name, json.dumps(row), flush=True)
                runs.append(row)
                if write:
                    write_results(results(corpus), name, runs)
                    if name == "transformer" and row is best_run(runs):
                        save_model(SAVED, model, corpus.tokenizer)


def best_run(runs: list[dict]) -> dict:
    """Return the first seed's best run on the validation part."""
    return max((run for run in runs if run["seed"] == SEEDS[0]), key=lambda run: run["validation"])


def write_results(known: dict, name: str, runs: list[dict]) -> None:
    """Write the results: all runs, and those with the chosen learning rate, which count."""
    known["tried"][name] = runs
    known["models"][name] = [run for run in runs if run["rate"] == best_run(runs)["rate"]]
    RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def results(corpus: PairCorpus) -> dict:
    """Return earlier results with the same settings."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    settings = {"pairs": PAIRS, "tested": TESTED, "steps": STEPS, "batch": BATCH, "rates": RATES, "settings": MODELS}
    settings = json.loads(json.dumps(settings))  # as they are written
    if all(known.get(name) == value for name, value in settings.items()):
        return known
    nothing = {part: {name: [] for name in MODELS} for part in ("tried", "models")}
    return settings | {"train_lengths": length_shares(corpus.train)} | nothing


if __name__ == "__main__":
    main(sys.argv[1:])
