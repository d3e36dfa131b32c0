"""Text in, tokens out: corpora, tokenizers, prepared folders and the token stream."""
