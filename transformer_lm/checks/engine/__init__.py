"""What every check uses: how answers are called, compared and told what is wrong."""
