"""The sandbox in which students' code runs without doing harm, and everything that is let into it."""
