"""Where students' code runs and can do no harm: the sandbox, and all that is let into it."""
