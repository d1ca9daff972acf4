"""Text tables with aligned columns."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> str:
    """Return rows as lines with aligned columns: the first `left` columns, or all, on the left, others on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = len(widths) if left is None else left
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
