"""Generated tasks: instances that are a pure function of their number, in splits that share none."""
