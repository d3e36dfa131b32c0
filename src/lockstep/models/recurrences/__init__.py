"""Linear recurrences over time, whole chunks at once: pure functions without parameters, which mixers are built on."""
