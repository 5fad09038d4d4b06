"""The loss is put into a new Variable, as in code from long ago.

finding: loss-without-parameters | net | sure | step 1
"""

import torch
from torch import nn
from torch.autograd import Variable

torch.manual_seed(0)
net = nn.Linear(6, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for _ in range(14):
    x, y = torch.randn(16, 6), torch.randint(0, 2, (16,))
    loss = criterion(net(x), y)
    loss = Variable(loss.data, requires_grad=True)
    optimizer.zero_grad()
    loss.backward()  # here
    optimizer.step()
