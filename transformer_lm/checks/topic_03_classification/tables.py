"""A check that exercises with embeddings share: is the table of the right size?"""

from torch import nn

from transformer_lm.checks.engine.failure import CheckFailed, kind


def check_table(tried: str, module: object, name: str, rows: int, hidden: int) -> None:
    """Raise CheckFailed if a module has no embedding of that name and size."""
    table = getattr(module, name, None)
    fits = isinstance(table, nn.Embedding) and table.weight.shape == (rows, hidden)
    if isinstance(module, nn.Module) and not fits:
        yours = repr(table) if isinstance(table, nn.Module) else kind(table)
        expected = f"self.{name} is nn.Embedding({rows}, {hidden})"
        hint = f"Make self.{name} a table of embeddings in __init__: how many there are, then how wide each is."
        raise CheckFailed(tried, f"self.{name} is {yours}", expected, hint)
