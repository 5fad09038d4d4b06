"""Functions outside of where they are defined, means and losses of nothing, divisions by zero."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.analyze.planted import Program, batches, squares, trained
from tests.corpus.planted import blank_rows, layers, optimized, plant


@plant("model/log", "aten::log", "log-of-zero", "log of zero", module="model", step=2)
def cross_entropy_written_by_hand():
    """Probabilities of confident predictions underflow to zero."""

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            probabilities = self.layers(x).softmax(-1)
            return -torch.log(probabilities)[:, 0].mean()  # here

    model = Classifier()
    with torch.no_grad():
        model.layers[2].weight[0].fill_(-30)
        model.layers[2].weight[1].fill_(30)
        model.layers[0].bias.zero_()
    feeds = [{"x": each["x"] * 1e-3} for each in batches(4)]
    feeds[2]["x"] = model.layers[0].weight.sum(0).sign().expand(6, 4) * 10.0
    return trained(model, lambda model, x: model(x), feeds, torch.optim.SGD(model.parameters(), lr=1e-5))


@plant("model/log", "aten::log", "log-of-negative", "negative", module="model", step=1)
def log_of_standardised_data():
    class LogFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            return self.layers(torch.log(x))  # here

    feeds = [{"x": each["x"].abs() + 0.1} for each in batches()]
    feeds[1]["x"][3, 2] = -0.25
    return trained(LogFeatures(), squares, feeds)


@plant("model/normalise/div", "aten::div", "division-by-zero", "0/0", module="model/normalise", step=1)
def division_by_the_norm_of_padding():
    class Normalise(nn.Module):
        def forward(self, x):
            return x / x.norm(dim=-1, keepdim=True)  # here

    model = nn.Sequential()
    model.add_module("normalise", Normalise())
    model.add_module("layers", layers())
    return trained(model, squares, blank_rows(1))


@plant("model/acos", "aten::acos", "acos-out-of-range", "outside", module="model", step=1)
def angle_between_equal_vectors():
    """Rounding brings a cosine just above 1."""

    class Angles(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            h = self.layers(x)
            cosine = (x * x).sum(-1) / x.square().sum(-1) * x[:, 0]
            return torch.acos(cosine) * h.sum(-1)  # here

    feeds = [{"x": each["x"].clamp(-0.9, 0.9)} for each in batches()]
    feeds[1]["x"][0, 0] = 1.0000002
    return trained(Angles(), squares, feeds)


@plant("model/pow", "aten::pow", "power-of-negative", "negative number to a power", module="model", step=2)
def gamma_correction_of_a_negative_pixel():
    class Gamma(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()
            self.gamma = nn.Parameter(torch.tensor(2.2))

        def forward(self, x):
            return self.layers(x**self.gamma)  # here

    feeds = [{"x": each["x"].abs() + 0.1} for each in batches()]
    feeds[2]["x"][5, 3] *= -1
    return trained(Gamma(), squares, feeds)


@plant("model/sqrt", "aten::sqrt", "sqrt-of-negative", "sqrt of a negative number", module="model", step=0)
def variance_as_a_difference():
    """E[x²]−E[x]² of large equal numbers comes out slightly negative."""

    class Standardise(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x):
            mean = x.mean(0)
            variance = (x * x).mean(0) - mean * mean * (1 + 1e-6)
            return self.layers((x - mean) / (torch.sqrt(variance) + 1e-5))  # here

    return trained(Standardise(), squares, [{"x": torch.full((6, 4), 1000.1)} for _ in range(2)])


@plant(
    "model/norm/native_layer_norm",
    "aten::native_layer_norm",
    "zero-variance",
    "variance",
    module="model/norm",
    step=1,
)
def layer_norm_without_epsilon():
    """A row that is constant, and nothing added to its variance."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4, eps=0.0)
            self.layers = layers()

        def forward(self, x):
            return self.layers(self.norm(x))  # here

    return trained(Normed(), squares, blank_rows(1))


@plant("model/div_", "aten::div_", "division-by-zero", "Division by zero", module="model", step=1)
def normalised_in_place():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 2)

        def forward(self, x):
            h = x.clone()
            h /= h.sum(-1, keepdim=True)  # here
            return self.layers(h)

    return trained(InPlace(), squares, blank_rows(1))


@plant("div", "aten::div", "division-by-zero", "Division by a number", step=3, reached="loss")
def number_that_reaches_zero():
    """A temperature that is annealed to zero in plain Python."""
    model = layers(3)
    temperatures = iter([1.0, 0.5, 0.25, 0.0])

    def loss(x):
        scores = model(x) / next(temperatures)  # here
        return scores.logsumexp(-1).mean()

    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.01), loss, batches(4))


@plant(
    "model/parametrizations/weight/0/weight_norm_interface",
    "aten::_weight_norm_interface",
    "norm-of-zero",
    "zero",
    module="model/parametrizations/weight/0",
)
def weight_norm_of_a_layer_of_zeros():
    """A layer that begins as zero, as the last of a residual block does, has no direction."""
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    model = nn.utils.parametrizations.weight_norm(model)

    def loss(x):
        return squares(model, x)

    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.1), loss, batches())


@plant("model/linalg_slogdet", "aten::_linalg_slogdet", "singular-matrix", "singular", module="model")
def determinant_of_a_singular_matrix():
    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixing = nn.Linear(4, 4, bias=False)
            nn.init.ones_(self.mixing.weight)

        def forward(self, x):
            volume = torch.linalg.slogdet(self.mixing.weight).logabsdet  # here
            return self.mixing(x).square().mean() - volume

    return trained(Flow(), lambda model, x: model(x), batches())


@plant("nll_loss_forward", "aten::nll_loss_forward", "mean-of-nothing", "ignored", step=1)
def every_target_is_ignored():
    model = layers(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, ignore_index=-100)  # here
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    feeds = [{**each, "y": torch.tensor([0, 1, 2, -100, 1, 0])} for each in batches()]
    feeds[1]["y"] = torch.full((6,), -100)
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@plant("div", "aten::div", "division-by-zero", "0/0", step=2)
def loss_divided_by_an_empty_mask():
    model = layers(1)

    def loss(x):
        mask = (x.abs().sum(-1) > 0).float()
        errors = model(x).squeeze(-1) ** 2 * mask
        return errors.sum() / mask.sum()  # here

    feeds = batches(4)
    feeds[2]["x"].zero_()
    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.1), loss, feeds)


@plant("mean", "aten::mean", "mean-of-nothing", "no elements", step=2, reached="loss")
def mean_over_an_empty_selection():
    model = layers(1)

    def loss(x):
        hard = model(x)[x[:, 0] > 0]
        return hard.square().mean()  # here

    feeds = batches(4)
    feeds[2]["x"][:, 0] = -1
    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.01), loss, feeds)


@plant("std", "aten::std", "variance-of-one", "single element", step=3)
def last_batch_has_one_row():
    model = layers(1)

    def loss(x):
        score = model(x).squeeze(-1)
        return ((score - score.mean()) / score.std()).square().mean() + score.mean()  # here

    feeds = [*batches(3), {"x": torch.randn(1, 4)}]
    return optimized({"model": model}, torch.optim.SGD(model.parameters(), lr=0.01), loss, feeds)
