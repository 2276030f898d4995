"""A posterior in ArviZ's format: draws and certificate, never any observed data."""

from __future__ import annotations

from typing import Any

from tacit.extras import need
from tacit.results.posterior import Posterior
from tacit.results.shown import group_of


def inference_data(posterior: Posterior) -> Any:
    """Return the draws in ArviZ's format; see `Posterior.to_arviz`.

    Privacy: post-processing.
    """
    arviz = need("Posterior.to_arviz", "arviz")
    draws = {_plain(name): value[None] for name, value in posterior.shown().items()}
    axes = {
        _plain(group_of(name) or name): posterior.axes[name] for name in posterior.draws if posterior.axes.get(name)
    }
    names = {
        "dims": {name: [_plain(axis) for axis, _ in these] for name, these in axes.items()},
        "coords": {_plain(axis): list(along) for these in axes.values() for axis, along in these},
    }
    nested = int(arviz.__version__.split(".")[0]) >= 1
    given: dict[str, Any] = {"posterior": draws}
    data = arviz.from_dict(given, **names) if nested else arviz.from_dict(**given, **names)
    if posterior.certificate is not None:
        data["posterior"].attrs["certificate"] = posterior.certificate.to_json()
    return data


def _plain(name: str) -> str:
    # netCDF has no slashes or brackets in names; modules make such site names.
    return name.replace("/", ".").replace("[", "_").replace("]", "")
