"""Checks to run while you work: one line when your answer is right, four lines when it is not.

Each takes what your cell defines: `checks.self_attention(SelfAttention)`. They compare with frozen values
and hold no solution.
"""

from collections.abc import Callable

from transformer_lm.checks.attention_maps import ATTENTION_MAPS, attention_maps
from transformer_lm.checks.beam_search import BEAM_SEARCH, beam_search
from transformer_lm.checks.causal_attention import (
    CAUSAL_MASK,
    MASKED_SELF_ATTENTION,
    MULTI_HEAD_ATTENTION_LAYER,
    causal_mask,
    masked_self_attention,
    multi_head_attention_layer,
)
from transformer_lm.checks.classifier import (
    MAX_POOL,
    MEAN_POOL,
    POSITION_EMBEDDING,
    SELECT_POOL,
    SEQUENCE_CLASSIFIER,
    max_pool,
    mean_pool,
    position_embedding,
    select_pool,
    sequence_classifier,
)
from transformer_lm.checks.cross_attention import CROSS_ATTENTION, cross_attention
from transformer_lm.checks.cross_block import CROSS_BLOCK, cross_block
from transformer_lm.checks.decoder_block import DECODER_BLOCK, decoder_block
from transformer_lm.checks.embed import EMBED, embed
from transformer_lm.checks.encoder_block import ENCODER_BLOCK, ENCODER_DROPOUT, encoder_block, encoder_block_output
from transformer_lm.checks.experiment import FULL_EXPERIMENT, SIMPLE_EXPERIMENT, full_experiment, simple_experiment
from transformer_lm.checks.find_heads import FIND_HEADS, find_heads, planted_heads
from transformer_lm.checks.greedy_decode import GREEDY_DECODE, greedy_decode
from transformer_lm.checks.head_aggregates import (
    CLASS_MASS,
    OFFSET_PROFILE,
    PATTERN_SCORE,
    POSITION_NULL,
    class_mass,
    offset_profile,
    pattern_score,
    position_null,
)
from transformer_lm.checks.head_claim import (
    HEAD_CLAIM,
    head_claim_ablation,
    head_claim_numbers,
    head_claim_pattern,
)
from transformer_lm.checks.induction_pattern import INDUCTION_PATTERN, induction_pattern
from transformer_lm.checks.labels_and_loss import LABELS, LOSS, labels, loss
from transformer_lm.checks.language_model import (
    LANGUAGE_MODEL,
    LAST_POSITION_BITS,
    language_model,
    last_position_bits,
)
from transformer_lm.checks.masking import MASK_FUTURE, mask_future
from transformer_lm.checks.multi_head_attention import (
    MULTI_HEAD_ATTENTION,
    MULTI_HEAD_DROPOUT,
    multi_head_attention,
    multi_head_mask,
    multi_head_scores,
)
from transformer_lm.checks.next_probabilities import NEXT_PROBABILITIES, next_probabilities
from transformer_lm.checks.padded_attention import (
    FULL_ATTENTION,
    SIMPLE_ATTENTION,
    full_attention,
    full_attention_whole,
    simple_attention,
    simple_attention_whole,
)
from transformer_lm.checks.padding import PAD_BATCH, pad_batch
from transformer_lm.checks.random_slices import SLICES, slices
from transformer_lm.checks.ready_made import READY_MADE
from transformer_lm.checks.report import CheckFailed
from transformer_lm.checks.sampling import SAMPLING, sampling
from transformer_lm.checks.self_attention import (
    ATTENTION_SCORES,
    KQV,
    SELF_ATTENTION,
    attention_scores,
    kqv,
    kqv_parameters,
    self_attention,
    self_attention_layers,
)
from transformer_lm.checks.shape_comments import check_shape_comments
from transformer_lm.checks.shift_target import SHIFT_TARGET, shift_target
from transformer_lm.checks.sinusoids import SINUSOIDS, sinusoids
from transformer_lm.checks.student_test import STUDENT_TEST, student_test
from transformer_lm.checks.style import length_of_forward, style
from transformer_lm.checks.target_mask import TARGET_MASK, target_mask
from transformer_lm.checks.training_run import TRAINING_RUN, training_run

EXERCISES = {
    exercise.id: exercise
    for exercise in (
        KQV,
        ATTENTION_SCORES,
        SELF_ATTENTION,
        STUDENT_TEST,
        CAUSAL_MASK,
        MASKED_SELF_ATTENTION,
        MULTI_HEAD_ATTENTION_LAYER,
        MULTI_HEAD_ATTENTION,
        MULTI_HEAD_DROPOUT,
        DECODER_BLOCK,
        PAD_BATCH,
        MEAN_POOL,
        MAX_POOL,
        SELECT_POOL,
        SEQUENCE_CLASSIFIER,
        POSITION_EMBEDDING,
        SIMPLE_ATTENTION,
        FULL_ATTENTION,
        ENCODER_BLOCK,
        ENCODER_DROPOUT,
        SIMPLE_EXPERIMENT,
        FULL_EXPERIMENT,
        LABELS,
        LOSS,
        SLICES,
        MASK_FUTURE,
        EMBED,
        LANGUAGE_MODEL,
        LAST_POSITION_BITS,
        NEXT_PROBABILITIES,
        SAMPLING,
        TRAINING_RUN,
        ATTENTION_MAPS,
        OFFSET_PROFILE,
        CLASS_MASS,
        PATTERN_SCORE,
        POSITION_NULL,
        INDUCTION_PATTERN,
        FIND_HEADS,
        HEAD_CLAIM,
        SHIFT_TARGET,
        SINUSOIDS,
        CROSS_ATTENTION,
        TARGET_MASK,
        CROSS_BLOCK,
        GREEDY_DECODE,
        BEAM_SEARCH,
    )
}


def shape_comments(exercise: str, answer: Callable) -> None:
    """Check the comments in the student's cell that give shapes, for the exercise with that id."""
    check_shape_comments(EXERCISES[exercise], answer)


def short_forward(exercise: str, answer: Callable) -> None:
    """Say whether the student's `forward` is short enough for an extra point, for the exercise with that id."""
    if EXERCISES[exercise].calls_ready_made(answer):
        print(f"There is no extra point: {READY_MADE}")
    else:
        length_of_forward(answer)


__all__ = [
    "EXERCISES",
    "CheckFailed",
    "attention_maps",
    "attention_scores",
    "beam_search",
    "causal_mask",
    "class_mass",
    "cross_attention",
    "cross_block",
    "decoder_block",
    "embed",
    "encoder_block",
    "encoder_block_output",
    "find_heads",
    "full_attention",
    "full_attention_whole",
    "full_experiment",
    "greedy_decode",
    "head_claim_ablation",
    "head_claim_numbers",
    "head_claim_pattern",
    "induction_pattern",
    "kqv",
    "kqv_parameters",
    "labels",
    "language_model",
    "last_position_bits",
    "loss",
    "mask_future",
    "masked_self_attention",
    "max_pool",
    "mean_pool",
    "multi_head_attention",
    "multi_head_attention_layer",
    "multi_head_mask",
    "multi_head_scores",
    "next_probabilities",
    "offset_profile",
    "pad_batch",
    "pattern_score",
    "planted_heads",
    "position_embedding",
    "position_null",
    "sampling",
    "select_pool",
    "self_attention",
    "self_attention_layers",
    "sequence_classifier",
    "shape_comments",
    "shift_target",
    "short_forward",
    "simple_attention",
    "simple_attention_whole",
    "simple_experiment",
    "sinusoids",
    "slices",
    "student_test",
    "style",
    "target_mask",
    "training_run",
]
