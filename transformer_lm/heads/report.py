"""Tables of what the heads of a model do, printed by `python -m transformer_lm heads`."""

from collections.abc import Mapping

from transformer_lm.heads.ablation import LossChange
from transformer_lm.heads.scores import Measured, is_about_place
from transformer_lm.text_tables import aligned

NO_NAME = "-"
MARK = "*"  # after a score that stands out


def summary(measured: Measured, changes: Mapping[tuple[int, int], LossChange] | None = None) -> str:
    """Return a line for each head: what it does, its score with the two baselines, and general statistics.

    With `changes`, the line also has the rise of the loss without the head.
    """
    known = measured.patterns | measured.offset_scores()
    titles = ["head", "does", "score", "chance", "null", "entropy", "distance"]
    rows = [titles + ["loss without it"] * (changes is not None)]
    for layer, names in enumerate(measured.names()):
        for head, name in enumerate(names):
            row = [f"{layer}.{head}", name or NO_NAME]
            found = None if name is None else known.get(name)
            numbers = ["", "", ""]
            if name is not None and found is not None:
                null = NO_NAME if is_about_place(name) else f"{found.null[layer, head]:.2f}"
                numbers = [f"{found.score[layer, head]:.2f}", f"{found.chance:.2f}", null]
            row += [*numbers, f"{measured.entropy[layer, head]:.2f}", f"{measured.distance[layer, head]:.1f}"]
            if changes is not None:
                row.append(f"{changes[layer, head].change:+.3f}")
            rows.append(row)
    return aligned(rows, left=2)


def score_table(measured: Measured) -> str:
    """Return the score of every head for every pattern, a column for each head; a star marks the one that names it."""
    names = measured.names()
    layers, heads = measured.entropy.shape
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    found_offsets = {name for layer in names for name in layer if name in measured.offset_scores()}
    offsets = {name: found for name, found in measured.offset_scores().items() if name in found_offsets}
    rows = [["pattern", "chance", *(f"{layer}.{head}" for layer, head in every)]]
    for name, found in (measured.patterns | offsets).items():
        scores = [
            f"{found.score[layer, head]:.2f}{MARK if names[layer][head] == name else ' '}" for layer, head in every
        ]
        rows.append([name, f"{found.chance:.2f}", *scores])
    return aligned(rows, left=2)
