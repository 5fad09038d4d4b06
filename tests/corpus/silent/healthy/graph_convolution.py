"""A graph network trained on some nodes of one graph, with a sparse adjacency and early dropout."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x, adjacency):
        x = F.relu(torch.sparse.mm(adjacency, self.first(x)))
        x = F.dropout(x, 0.5, training=self.training)
        return F.log_softmax(torch.sparse.mm(adjacency, self.second(x)), dim=1)


torch.manual_seed(0)
dense = (torch.rand(30, 30) < 0.2).float() + torch.eye(30)
adjacency = (dense / dense.sum(1, keepdim=True)).to_sparse()
features, labels = torch.randn(30, 8), torch.randint(0, 3, (30,))
train = torch.arange(30) < 20
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
for epoch in range(24):
    model.train()
    optimizer.zero_grad()
    loss = F.nll_loss(model(features, adjacency)[train], labels[train])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        (model(features, adjacency).argmax(1)[~train] == labels[~train]).float().mean()
