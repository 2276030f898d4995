"""Another name of `tacit.facts`: its schema, its columns, and what it reads of a file's header."""

from tacit.facts.column import Column, Level
from tacit.facts.files import draft, escaped, header, import_arrow, quietly, unescaped
from tacit.facts.schema import Schema, checked_size, levels_of

__all__ = [
    "Column",
    "Level",
    "Schema",
    "checked_size",
    "draft",
    "escaped",
    "header",
    "import_arrow",
    "levels_of",
    "quietly",
    "unescaped",
]
