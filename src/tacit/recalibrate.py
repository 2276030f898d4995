"""Another name of `tacit.run.recalibrate`."""

from tacit.run.recalibrate import *  # noqa: F403
