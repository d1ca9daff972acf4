"""The exercise of topic 03 about select pooling."""

from grading.exercises.topic_03_classification.pools import pool_record
from transformer_lm.checks.topic_03_classification.select_pool import SELECT_POOL

SELECT_POOL_RECORD = pool_record(SELECT_POOL, "The first token")
