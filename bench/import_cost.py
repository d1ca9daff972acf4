"""Measure what `import transformer_lm` costs beyond `import torch`.

Each import is timed in a fresh interpreter, from just before the statement to just after it, in seconds of processor
time, which other programs disturb less than wall-clock time. The imports take turns in rotating order, so that a
machine that slows down affects them all equally; the medians are compared. Two series import torch, and the deviation
of their ratio from 1 shows the effect of chance. A last series imports the package when torch is already imported,
which shows a cost too small for the ratio.

    python bench/import_cost.py
"""

import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = 12
SERIES = {  # imports before the clock starts, and the timed import
    "torch": ("time", "torch"),
    "transformer_lm": ("time", "transformer_lm"),
    "torch again": ("time", "torch"),
    "transformer_lm after torch": ("torch", "transformer_lm"),
}


def seconds_to_import(before: str, module: str) -> float:
    """Return the processor time that a fresh interpreter takes to import a module."""
    code = f"import time, {before}; start = time.process_time(); import {module}; print(time.process_time() - start)"
    root = Path(__file__).parents[1]
    return float(subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True))


def main() -> None:
    """Print the median of each series and the ratios."""
    times: dict[str, list[float]] = {name: [] for name in SERIES}
    names = list(SERIES)
    seconds_to_import(*SERIES["transformer_lm"])  # fills the disk cache; not counted
    for turn in range(ROUNDS):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(seconds_to_import(*SERIES[name]))
    medians = {name: statistics.median(series) for name, series in times.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.3f} s (median of {ROUNDS})")
    print(f"control: import torch / import torch = {medians['torch again'] / medians['torch']:.2f}")
    torch_alone = statistics.median(times["torch"] + times["torch again"])
    print(f"import transformer_lm / import torch = {medians['transformer_lm'] / torch_alone:.2f}")


if __name__ == "__main__":
    main()
