"""The results of grading: pages for students, a report and files for instructors."""
