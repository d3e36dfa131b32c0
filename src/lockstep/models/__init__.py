"""Sequence models: one skeleton, many mixers."""
