"""How nbgrader runs this course."""

c = get_config()  # noqa: F821

c.CourseDirectory.course_id = "transformers"

c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE\nraise NotImplementedError()"}

# A written question is a read-only cell that holds its rubric. The rubric leaves the release and comes back when the
# submission is graded, so that whoever marks an answer has it before their eyes. nbgrader wants rubrics in cells
# of type "task"; in a read-only cell they are restored just the same, and the answer keeps a cell of its own.
c.ClearMarkScheme.enforce_metadata = False

# Grading: submissions are mended, their outputs kept, and points come from the judge: see grading/pipeline.py.
c.Autograde.exporter_class = "grading.pipeline.SubmissionExporter"
c.Autograde.sanitize_preprocessors = ["grading.pipeline.RepairSubmission"]
c.Autograde.autograde_preprocessors = [
    "grading.pipeline.Rerun",
    "nbgrader.preprocessors.LimitOutput",
    "grading.pipeline.JudgeAnswers",
    "grading.pipeline.SaveGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
]
c.GenerateFeedback.preprocessors = [
    "nbgrader.preprocessors.GetGrades",
    "grading.feedback.HideHiddenTests",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
# Pages with students' texts and outputs, feedback and the Formgrader alike, run nothing in a reader's browser.
c.HTMLExporter.preprocessors = ["grading.feedback.HarmlessOutputs"]
c.HTMLExporter.filters = {"markdown2html": "grading.feedback.harmless_markdown"}

c.ExportApp.plugin_class = "grading.export.SafeCsvExportPlugin"
