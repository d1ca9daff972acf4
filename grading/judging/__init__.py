"""How an answer gets its points: records of exercises, and the judge."""
