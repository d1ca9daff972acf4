"""Processes that run students' code: parallel answer servers, and kernels for whole notebooks."""
