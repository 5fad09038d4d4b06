"""Faults in programs that are more than one pass of one model: loops, shared and recomputed modules, several models."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.analyze.planted import Program, batches, squares, trained
from tests.corpus.planted import blank_rows, layers, optimized, plant


@plant("discriminator/log_1", "aten::log", "log-of-zero", "log of zero", module="discriminator", step=1)
def saturated_discriminator():
    class Discriminator(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 1)

        def forward(self, x):
            return torch.log(1 - torch.sigmoid(self.layers(x)))  # here

    generator, discriminator = layers(4), Discriminator()
    optimizers = {
        "generator": torch.optim.SGD(generator.parameters(), lr=1e-3),
        "discriminator": torch.optim.SGD(discriminator.parameters(), lr=1e-3),
    }

    def step(x):
        for each in optimizers.values():
            each.zero_grad()
        fake = generator(x)
        loss = discriminator(fake).mean()
        loss.backward()
        optimizers["generator"].step()
        discriminator.zero_grad()
        (-discriminator(x)).mean().backward()
        optimizers["discriminator"].step()
        return {"loss": loss}

    feeds = batches()
    feeds[1]["x"] = discriminator.layers.weight.detach().sign().expand(6, 4) * 100
    modules = {"generator": generator, "discriminator": discriminator}
    return Program(step, modules, optimizers, feeds)


@plant("model/log_1", "aten::log", "log-of-negative", "negative", module="model", step=1)
def second_of_two_accumulated_batches():
    class LogFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            return self.layers(torch.log(x))  # here

    model = LogFeatures()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        for part in x.chunk(2):
            loss = squares(model, part) / 2
            loss.backward()
        optimizer.step()
        return {"loss": loss}

    feeds = [{"x": each["x"].abs() + 0.1} for each in batches()]
    feeds[1]["x"][5, 0] = -1.0
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@plant(
    "model/encoder/scale/div_1",
    "aten::div",
    "division-by-zero",
    "0/0",
    module="model/encoder/scale",
    step=1,
    reached="parameter",
)
def second_use_of_a_shared_encoder():
    class Scale(nn.Module):
        def forward(self, x):
            return x / x.abs().amax(-1, keepdim=True)  # here

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.linear = Scale(), nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(self.scale(x))

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()

        def forward(self, x):
            left, right = x.chunk(2)
            return self.encoder(left) - self.encoder(right)

    feeds = batches()
    feeds[1]["x"][4] = 0
    return trained(Siamese(), squares, feeds)


@plant("model/sqrt_3", "aten::sqrt", "sqrt-of-negative", "sqrt of a negative number", module="model", step=0)
def fourth_step_of_a_recurrence():
    """The same line is executed for every word; it fails at one of them."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(4, 4)

        def forward(self, x):
            state = torch.zeros(1, 4)
            for word in x:
                state = self.cell(torch.sqrt(word)[None], state)  # here
            return state

    feeds = [{"x": each["x"].abs()} for each in batches()]
    feeds[0]["x"][3, 1] = -4.0
    return trained(Recurrent(), squares, feeds)


@plant("model/blocks/1/log", "aten::log", "log-of-negative", "negative", module="model/blocks/1", step=0)
def inside_a_checkpointed_block():
    """The block is executed twice: the fault is in the forward pass, not in the recomputation."""

    class Block(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.linear, self.function = nn.Linear(4, 4), function

        def forward(self, x):
            return self.function(self.linear(x))

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            logarithm = lambda h: torch.log(h)  # here
            self.blocks = nn.ModuleList([Block(torch.tanh), Block(logarithm), Block(torch.tanh)])

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    return trained(Deep(), squares, batches())


@plant(
    "gradients/recompute/model/block/sqrt/div",
    "aten::div",
    "sqrt-gradient-at-zero",
    "gradient of sqrt",
    phase="backward",
    module="model/block",
    step=1,
    reached="gradients",
)
def gradient_of_a_checkpointed_block():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4, bias=False)

        def forward(self, x):
            return torch.sqrt(self.linear(x).square().sum(-1))  # here

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.block = nn.Linear(4, 4, bias=False), Block()

        def forward(self, x):
            return checkpoint(self.block, self.first(x), use_reentrant=True)

    return trained(Deep(), lambda model, x: model(x).mean(), blank_rows(1))


@plant("model/log", "aten::log", "log-of-negative", "negative", module="model", step=1)
def compiled_model():
    """Compiled code runs eagerly while it is watched, so the line is known."""

    class LogFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            return self.layers(torch.log(x))  # here

    model = LogFeatures()
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feeds = [{"x": each["x"].abs() + 0.1} for each in batches()]
    feeds[1]["x"][3, 2] = -0.25
    return optimized({"model": model}, optimizer, lambda x: squares(compiled, x), feeds)


@plant("model/log", "aten::log", "log-of-negative", "negative", module="model", step=1)
def program_that_checks_its_loss():
    """The run ends in the middle: what happened up to there is known."""

    class LogFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            return self.layers(torch.log(x))  # here

    model = LogFeatures()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = squares(model, x)
        if not torch.isfinite(loss):
            raise FloatingPointError("the loss is not finite")
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    feeds = [{"x": each["x"].abs() + 0.1} for each in batches()]
    feeds[1]["x"][3, 2] = -0.25
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@plant(
    "gradients/sqrt/div",
    "aten::div",
    "sqrt-gradient-at-zero",
    "gradient of sqrt",
    phase="backward",
    step=1,
)
def program_under_anomaly_detection():
    """PyTorch itself raises in the middle of the backward pass."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        embedded = model(x)
        loss = torch.sqrt((embedded[:3] - embedded[3:]).square().sum(-1)).mean()  # here
        with torch.autograd.detect_anomaly(check_nan=True):
            loss.backward()
        optimizer.step()
        return {"loss": loss}

    feeds = batches()
    feeds[1]["x"][3] = feeds[1]["x"][0]
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)
