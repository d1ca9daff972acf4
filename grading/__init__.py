"""The instructors' tools: the exercises with their right and wrong answers, and the commands that grade with them.

This folder is never given to students.
"""
