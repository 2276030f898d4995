"""Another name of `tacit.results.plots`."""

from tacit.results.plots import *  # noqa: F403
