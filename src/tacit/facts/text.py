"""How declared facts are written as TOML, and which text may be declared.

Nothing here reads a record.
"""

from __future__ import annotations

import json
import re
from typing import Any


def shown_text(value: object) -> str:
    """Return a name or a level as a person reads it: quoted where it has signs that do not print."""
    text = str(value)
    return text if text.isprintable() and text else toml(text)


def plain_number(number: float | None) -> str:
    """Return a bound as it is written in a schema."""
    # 110.0 is written 110, as a person would; reading it back gives the same float.
    if isinstance(number, float) and number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return repr(number)


def check_text(text: str, what: str) -> None:
    """Refuse text that no file can hold."""
    # Lone surrogates are the one kind of text that neither TOML nor UTF-8 can hold.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"The text {text!r}, {what}, is not valid Unicode and cannot be written to a file.")


def toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the delete character, which TOML wants escaped as well.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(toml(entry) for entry in value) + "]"
    return plain_number(value)


def toml_key(name: str) -> str:
    """Return the name of a column as a key of TOML, in quotes where it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)
