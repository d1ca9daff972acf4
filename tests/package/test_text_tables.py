"""Text tables: aligned columns, and no blanks at the ends of lines."""

from transformer_lm.text_tables import aligned

ROWS = [("name", "points"), ("a", "10"), ("longer", "")]


def test_columns_are_aligned_to_the_left_or_to_the_right():
    assert aligned(ROWS).split("\n") == ["name    points", "a       10", "longer"]
    assert aligned(ROWS, left=1).split("\n") == ["name    points", "a           10", "longer"]


def test_a_table_without_rows_is_empty():
    assert aligned([]) == ""
