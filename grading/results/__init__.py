"""What comes out of grading: pages for students, a report and files for instructors."""
