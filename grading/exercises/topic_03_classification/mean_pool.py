"""The exercise of topic 03 about mean pooling."""

from grading.exercises.topic_03_classification.pools import pool_record
from transformer_lm.checks.topic_03_classification.mean_pool import MEAN_POOL

MEAN_POOL_RECORD = pool_record(MEAN_POOL, "The mean of real tokens")
