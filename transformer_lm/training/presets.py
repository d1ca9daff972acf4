"""Presets: model sizes and matching recipes, by name."""

from dataclasses import dataclass, replace
from typing import Any

from transformer_lm.modeling_lm import LMConfig, TransformerLM
from transformer_lm.training.loop import Recipe

# The options in which modern small models differ from GPT-2.
MODERN = {
    "positions": "rotary",
    "norm": "plain",
    "query_key_norm": True,
    "mlp": "relu_squared",
    "bias": False,
    "tied": False,
    "smear": True,
    "init": "zero_output",
}


@dataclass(frozen=True)
class Preset:
    """The settings of a model without its vocabulary, and a recipe to train it."""

    settings: dict
    recipe: Recipe

    def make_config(self, vocab_size: int, **changes: Any) -> LMConfig:
        """Return the settings of a model, with changes."""
        return LMConfig(vocab_size, **self.settings | changes)

    def make_model(self, vocab_size: int, **changes: Any) -> TransformerLM:
        """Return an untrained model, with changes to its settings."""
        return TransformerLM(self.make_config(vocab_size, **changes))

    def make_recipe(self, **changes: Any) -> Recipe:
        """Return the recipe with changes."""
        return replace(self.recipe, **changes)


PRESETS = {
    # Built and trained like GPT-2 and the first transformers; 0.8 million parameters.
    "plain": Preset({}, Recipe(2000, learning_rate=1e-3, weight_decay=0.1, schedule="cosine", warmup=100)),
    # The same size and batch, but the same loss in a fraction of the time, as bench/language_model.py measures.
    "default": Preset(
        MODERN,
        Recipe(140, optimizer="muon", learning_rate=1.5e-2, matrix_learning_rate=0.03, schedule="plateau", warmup=5),
    ),
    # For ten minutes on one core.
    "large": Preset(
        MODERN | {"hidden": 192, "num_heads": 6, "max_len": 128},
        Recipe(1000, optimizer="muon", learning_rate=1e-2, schedule="plateau", warmup=5),
    ),
}


def preset(name: str) -> Preset:
    """Return a preset. Raises ValueError for an unknown name."""
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}.")
    return PRESETS[name]
