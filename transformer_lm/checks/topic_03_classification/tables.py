"""A check shared by the exercises with embeddings: whether the table has the right size."""

from torch import nn

from transformer_lm.checks.engine.catalogue import hint
from transformer_lm.checks.engine.failure import CheckFailed, kind


def check_table(tried: str, module: object, name: str, rows: int, hidden: int) -> None:
    """Raise CheckFailed if a module has no embedding of that name and size."""
    table = getattr(module, name, None)
    fits = isinstance(table, nn.Embedding) and table.weight.shape == (rows, hidden)
    if isinstance(module, nn.Module) and not fits:
        yours = repr(table) if isinstance(table, nn.Module) else kind(table)
        expected = f"self.{name} is nn.Embedding({rows}, {hidden})"
        known = hint("not-an-embedding-table", name=name)
        raise CheckFailed(tried, f"self.{name} is {yours}", expected, known)
