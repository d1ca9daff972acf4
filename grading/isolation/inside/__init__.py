"""The code that runs inside the sandbox with the student's code, which can read it, so nothing here is secret."""
