"""What nbgrader calls: reading and mending submissions, grades, marks by hand, late penalties."""
