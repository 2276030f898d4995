"""Another name of `tacit.results.topics`."""

from tacit.results.topics import *  # noqa: F403
