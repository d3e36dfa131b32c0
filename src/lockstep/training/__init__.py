"""Training: the loop, and what it needs to be repeatable, resumable and fair."""
