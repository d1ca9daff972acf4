"""The engine of all checks: it calls answers, compares their outputs and explains what is wrong."""
