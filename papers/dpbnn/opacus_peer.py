"""Opacus on PyTorch, timed by the interpreter that has them (papers/dpbnn/.venv, made by ``peer.sh``).

Reads requests, one line of JSON each, and answers each with a line of JSON, as papers/d3p/peer.py does:

    echo '{"network": "mlp", "way": "ghost", "number": 2}' | .venv/bin/python opacus_peer.py

``way`` is "public" (no privacy), "ghost" (norms without per-record gradients) or "hooks" (per-record gradients).
"""

from __future__ import annotations

import functools
import json
import sys
import time
import warnings

CLIP, SIGMA, LEARNING_RATE, SUBSET = 1.5, 1.3, 0.1, 256


def layers(network):
    """Return the network: an MLP of 2 x 1200 units, or the convolutional one of Opacus' own MNIST example."""
    from torch import nn

    if network == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 10)
        )
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


@functools.cache
def steps(network, way):
    """Return a program that takes a number of steps on one subset, which it is handed for nothing."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(SUBSET, 1, 28, 28), torch.randint(0, 10, (SUBSET,))
    model, loss = layers(network), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    facts = {"noise_multiplier": SIGMA, "max_grad_norm": CLIP, "expected_batch_size": SUBSET}
    if way == "ghost":
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        model = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(optimizer, **facts)
        loss = DPLossFastGradientClipping(model, optimizer, loss)
    elif way == "hooks":
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        model = GradSampleModule(model)
        optimizer = DPOptimizer(optimizer, **facts)

    def program(number):
        for _ in range(number):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()

    return program


def main():
    """Answer requests until there are no more."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        request = json.loads(line)
        program = steps(request["network"], request["way"])
        wall, cpu = time.perf_counter(), time.process_time()
        program(request["number"])
        took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps({name: value / request["number"] for name, value in took.items()}), flush=True)


if __name__ == "__main__":
    main()
