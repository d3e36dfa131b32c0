"""Comparing runs: who competes, and on what terms."""
