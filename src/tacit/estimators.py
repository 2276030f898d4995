"""Methods in the shape of scikit-learn's estimators: the name under which users import `tacit.adapters.sklearn`."""

from tacit.adapters.sklearn import *  # noqa: F403
