"""Tools for authors: prove an exercise, freeze its values, bundle the course."""
