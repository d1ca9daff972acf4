"""Exercises of topic 06: from a target that is shifted and masked to translations that a beam search finds."""

from grading.exercises.beam_search import BEAM_SEARCH_RECORD
from grading.exercises.cross_attention import CROSS_ATTENTION_RECORD
from grading.exercises.cross_block import CROSS_BLOCK_RECORD
from grading.exercises.greedy_decode import GREEDY_DECODE_RECORD
from grading.exercises.shift_target import SHIFT_TARGET_RECORD
from grading.exercises.sinusoids import SINUSOIDS_RECORD
from grading.exercises.target_mask import TARGET_MASK_RECORD

RECORDS = (
    SINUSOIDS_RECORD,
    SHIFT_TARGET_RECORD,
    TARGET_MASK_RECORD,
    CROSS_ATTENTION_RECORD,
    CROSS_BLOCK_RECORD,
    GREEDY_DECODE_RECORD,
    BEAM_SEARCH_RECORD,
)
