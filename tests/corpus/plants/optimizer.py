"""Updates that go wrong although the gradients are good."""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.analyze.planted import Program, batches, squares
from tests.corpus.planted import layers, plant


@plant(
    "optimizer/Adam/model/0/weight/addcdiv_",
    "aten::addcdiv_",
    "epsilon-too-small",
    "divides by zero",
    phase="optimizer",
    module="model/0",
    reached="parameter",
)
def adam_without_epsilon():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with torch.no_grad():
        model[1].weight.zero_()  # so that the first layer gets no gradient
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


@plant(
    "optimizer/Adam/model/0/weight/addcdiv_",
    "aten::addcdiv_",
    "epsilon-too-small",
    "float16",
    phase="optimizer",
    module="model/0",
)
def adam_in_half_precision():
    """The usual epsilon of 1e-8 is zero in float16."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).half()
    with torch.no_grad():
        model[1].weight.zero_()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x.half()).float().square().mean()
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


@plant(
    "optimizer/Adam/foreach_addcdiv_",
    "aten::_foreach_addcdiv_",
    "epsilon-too-small",
    "divides by zero",
    phase="optimizer",
    module="model/0",
)
def adam_over_lists():
    """All parameters in one operation: which of them went bad is known all the same."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0, foreach=True)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


@plant(
    "optimizer/AdamW/fused_adamw_",
    "aten::_fused_adamw_",
    "epsilon-too-small",
    "epsilon",
    phase="optimizer",
    module="model/0",
)
def fused_adam():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    optimizer = torch.optim.AdamW(model.parameters(), eps=0.0, fused=True)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


@plant(
    "optimizer/SGD/model/0/weight/add_",
    "aten::add_",
    "infinite-learning-rate",
    "infinite",
    phase="optimizer",
    module="model/0",
    step=2,
)
def infinite_learning_rate():
    """The schedule is plain Python: only the optimizer shows what it came to."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = iter([0.1, 0.01, math.inf, math.inf])

    def step(x):
        optimizer.param_groups[0]["lr"] = next(rates)
        optimizer.zero_grad()
        loss = squares(model, x)
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches(4))


@plant(
    "optimizer/Adam/model/0/weight/addcdiv_",
    "aten::addcdiv_",
    "infinite-learning-rate",
    "infinite",
    phase="optimizer",
    module="model/0",
    step=2,
)
def infinite_learning_rate_of_adam():
    model = layers()
    optimizer = torch.optim.Adam(model.parameters())
    rates = iter([0.1, 0.01, math.inf, math.inf])

    def step(x):
        optimizer.param_groups[0]["lr"] = next(rates)
        optimizer.zero_grad()
        loss = squares(model, x)
        loss.backward()
        optimizer.step()  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches(4))


@plant("reciprocal", "aten::reciprocal", "division-by-zero", "Division by zero", step=3)
def schedule_that_divides_by_zero():
    """The learning rate is worked out in the step, from what is left of the warm-up."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warmup = torch.tensor(3.0)
    done = torch.tensor(0.0)

    def step(x):
        optimizer.zero_grad()
        loss = squares(model, x)
        loss.backward()
        rate = 0.01 / (warmup - done)  # here
        optimizer.param_groups[0]["lr"] = rate.item()
        optimizer.step()
        done.add_(1)
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches(5))


@plant("div_", "aten::div_", "division-by-zero", "0/0", step=0, reached="parameter")
def weights_projected_by_hand():
    """Rows of a weight are kept at length one; one of them is zero."""
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight[1] = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step(x):
        optimizer.zero_grad()
        loss = squares(model, x)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.weight /= model.weight.norm(dim=1, keepdim=True)  # here
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, batches())


@plant("div", "aten::div", "division-by-zero", "constant 0", step=0)
def moving_average_corrected_at_step_zero():
    """A bias correction that counts from 0: 1 − decay⁰ is 0."""
    model, averaged = layers(), layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    decay, count = 0.9, 0

    def step(x):
        nonlocal count
        optimizer.zero_grad()
        loss = squares(model, x)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, weight in zip(averaged.parameters(), model.parameters(), strict=True):
                corrected = weight * (1 - decay**count) / (1 - decay**count)  # here
                mean.copy_(corrected)
        count += 1
        return {"loss": loss}

    return Program(step, {"model": model, "averaged": averaged}, {"optimizer": optimizer}, batches())
