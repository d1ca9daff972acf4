"""The course around the package: released assignments, progress, hints, sealed answers."""
