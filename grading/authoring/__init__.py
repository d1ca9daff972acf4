"""What an author needs: prove an exercise, freeze its values, bundle the course."""
