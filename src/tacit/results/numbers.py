"""Hashes of the numbers that a certificate is about: draws, points, the last state, an answer.

A hash depends on every bit of every number, and on nothing that a file format, a processor or an order of names could
change: names are sorted, and each array enters with its name, type, shape and little-endian bytes. Nothing here needs
JAX.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tacit.ledger.lines import canonical

OPENING = b"tacit-numbers-1\n"
UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
"""What NumPy raises at an ``.npz`` file that was cut short or changed."""


def fingerprint(arrays: Mapping[str, Any]) -> str:
    """Return the SHA-256 of named arrays.

    Privacy: of the numbers given. Hashes of few possible numbers can be searched; only released ones are hashed here.
    """
    digest = hashlib.sha256(OPENING)
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        # Types that NumPy does not know come back from a file as bytes of the same length.
        kind = f"V{array.dtype.itemsize}" if array.dtype.kind == "V" else array.dtype.newbyteorder("=").name
        head = canonical([name, kind, list(array.shape)])
        digest.update(len(head).to_bytes(8, "little") + head + little.tobytes())
    return digest.hexdigest()


def fingerprints(
    draws: Mapping[str, Any],
    points: Mapping[str, Any],
    labels: Mapping[str, Sequence[str]],
    axes: Mapping[str, Any],
) -> dict[str, str]:
    """Return the hashes of a posterior's numbers, and of what its numbers are called.

    Privacy: post-processing.
    """
    called = {"labels": {name: [str(one) for one in given] for name, given in labels.items()}, "axes": axes}
    names = hashlib.sha256(OPENING + canonical(json.loads(json.dumps(called)))).hexdigest()
    return {"draws": fingerprint(draws), "points": fingerprint(points), "labels": names}


class Saved(dict[str, Any]):
    """What a posterior's ``.npz`` file holds: ``draws``, ``points``, ``labels``, shares, and texts.

    Privacy: post-processing.
    """

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Saved:
        """Read a file that ``Posterior.save`` wrote; it holds no code.

        Privacy: post-processing.
        """
        try:
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                parts: dict[str, Any] = {
                    kind: {
                        name.removeprefix(f"{kind}/"): file[name] for name in file.files if name.startswith(f"{kind}/")
                    }
                    for kind in ("draws", "points", "labels", "contraction", "noise_share")
                }
                texts = {
                    name: str(file[name]) if name in file else ""
                    for name in ("certificate", "warning", "note", "axes", "derived", "validated")
                }
        except FileNotFoundError:
            raise
        except UNREADABLE as error:
            raise ValueError(
                f"The posterior {path} cannot be read. It was written whole, so it was damaged later; restore it from "
                "a copy. A new run, in another folder, would be charged anew."
            ) from error
        labels = {name: tuple(map(str, given)) for name, given in parts["labels"].items()}
        return cls(parts, **{**texts, "labels": labels, "axes": json.loads(texts["axes"] or "{}")})

    def fingerprints(self) -> dict[str, str]:
        """Return the hashes of the numbers in the file.

        Privacy: post-processing.
        """
        return fingerprints(self["draws"], self["points"], self["labels"], self["axes"])

    @property
    def derived(self) -> str:
        """How the numbers were computed from certified ones, or nothing where they are those themselves."""
        return str(self["derived"])
