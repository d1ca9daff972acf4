"""Accessible figures for notebooks: weights, heads, training, results."""

from transformer_lm.lazily import exported

__all__, __getattr__ = exported(
    __name__,
    {
        "heads": (
            "plot_mass",
            "plot_profile",
            "plot_scores",
            "plot_training",
        ),
        "heatmaps": (
            "plot_heads",
            "plot_layers",
            "plot_weights",
        ),
        "pictures": (
            "picture",
            "show",
        ),
        "results": (
            "plot_curves",
            "plot_results",
        ),
        "training": (
            "LiveCurves",
            "curves",
        ),
        "translation": (
            "plot_by_length",
            "table_by_length",
        ),
        "viewer": ("view_attention",),
    },
)
