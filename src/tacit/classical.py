"""Another name of `tacit.accounting.classical`."""

from tacit.accounting.classical import *  # noqa: F403
