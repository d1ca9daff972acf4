"""Exercises of topic 04: from labels and a loss to a language model that continues a text."""

from grading.exercises.embed import EMBED_RECORD
from grading.exercises.labels import LABELS_RECORD
from grading.exercises.language_model import LANGUAGE_MODEL_RECORD
from grading.exercises.last_position_bits import LAST_POSITION_BITS_RECORD
from grading.exercises.loss import LOSS_RECORD
from grading.exercises.mask_future import MASK_FUTURE_RECORD
from grading.exercises.next_probabilities import NEXT_PROBABILITIES_RECORD
from grading.exercises.sampling import SAMPLING_RECORD
from grading.exercises.slices import SLICES_RECORD
from grading.exercises.training_run import TRAINING_RUN_RECORD

RECORDS = (
    LABELS_RECORD,
    LOSS_RECORD,
    SLICES_RECORD,
    MASK_FUTURE_RECORD,
    EMBED_RECORD,
    LANGUAGE_MODEL_RECORD,
    LAST_POSITION_BITS_RECORD,
    NEXT_PROBABILITIES_RECORD,
    SAMPLING_RECORD,
    TRAINING_RUN_RECORD,
)
