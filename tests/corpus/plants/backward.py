"""Programs whose forward pass is healthy, and whose gradients are not."""

from __future__ import annotations

import torch
from torch import nn

from tests.analyze.planted import Program, batches, squares, trained
from tests.corpus.planted import blank_rows, layers, optimized, plant


@plant(
    "gradients/sqrt/div", "aten::div", "sqrt-gradient-at-zero", "gradient of sqrt", phase="backward", step=1
)
def distance_between_equal_points():
    model = layers()

    def loss(x):
        embedded = model(x)
        difference = embedded[:3] - embedded[3:]
        return torch.sqrt((difference**2).sum(-1)).mean()  # here

    feeds = batches()
    feeds[1]["x"][3] = feeds[1]["x"][0]
    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.01), loss, feeds)


@plant(
    "gradients/model/norm/pow_1/pow",
    "aten::pow",
    "power-gradient-at-zero",
    "gradient",
    phase="backward",
    module="model/norm",
    step=2,
    reached="gradients",
)
def norm_written_as_a_power():
    class Norm(nn.Module):
        def forward(self, x):
            return x.square().sum(-1) ** 0.5  # here

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(4, 8, bias=False), Norm()

        def forward(self, x):
            return self.norm(self.first(x))

    return trained(Normed(), lambda model, x: model(x).mean(), blank_rows(2))


@plant(
    "gradients/model/acos/rsqrt",
    "aten::rsqrt",
    "acos-gradient-at-one",
    "gradient of acos",
    phase="backward",
    module="model",
)
def angle_of_a_saturated_output():
    """acos is π or 0 there, and its slope is infinite."""

    class Angle(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 3)

        def forward(self, x):
            return torch.acos(torch.tanh(self.layers(x) * 100))  # here

    return trained(Angle(), lambda model, x: model(x).mean(), batches())


@plant(
    "gradients/model/log/div",
    "aten::div",
    "log-gradient-at-zero",
    "gradient",
    phase="backward",
    module="model",
)
def logarithm_hidden_by_where():
    """What where() does not choose is no matter forward, and 0/0 backward."""

    class Safe(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 4)

        def forward(self, x):
            h = self.layers(x).square() * (x > 0)
            logarithm = torch.log(h)  # here
            return torch.where(h > 0, logarithm, torch.zeros_like(h))

    return trained(Safe(), squares, batches())


@plant(
    "gradients/log/div",
    "aten::div",
    "log-gradient-at-zero",
    "gradient",
    phase="backward",
    reached="parameter",
)
def logarithm_clamped_afterwards():
    """clamp() hides −inf forward; backward its 0 is divided by 0."""
    model = layers(1)

    def loss(x):
        probability = torch.sigmoid(model(x)) * (x[:, :1] > 0)
        return -torch.log(probability).clamp(min=-100).mean()  # here

    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.1), loss, batches())


@plant("gradients/model/clamp/div", "aten::div", "division-by-zero", "zero", phase="backward", module="model")
def function_with_a_wrong_backward():
    """A function of one's own whose gradient divides by its output."""

    class Root(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            root = x.clamp(min=0).sqrt()
            context.save_for_backward(root)
            return root

        @staticmethod
        def backward(context, gradient):
            (root,) = context.saved_tensors
            return gradient / (2 * root)  # here

    class Rooted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 3)

        def forward(self, x):
            return Root.apply(self.layers(x))

    return trained(Rooted(), squares, batches())


@plant(
    "gradients/model/0/weight/div", "aten::div", "division-by-zero", "0/0", phase="backward", module="model/0"
)
def gradient_normalised_by_a_hook():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    model[0].weight.register_hook(lambda gradient: gradient / gradient.norm())  # here
    return trained(model, squares, batches())


@plant(
    "gradients/sqrt/div", "aten::div", "sqrt-gradient-at-zero", "gradient of sqrt", phase="backward", step=1
)
def gradient_that_a_scaler_hides():
    """A scaler skips the step, as it does for overflows; but no smaller scale will ever help."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(x):
        optimizer.zero_grad()
        embedded = model(x)
        loss = torch.sqrt((embedded[:3] - embedded[3:]).square().sum(-1)).mean()  # here
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return {"loss": loss}

    feeds = batches()
    for each in feeds[1:]:
        each["x"][3] = each["x"][0]
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@plant("log", "aten::log", "log-of-zero", "log of zero", step=1)
def loss_that_a_scaler_hides():
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(x):
        optimizer.zero_grad()
        loss = torch.log(x.abs().sum(-1)).mean() * squares(model, x)  # here
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return {"loss": loss}

    return Program(step, {"model": model}, {"optimizer": optimizer}, blank_rows(1))
