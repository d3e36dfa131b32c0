"""Mixed text for tokenizers: prose, code, a heading, several scripts, line breaks of both kinds."""

from __future__ import annotations

TEXT = (
    "The sea was calm, and the lobster (Homarus gammarus) slept.\n"
    "\n"
    " = Title = \n"
    'def answer(x):\n\treturn x + 42  # "why"\n'
    "Ça va? 日本語のテキスト, naïve café — don't we'll 3.14 🙂🙂\r\n"
    "the the there then lobster lobsters sleeping calmly seaside\n"
)
