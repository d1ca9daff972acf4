"""Training: the loop, optimizers, presets, checkpoints and results."""

from transformer_lm.lazily import exported

__all__, __getattr__ = exported(
    __name__,
    {
        "callbacks": (
            "PrintedReport",
            "TensorBoard",
            "sample_of",
            "validation_prompt",
        ),
        "checkpoints": (
            "load_checkpoint",
            "load_model",
            "newest_checkpoint",
            "save_checkpoint",
            "save_model",
        ),
        "classifiers": (
            "accuracies_over_seeds",
            "evaluate",
            "train_classifier",
            "train_together",
        ),
        "gpt2": ("from_gpt2",),
        "loop": (
            "History",
            "Recipe",
            "train",
        ),
        "muon": (
            "Muon",
            "orthogonal",
        ),
        "objectives": (
            "LanguageModelling",
            "Translation",
        ),
        "presets": (
            "PRESETS",
            "preset",
        ),
        "pretrained": ("load_trained",),
        "result_tables": ("ResultsTable",),
        "search": ("search_settings",),
    },
)
