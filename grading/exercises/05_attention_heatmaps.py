"""Exercises of topic 05: from the maps of every block to heads that can be read."""

from grading.exercises.attention_maps import ATTENTION_MAPS_RECORD
from grading.exercises.class_mass import CLASS_MASS_RECORD
from grading.exercises.find_heads import FIND_HEADS_RECORD
from grading.exercises.head_claim import HEAD_CLAIM_RECORD
from grading.exercises.induction_pattern import INDUCTION_PATTERN_RECORD
from grading.exercises.offset_profile import OFFSET_PROFILE_RECORD
from grading.exercises.pattern_score import PATTERN_SCORE_RECORD
from grading.exercises.position_null import POSITION_NULL_RECORD

RECORDS = (
    ATTENTION_MAPS_RECORD,
    OFFSET_PROFILE_RECORD,
    CLASS_MASS_RECORD,
    PATTERN_SCORE_RECORD,
    POSITION_NULL_RECORD,
    INDUCTION_PATTERN_RECORD,
    FIND_HEADS_RECORD,
    HEAD_CLAIM_RECORD,
)
