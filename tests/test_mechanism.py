"""Budget and Mechanism: what they refuse, that JSON loses nothing, and that calibration fits the budget."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from tacit import accounting
from tacit.accounting.mechanism import RESERVE, Budget, Mechanism, calibrate

RECIPE = {"rate": 256 / 60000, "clip": 1.5, "noise_multiplier": 1.3, "steps": 3515}


def test_cost_of_the_neural_network_run():
    assert 0.8628 <= Mechanism(**RECIPE).cost(1e-5) <= 0.867


def test_noise_std_and_attacker():
    mechanism = Mechanism(**RECIPE)
    assert mechanism.noise_std == 1.3 * 1.5
    assert mechanism.advantage() == accounting.advantage(256 / 60000, 1.3, 3515)
    assert mechanism.true_positive_rate(0.01) == accounting.true_positive_rate(0.01, 256 / 60000, 1.3, 3515)
    replaced = dataclasses.replace(mechanism, adjacency="replace-one")
    assert replaced.cost(1e-5) > mechanism.cost(1e-5)
    assert replaced.advantage() > mechanism.advantage()


def test_event_is_understood_by_another_accountant():
    from dp_accounting.pld import PLDAccountant

    for mechanism in (Mechanism(0.05, 1.0, 2.0, 100), Mechanism(1.0, 1.0, 20.0, 7)):
        judge = PLDAccountant()
        judge.compose(mechanism.event())
        assert judge.get_epsilon(1e-6) == pytest.approx(mechanism.cost(1e-6), rel=2e-3)


@pytest.mark.parametrize("weights", [None, (1.0, 0.1, 1 / 3)])
@pytest.mark.parametrize("adjacency", accounting.ADJACENCIES)
def test_json_loses_nothing(weights, adjacency):
    mechanism = Mechanism(1 / 3, math.pi, 0.1 + 0.2, 7, adjacency, weights)
    assert Mechanism.from_json(mechanism.to_json()) == mechanism
    assert Mechanism.from_dict(mechanism.to_dict()) == mechanism
    assert hash(Mechanism.from_json(mechanism.to_json())) == hash(mechanism)
    budget = Budget(1 / 3, 1 / 60000, "patient")
    assert Budget.from_json(budget.to_json()) == budget
    assert Budget.from_dict(budget.to_dict()) == budget


def test_recipe_is_frozen_and_holds_python_numbers():
    mechanism = Mechanism(np.float64(0.5), np.float32(1.5), np.float64(1.0), np.int64(3), weights=np.array([1.0, 2.0]))
    assert [type(value) for value in dataclasses.astuple(mechanism)] == [
        float,
        float,
        float,
        int,
        str,
        tuple,
        type(None),
    ]
    assert type(mechanism.weights[0]) is float
    assert json.loads(mechanism.to_json())["weights"] == [1.0, 2.0]
    assert type(Budget(np.float32(1.0), np.float64(1e-6)).epsilon) is float
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.clip = 2.0


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "adjacency"),
    [(1.0, 0.01, 1000, "add-remove"), (0.3, 1.0, 10, "add-remove"), (4.0, 0.1, 50, "replace-one")],
)
def test_calibrated_recipe_fits_the_budget_with_its_reserve(epsilon, rate, steps, adjacency):
    budget = Budget(epsilon, 1e-6)
    mechanism = calibrate(budget, rate=rate, steps=steps, clip=2.0, adjacency=adjacency, weights=(1.0, 2.0))
    cost = mechanism.cost(budget.delta * (1 - RESERVE))
    assert 0.98 * epsilon <= mechanism.cost(budget.delta) <= cost <= epsilon
    assert (mechanism.rate, mechanism.steps, mechanism.clip) == (rate, steps, 2.0)
    assert (mechanism.adjacency, mechanism.weights) == (adjacency, (1.0, 2.0))


def test_reserve_is_a_small_share():
    assert RESERVE == 2.0**-20


def mechanism(**changes):
    return lambda: Mechanism(**{**RECIPE, **changes})


GOOD = Mechanism(**RECIPE).to_dict()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: Budget(-1.0, 1e-6),
            ValueError,
            ["Budget(epsilon=-1.0", "finite number above 0", "because", "write"],
        ),
        (lambda: Budget(math.nan, 1e-6), ValueError, ["epsilon=nan", "Budget(epsilon=1.0, delta=1e-6)"]),
        (lambda: Budget(math.inf, 1e-6), ValueError, ["epsilon=inf"]),
        (lambda: Budget(0, 1e-6), ValueError, ["epsilon=0.0"]),
        (lambda: Budget(True, 1e-6), TypeError, ["epsilon=True", "number"]),
        (lambda: Budget("1", 1e-6), TypeError, ["epsilon='1'"]),
        (lambda: Budget(1.0, 1.0), ValueError, ["delta=1.0", "below 1", "write"]),
        (lambda: Budget(1.0, 0.0), ValueError, ["delta=0.0"]),
        (lambda: Budget(1.0, math.nan), ValueError, ["delta=nan"]),
        (lambda: Budget(1.0, 1e-6, " "), ValueError, ["unit=' '", "patient"]),
        (lambda: Budget(1.0, 1e-6, 3), TypeError, ["unit=3"]),
        (mechanism(rate=1.2), ValueError, ["Mechanism(rate=1.2)", "at most 1", "write"]),
        (mechanism(rate=0), ValueError, ["rate=0.0"]),
        (mechanism(clip=0.0), ValueError, ["clip=0.0", "finite number above 0", "write"]),
        (mechanism(clip=-1), ValueError, ["clip=-1.0"]),
        (mechanism(clip=math.inf), ValueError, ["clip=inf"]),
        (mechanism(clip=None), TypeError, ["clip=None"]),
        (mechanism(noise_multiplier=0), ValueError, ["noise_multiplier=0.0"]),
        (mechanism(noise_multiplier=math.nan), ValueError, ["noise_multiplier=nan"]),
        (mechanism(steps=0), ValueError, ["steps=0", "at least 1"]),
        (mechanism(steps=10.0), TypeError, ["steps=10.0", "whole number"]),
        (mechanism(steps=np.bool_(True)), TypeError, ["steps"]),
        (mechanism(adjacency="remove"), ValueError, ["'remove'", "'add-remove'"]),
        (mechanism(weights=(1.0, 0.0)), ValueError, ["weights=(1.0, 0.0)", "between"]),
        (mechanism(weights=()), ValueError, ["weights=()"]),
        (mechanism(weights=2.0), TypeError, ["weights=2.0", "tuple"]),
        (mechanism(weights="12"), TypeError, ["weights='12'"]),
        (lambda: calibrate((1.0, 1e-6), rate=0.1, steps=1, clip=1.0), TypeError, ["Budget"]),
        (lambda: calibrate(Budget(1, 1e-6), rate=2, steps=1, clip=1.0), ValueError, ["calibrate(rate=2.0)"]),
        (lambda: calibrate(Budget(1, 1e-6), rate=0.1, steps=0, clip=1.0), ValueError, ["calibrate(steps=0)"]),
        (lambda: calibrate(Budget(1, 1e-6), rate=0.1, steps=1, clip=0), ValueError, ["calibrate(clip=0.0)"]),
        (lambda: Mechanism.from_dict({**GOOD, "seed": 1}), ValueError, ["unknown fields ['seed']"]),
        (lambda: Mechanism.from_dict({"rate": 0.1}), ValueError, ["missing fields", "clip"]),
        (lambda: Budget.from_dict({"epsilon": 1.0}), ValueError, ["missing fields ['delta', 'unit']"]),
        (lambda: Mechanism.from_json("{"), ValueError, ["not JSON"]),
        (lambda: Mechanism.from_json("[]"), ValueError, ["JSON object"]),
    ],
)
def test_errors_say_what_to_write(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)
