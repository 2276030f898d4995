"""The VAE of the d3p paper as a NumPyro model and guide, and the images.

784-400-50 and back, softplus, Bernoulli pixels: 688884 parameters. Written with nothing but ``numpyro.param``, so that
the same file runs under tacit's NumPyro and under d3p's, six years of releases apart.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

PIXELS, HIDDEN, CODE = 784, 400, 50
PARAMETERS = 688884


def dense(name, inputs, width):
    """Apply a dense layer whose weights start as small normals."""
    shape = inputs.shape[-1], width
    weight = numpyro.param(f"{name}.weight", lambda key: 0.01 * jax.random.normal(key, shape))
    return inputs @ weight + numpyro.param(f"{name}.bias", lambda key: 0.01 * jax.random.normal(key, (width,)))


def model(image, size=None):
    """Draw a code for each image and the image's pixels given the code.

    ``size`` is the number of images for libraries that scale the plate by it; tacit needs none.
    """
    with numpyro.plate("images", size or image.shape[0], subsample_size=image.shape[0]):
        code = numpyro.sample("code", dist.Normal(jnp.zeros(CODE), 1.0).to_event(1))
        hidden = jax.nn.softplus(dense("decoder.hidden", code, HIDDEN))
        logits = dense("decoder.pixels", hidden, PIXELS)
        numpyro.sample("image", dist.Bernoulli(logits=logits).to_event(1), obs=image)


def guide(image, size=None):
    """Return each image's code a normal whose mean and spread an encoder reads off the image."""
    with numpyro.plate("images", size or image.shape[0], subsample_size=image.shape[0]):
        hidden = jax.nn.softplus(dense("encoder.hidden", image, HIDDEN))
        mean = dense("encoder.mean", hidden, CODE)
        spread = jnp.exp(dense("encoder.spread", hidden, CODE))
        numpyro.sample("code", dist.Normal(mean, spread).to_event(1))


def decode(params, code):
    """Return the pixels' probabilities for some codes."""
    seeded = numpyro.handlers.seed(model, jax.random.PRNGKey(0))
    filled = numpyro.handlers.substitute(seeded, data={**params, "code": code})
    trace = numpyro.handlers.trace(filled).get_trace(jnp.zeros((code.shape[0], PIXELS)))
    return trace["image"]["fn"].base_dist.probs


def encode(params, image):
    """Return the mean code of some images."""
    seeded = numpyro.handlers.seed(guide, jax.random.PRNGKey(0))
    trace = numpyro.handlers.trace(numpyro.handlers.substitute(seeded, data=params)).get_trace(image)
    return trace["code"]["fn"].base_dist.loc


def images(name):
    """Load the training and test images ("mnist", "fashion_mnist") with pixels in [0, 1], or None if they are missing.

    They lie in the folder that TACIT_DATA names.
    """
    path = Path(os.environ.get("TACIT_DATA", "data")) / f"{name}.npz"
    if not path.exists():
        return None
    with np.load(path) as file:
        return tuple(file[part].reshape(-1, PIXELS).astype(np.float32) / 255 for part in ("x_train", "x_test"))


def binarize(image, seed):
    """Turn grey pixels into coin flips with those odds."""
    return (np.random.default_rng(seed).random(image.shape, dtype=np.float32) < image).astype(np.float32)
