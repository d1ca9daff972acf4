"""What instructors run: the exercises with their right and wrong answers, and what is made from them.

Students never get this folder.
"""
