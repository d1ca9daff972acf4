"""Exercises of topic 03: from padded batches to a transformer that classifies."""

from grading.exercises.encoder_block import ENCODER_BLOCK_RECORD
from grading.exercises.experiments import FULL_EXPERIMENT_RECORD, SIMPLE_EXPERIMENT_RECORD
from grading.exercises.full_attention import FULL_ATTENTION_RECORD
from grading.exercises.pad_batch import PAD_BATCH_RECORD
from grading.exercises.pooled import POOL_RECORDS
from grading.exercises.position_embedding import POSITION_EMBEDDING_RECORD
from grading.exercises.sequence_classifier import SEQUENCE_CLASSIFIER_RECORD
from grading.exercises.simple_attention import SIMPLE_ATTENTION_RECORD

RECORDS = (
    PAD_BATCH_RECORD,
    *POOL_RECORDS,
    SEQUENCE_CLASSIFIER_RECORD,
    SIMPLE_ATTENTION_RECORD,
    SIMPLE_EXPERIMENT_RECORD,
    FULL_ATTENTION_RECORD,
    FULL_EXPERIMENT_RECORD,
    POSITION_EMBEDDING_RECORD,
    ENCODER_BLOCK_RECORD,
)
