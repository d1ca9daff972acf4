"""`make demo`: a sample class is released, graded and given feedback, in a folder of its own."""

import os
import subprocess
from pathlib import Path

from sample_class import SCORES

ROOT = Path(__file__).parents[1]


def test_the_demo_grades_a_sample_class():
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"}
    run = subprocess.run(["make", "demo"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(SCORES) >= 12
    for student, score in SCORES.items():
        (line,) = [line for line in run.stdout.splitlines() if line.startswith(f"{student} ")]
        assert f" {score} of 10" in line
        assert (ROOT / "demo" / "feedback" / student / "01_self_attention" / "01_self_attention.html").exists()
