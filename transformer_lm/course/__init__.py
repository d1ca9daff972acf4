"""What the package knows of the course: released assignments, progress, hints, sealed answers."""
