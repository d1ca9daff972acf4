"""Compare the baseline, attention, a transformer of three blocks and logistic regression on real film reviews.

Prints validation accuracy by epoch, and time as a ratio to the baseline's. `--write` also saves the results that lesson
03 shows, model by model. Saved results are not measured again, so an interrupted run can be resumed. All models take
about half an hour on two cores. Needs the reviews; see data/README.md.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from transformer_lm.datasets import Dataset, imdb_is_here, load_imdb
from transformer_lm.modeling_classifier import make_classifier
from transformer_lm.training.classifiers import train_classifier

RESULTS = Path(__file__).parents[1] / "notebooks" / "imdb_results.json"
EPOCHS = 5
WHOLE = 4096  # longer than any review


class BagOfWords(nn.Module):
    """Logistic regression on the set of words that occur, regardless of count and order."""

    def __init__(self, vocab_size: int, num_classes: int, pad: int) -> None:
        super().__init__()
        self.classify = nn.Linear(vocab_size, num_classes)
        self.pad = pad

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a score for each class, (b, num_classes), of tokens (b, n)."""
        occurs = torch.zeros(len(tokens), self.classify.in_features).scatter_(1, tokens, 1)
        occurs[:, self.pad] = 0
        return self.classify(occurs)


def main() -> None:
    """Train each model once and print the results."""
    if not imdb_is_here():
        print("The reviews of IMDb are not here: data/README.md says how to get them. Nothing was measured.")
        return
    write = "--write" in sys.argv[1:]
    data = load_imdb(download=False)
    known = {row["model"]: row for row in json.loads(RESULTS.read_text())} if write and RESULTS.exists() else {}
    rows: list[dict] = []
    for name, options in MODELS.items():
        rows.append(known.pop(name, None) or measured(name, data, **options))
        if write:
            RESULTS.write_text(json.dumps([*rows, *known.values()], indent=1) + "\n", encoding="utf-8")
        shown = " ".join(f"{accuracy:.3f}" for accuracy in rows[-1]["val_accuracy"])
        ratio = rows[-1]["seconds"] / rows[0]["seconds"]
        print(f"{name:40}best {rows[-1]['accuracy']:.3f}, by epoch {shown}, {ratio:.1f} times the baseline's time")


def measured(name: str, data: Dataset, model: str, settings: dict, **options: object) -> dict:
    """Return the history of one training run."""
    _, _, (i2w, w2i), num_classes = data
    torch.manual_seed(0)
    if model == "bag of words":
        made = BagOfWords(len(i2w), num_classes, w2i[".pad"])
    else:
        cls = w2i[".start"] if options.get("pool") == "cls" else None
        made = make_classifier(model, len(i2w), num_classes, pad=w2i[".pad"], cls=cls, **options)
    started = time.perf_counter()
    history = train_classifier(made, data, **{"epochs": EPOCHS, "patience": 1} | settings)
    return {
        "model": name,
        "options": options,
        "settings": settings,
        "val_accuracy": [round(accuracy, 4) for accuracy in history.val_accuracy],
        "accuracy": round(history.accuracy, 4),
        "seconds": round(time.perf_counter() - started, 1),
    }


FAST = {"learning_rate": 3e-3, "batch_tokens": 2**14}
SLOW = {"learning_rate": 1e-3, "batch_tokens": 2**13}
MODELS = {
    "baseline, mean": {"model": "baseline", "pool": "mean", "hidden": 300, "settings": FAST},
    "baseline, max": {"model": "baseline", "pool": "max", "hidden": 300, "settings": FAST},
    "baseline, select": {"model": "baseline", "pool": "select", "hidden": 300, "settings": FAST},
    "simple attention, mean": {"model": "simple", "pool": "mean", "hidden": 64, "settings": FAST},
    "full attention, mean": {"model": "full", "pool": "mean", "hidden": 64, "num_heads": 4, "settings": SLOW},
    "full attention + positions, mean": {
        "model": "full", "pool": "mean", "hidden": 64, "num_heads": 4, "positions": True, "settings": SLOW,
    },
    "logistic regression, 256 words": {"model": "bag of words", "settings": FAST | {"learning_rate": 1e-3}},
    "logistic regression, whole reviews": {
        "model": "bag of words", "settings": FAST | {"learning_rate": 1e-3, "max_len": WHOLE},
    },
    "transformer of 3 blocks, cls, 128 words": {
        "model": "transformer", "pool": "cls", "hidden": 64, "num_heads": 4, "positions": True, "dropout": 0.2,
        "settings": SLOW | {"max_len": 128, "epochs": 3},
    },
}  # fmt: skip

if __name__ == "__main__":
    main()
