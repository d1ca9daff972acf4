"""How nbgrader runs this course."""

c = get_config()  # noqa: F821

c.CourseDirectory.course_id = "transformers"

c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE\nraise NotImplementedError()"}

# Collecting: how Canvas names what is in its zip. Of two files with one name, the higher number is the newer one. With
# assignment 04, students also submit a model, in a separate file.
c.ZipCollectApp.extractor_plugin = "grading.runs.collect.SubmissionExtractor"
c.ZipCollectApp.collector_plugin = "grading.runs.collect.SubmissionCollector"
c.FileNameCollectorPlugin.valid_ext = [".ipynb", ".safetensors"]
c.FileNameCollectorPlugin.named_regexp = (
    r"[^_/]+_(LATE_)?(?P<student_id>\d+)_(?P<number>\d+)_(?P<file_id>[^/]+?)(-(?P<again>\d+))?\.\w+"
)

# A written question is a read-only cell that holds its rubric. The rubric is removed from the release and restored when
# the submission is graded, so that the instructor sees it beside the answer. nbgrader expects rubrics in cells of type
# "task"; in a read-only cell they are restored just the same, and the answer keeps a separate cell.
c.ClearMarkScheme.enforce_metadata = False

# Grading: submissions are repaired, their outputs kept, and points come from the judge. See
# grading/nbgrader_steps/pipeline.py.
c.Autograde.exporter_class = "grading.nbgrader_steps.pipeline.SubmissionExporter"
c.Autograde.sanitize_preprocessors = ["grading.nbgrader_steps.pipeline.RepairSubmission"]
c.Autograde.autograde_preprocessors = [
    "grading.nbgrader_steps.pipeline.Rerun",
    "nbgrader.preprocessors.LimitOutput",
    "grading.nbgrader_steps.pipeline.JudgeAnswers",
    "grading.nbgrader_steps.pipeline.SaveGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
]

# Being late costs nothing unless you say so here. For example: the first 15 minutes do not count, each day that has
# begun takes off a tenth of the maximum, up to half of it, and after a week nothing counts.
c.AssignLatePenalties.plugin_class = "grading.nbgrader_steps.late.LatePolicy"
# from datetime import timedelta
# c.LatePolicy.grace = timedelta(minutes=15)
# c.LatePolicy.percent = 10  # for each day; with c.LatePolicy.each = "hour", for each hour
# c.LatePolicy.of = "maximum"  # or "score", the points earned
# c.LatePolicy.at_most = 50
# c.LatePolicy.zero_after = timedelta(days=7)
# c.LatePolicy.extra_time = {"a-student": timedelta(days=2)}

# Feedback: a page for each student, made from grading/results/templates/feedback.html.j2.
c.GenerateFeedback.exporter_class = "grading.results.feedback_page.FeedbackExporter"
c.GenerateFeedback.preprocessors = [
    "grading.results.sanitise.HideHiddenTests",
    "grading.results.sanitise.HideRubrics",
    "grading.results.sanitise.HarmlessOutputs",
]
# The Formgrader's pages with students' texts and outputs run none of it in the instructor's browser.
c.HTMLExporter.preprocessors = ["grading.results.sanitise.HarmlessOutputs"]
c.HTMLExporter.filters = {"markdown2html": "grading.results.sanitise.harmless_markdown"}

c.ExportApp.plugin_class = "grading.export.SafeCsvExportPlugin"
