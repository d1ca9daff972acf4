"""The exercise of topic 03 about max pooling."""

from grading.exercises.topic_03_classification.pools import pool_record
from transformer_lm.checks.topic_03_classification.max_pool import MAX_POOL

MAX_POOL_RECORD = pool_record(MAX_POOL, "The maximum of real tokens")
