"""A class graded in one go: collected, on one machine or several, resumed after any fault."""
