"""The analysis of attention heads: recording, patterns, scores and ablation."""

from transformer_lm.lazily import exported

__all__, __getattr__ = exported(
    __name__,
    {
        "ablation": (
            "ablate_heads",
            "mean_outputs",
            "without_head",
        ),
        "character_classes": (
            "CLASSES",
            "Alphabet",
            "character_class",
        ),
        "patterns": ("PATTERNS",),
        "planted": (
            "planted_model",
            "planted_text",
            "planted_tokenizer",
        ),
        "recording": (
            "attention_layers",
            "record_attention",
        ),
        "repeats": (
            "repeated_tokens",
            "with_repeats",
        ),
        "report": (
            "score_table",
            "summary",
        ),
        "scores": (
            "BY_PLACE",
            "HeadSums",
            "Measured",
            "PatternScore",
            "by_distance",
            "measure_heads",
            "rollout",
        ),
    },
)
