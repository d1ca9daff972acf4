"""Translation on a CPU: recurrent nets without and with attention against the transformer, at equal parameters.

    python bench/translation.py [MODEL ...] [--write]

Trains each model three times on the toy languages, for as many steps on the same batches, and prints how many sentences
of the test part come out exactly right, by length, and the processor time of training with one thread. `--write` also
writes what lesson 06 shows, run by run; what stands there already, of the same settings, is not measured again, so a
run that was cut short can go on. It also saves the transformer of the first seed, which comes with the package. All
runs take about 45 minutes.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

from transformer_lm.checkpoints import save_model
from transformer_lm.modeling_encoder_decoder import EncoderDecoderConfig, TransformerEncoderDecoder
from transformer_lm.modeling_recurrent import RecurrentConfig, RecurrentEncoderDecoder
from transformer_lm.pairs import Pair, PairCorpus, load_toy_pairs
from transformer_lm.training import Recipe, train
from transformer_lm.translation_quality import aligned_share, exact_translations

ROOT = Path(__file__).parents[1]
RESULTS, SAVED = (
    ROOT / "notebooks" / "translation_results.json",
    ROOT / "transformer_lm" / "trained" / "lorin.safetensors",
)
PAIRS, STEPS, SEEDS = 100_000, 4800, (0, 1, 2)
LENGTHS = {
    "up to 8": range(9),
    "9 to 12": range(9, 13),
    "13 to 16": range(13, 17),
    "17 to 20": range(17, 21),
    "21 or more": range(21, 999),
}

# Width such that all have about as many parameters, and the settings of the recipe that differ.
RECURRENT = {"optimizer": "adamw", "learning_rate": 3e-3}
ATTENTIVE = RECURRENT | {"learning_rate": 1.5e-3}  # of 1.5e-3, 3e-3 and 6e-3 the best for the GRU
MODELS = {
    "GRU": ({"cell": "gru", "attention": False, "hidden": 105}, RECURRENT),
    "LSTM": ({"cell": "lstm", "attention": False, "hidden": 89}, RECURRENT),
    "GRU with attention": ({"cell": "gru", "attention": True, "hidden": 84}, ATTENTIVE),
    "LSTM with attention": ({"cell": "lstm", "attention": True, "hidden": 74}, ATTENTIVE),
    "transformer": ({"hidden": 64, "num_layers": 2, "num_heads": 4}, {"optimizer": "muon", "learning_rate": 3e-3}),
}


def make_model(name: str, corpus: PairCorpus) -> nn.Module:
    """Return an untrained model."""
    settings, _ = MODELS[name]
    sizes = corpus.source_tokenizer.vocab_size, corpus.target_tokenizer.vocab_size
    if name == "transformer":
        return TransformerEncoderDecoder(EncoderDecoderConfig(*sizes, shared=True, **settings))
    return RecurrentEncoderDecoder(RecurrentConfig(*sizes, shared=True, **settings))


def measured(name: str, seed: int, corpus: PairCorpus) -> tuple[nn.Module, dict]:
    """Train a model; return it and what was seen."""
    torch.manual_seed(seed)
    model, (_, changes) = make_model(name, corpus), MODELS[name]
    recipe = Recipe(STEPS, 64, schedule="plateau", warmup=50, decay=0.9, betas=(0.9, 0.98), seed=seed, **changes)
    started, clock = time.process_time(), time.perf_counter()
    train(model, corpus, recipe, progress=sys.stderr.isatty())
    seconds, wall = time.process_time() - started, time.perf_counter() - clock
    exact = exact_translations(model, corpus.test)
    row = {
        "seed": seed,
        "parameters": model.num_parameters,
        "seconds": round(seconds),
        "wall_seconds": round(wall),
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
    """Return how many of several are right."""
    return round(sum(rights) / len(rights), 4)


def length_shares(pairs: list[Pair]) -> dict[str, float]:
    """Return which share of pairs has a source of each length."""
    return {length: share([len(source) in words for source, _ in pairs]) for length, words in LENGTHS.items()}


def main(arguments: list[str]) -> None:
    """Measure what is asked for, print it and write it if asked to."""
    torch.set_num_threads(1)
    write = "--write" in arguments
    names = [name for name in arguments if name != "--write"] or list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        sys.exit(f"MODEL must be one of {', '.join(MODELS)}, got {unknown[0]!r}.")
    corpus = load_toy_pairs(PAIRS)
    for seed in SEEDS:
        for name in names:
            saves = name == "transformer" and seed == 0
            known = any(run["seed"] == seed for run in results(corpus)["models"][name])
            if write and known and (SAVED.exists() or not saves):
                continue
            model, row = measured(name, seed, corpus)
            print(name, json.dumps(row), flush=True)
            if write:
                known = results(corpus)  # once more: another process may have written meanwhile
                runs = [run for run in known["models"][name] if run["seed"] != seed]
                known["models"][name] = sorted((*runs, row), key=lambda run: run["seed"])
                RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
                if saves:
                    save_model(SAVED, model, corpus.tokenizer)


def results(corpus: PairCorpus) -> dict:
    """Return what was measured before, of the same settings."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    settings = {"pairs": PAIRS, "steps": STEPS, "settings": MODELS}
    settings = json.loads(json.dumps(settings))  # as they are written
    if all(known.get(name) == value for name, value in settings.items()):
        return known
    return settings | {"train_lengths": length_shares(corpus.train), "models": {name: [] for name in MODELS}}


if __name__ == "__main__":
    main(sys.argv[1:])
