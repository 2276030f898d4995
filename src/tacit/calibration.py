"""Another name of `tacit.results.calibration`."""

from tacit.results.calibration import *  # noqa: F403
