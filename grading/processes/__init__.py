"""Processes that run students' code: answer servers side by side, and kernels for whole notebooks."""
