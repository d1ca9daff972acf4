"""The code that nbgrader calls: reading and repairing submissions, grades, manual grading, late penalties."""
