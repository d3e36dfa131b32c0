"""One page about a study: words, figures and tables, made from its results alone."""
