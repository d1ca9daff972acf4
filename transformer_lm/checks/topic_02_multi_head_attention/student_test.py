"""Check of topic 02: a test that a student has written for attention scores.

The wrong versions are made from the right one, so this file contains no solution.
"""

import math
from collections.abc import Callable

from torch import Tensor

from transformer_lm.attention import attention_scores
from transformer_lm.checks.engine.written_tests import TestExercise


def _root(queries: Tensor) -> float:
    return math.sqrt(queries.shape[-1])


def _keys_viewed(queries: Tensor, keys: Tensor) -> Tensor:
    b, j, dh = keys.shape
    return attention_scores(queries, keys.reshape(b, dh, j).mT)


def _first_for_all(queries: Tensor, keys: Tensor) -> Tensor:
    scores = attention_scores(queries, keys)
    return scores[:1].expand_as(scores)


def _shares(queries: Tensor, keys: Tensor) -> Tensor:
    exponentials = attention_scores(queries, keys).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def _last_key_left_out(queries: Tensor, keys: Tensor) -> Tensor:
    scores = attention_scores(queries, keys).clone()
    scores[..., -1] = 0
    return scores


def _first_query_for_the_last(queries: Tensor, keys: Tensor) -> Tensor:
    scores = attention_scores(queries, keys).clone()
    scores[:, -1] = scores[:, 0]
    return scores


STUDENT_TEST = TestExercise(
    id="student-test",
    name="test_attention_scores",
    right=attention_scores,
    wrong={
        "does not scale": lambda queries, keys: attention_scores(queries, keys) * _root(queries),
        "divides by the width instead of its root": lambda queries, keys: (
            attention_scores(queries, keys) / _root(queries)
        ),
        "scales by the number of keys": lambda queries, keys: (
            attention_scores(queries, keys) * _root(queries) / math.sqrt(keys.shape[1])
        ),
        "gives a row to each key and a column to each query": lambda queries, keys: attention_scores(keys, queries),
        "reshapes the keys by view instead of transposing them": _keys_viewed,
        "gives every sequence the scores of the first": _first_for_all,
        "compares the queries with themselves": lambda queries, keys: attention_scores(queries, queries),
        "returns weights that sum to 1 instead of scores": _shares,
        "leaves out the last key": _last_key_left_out,
        "gives the last query the scores of the first": _first_query_for_the_last,
    },
)


def student_test(test: Callable) -> None:
    """Check the student's `test_attention_scores`: it must accept the right function, and refuse wrong versions."""
    STUDENT_TEST.check(test)
