"""How nbgrader runs this course."""

c = get_config()  # noqa: F821

c.CourseDirectory.course_id = "transformers"

c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE\nraise NotImplementedError()"}

# A written question is a read-only cell that holds its rubric. The rubric leaves the release and comes back when the
# submission is graded, so that whoever marks an answer has it before their eyes. nbgrader wants rubrics in cells
# of type "task"; in a read-only cell they are restored just the same, and the answer keeps a cell of its own.
c.ClearMarkScheme.enforce_metadata = False
