"""Values that were bad when they came: data, weights, statistics, the optimizer's state."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.analyze.planted import batches, squares, trained
from tests.corpus.planted import INFINITY, NAN, layers, plant


@plant("x", "Placeholder", "bad-input", "came", phase="input", step=2)
def missing_value_in_a_batch():
    feeds = batches(4)
    feeds[2]["x"][3, 1] = NAN
    return trained(layers(), squares, feeds)


@plant("x", "Placeholder", "bad-input", "came", phase="input", step=1, reached="loss")
def infinite_feature_in_a_batch():
    feeds = batches()
    feeds[1]["x"][0, 0] = INFINITY
    return trained(layers(), lambda model, x: (model(x) * x.sum()).mean(), feeds)


@plant(
    "model/2/weight",
    "Variable",
    "bad-parameter",
    "when the step began",
    phase="parameter",
    module="model/2",
    reached="loss",
)
def checkpoint_with_a_bad_weight():
    model = layers()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["2.weight"][1, 3] = NAN
    model.load_state_dict(state)
    return trained(model, squares, batches())


@plant(
    "model/norm/running_var",
    "Variable",
    "bad-parameter",
    "when the step began",
    phase="parameter",
    module="model/norm",
    step=0,
)
def statistics_loaded_bad():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.layers = layers()

        def forward(self, x):
            return self.layers(self.norm(x))

    model = Normed()
    model.norm.running_var[2] = NAN
    model.norm.eval()
    return trained(model, squares, batches())


@plant(
    "optimizer/Adam/model/0/weight/exp_avg",
    "Variable",
    "bad-state",
    "when the step began",
    phase="optimizer",
    module="model/0",
    step=0,
)
def optimizer_state_loaded_bad():
    model = layers()
    optimizer = torch.optim.Adam(model.parameters())
    squares(model, torch.randn(6, 4)).backward()
    optimizer.step()
    optimizer.state[model[0].weight]["exp_avg"][0, 0] = NAN
    return trained(model, squares, batches(), optimizer)


@plant(
    "model/embedding/weight",
    "Variable",
    "bad-parameter",
    "when the step began",
    phase="parameter",
    module="model/embedding",
    step=2,
)
def tied_weight_damaged_between_steps():
    """One weight with two names; something outside the step wrote into it."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(6, 4)
            self.head = nn.Linear(4, 6, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    model = Tied()

    class Damaging(list):
        def __iter__(self):
            for number, feeds in enumerate(super().__iter__()):
                if number == 2:
                    with torch.no_grad():
                        model.head.weight[0, 0] = NAN
                yield feeds

    feeds = Damaging({"ids": torch.tensor([0, 3, 5])} for _ in range(4))
    return trained(model, lambda model, ids: F.cross_entropy(model(ids), ids), feeds)
