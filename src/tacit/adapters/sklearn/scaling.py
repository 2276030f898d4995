"""A scaler that learns nothing: by declared bounds."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array, validate_data

from tacit.adapters.sklearn.checks import _bounds


class BoundsScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scale columns from declared bounds to a range: what ``MinMaxScaler`` does, without learning from the records.

    Privacy: public. ``fit`` learns the number of columns and their names only, and every record is scaled by itself.

    Parameters
    ----------
    bounds
        Lowest and highest value, for all columns or for each; values outside are moved to the nearer one.
    feature_range
        Where the bounds are moved to; pass these as ``bounds`` to the estimator that follows.
    """

    def __init__(self, *, bounds: Any = None, feature_range: tuple[float, float] = (-1.0, 1.0)) -> None:
        self.bounds, self.feature_range = bounds, feature_range

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the number of columns against the bounds.

        Privacy: public.
        """
        X = validate_data(self, X, reset=True, dtype=(np.float64, np.float32))
        self._range(X.shape[1])
        return self

    def transform(self, X: Any) -> Any:
        """Return the columns, moved from the bounds to the range.

        Privacy: of the records: each is scaled by itself.
        """
        X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        low, high, start, stop = self._range(X.shape[1])
        return (start + (np.clip(X, low, high) - low) * ((stop - start) / (high - low))).astype(X.dtype)

    def inverse_transform(self, X: Any) -> Any:
        """Return scaled columns in their own units again; what was outside the bounds stays on them.

        Privacy: of the records: each is scaled by itself.
        """
        X = check_array(X, dtype=(np.float64, np.float32))
        low, high, start, stop = self._range(X.shape[1])
        return (low + (X - start) * ((high - low) / (stop - start))).astype(X.dtype)

    def _range(self, columns: int) -> tuple[Any, Any, float, float]:
        (start,), (stop,) = _bounds(self.feature_range, "feature_range", 1)
        return *_bounds(self.bounds, "bounds", columns), float(start), float(stop)

    def __sklearn_tags__(self) -> Any:
        """Describe the transformer to scikit-learn.

        Privacy: public.
        """
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
