"""What is said where a result may be taken for more than it is."""

from __future__ import annotations

import warnings


class NotCertified(UserWarning):
    """Said where a result may be taken for more than it is."""


def warn(text: str) -> None:
    """Warn the script that called the function that calls this one."""
    warnings.warn(text, NotCertified, stacklevel=3)
