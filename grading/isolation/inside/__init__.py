"""What runs inside the sandbox, beside the student's code. Nothing here is secret: students' code can read it."""
