"""Decides the points of an answer: the records of exercises, and the judge."""
