"""Translation: training targets, decoding and scores."""

from transformer_lm.lazily import exported

__all__, __getattr__ = exported(
    __name__,
    {
        "transformer_lm.modeling_encoder_decoder": ("target_mask",),
        "bleu": (
            "TranslationScores",
            "translation_scores",
        ),
        "decoding": (
            "beam_search",
            "greedy_decode",
            "sample_decode",
            "translated",
        ),
        "exact_match": (
            "aligned_share",
            "cross_attention_map",
            "exact_translations",
        ),
        "targets": (
            "shift_target",
            "translation_loss",
        ),
    },
)
