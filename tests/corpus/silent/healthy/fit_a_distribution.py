"""Parameters of a distribution are fitted: there is no model and no input, only data to explain.

twin: loss-without-inputs
"""

import torch

torch.manual_seed(0)
mean, log_scale = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
optimizer = torch.optim.Adam([mean, log_scale], lr=0.05)
for _ in range(24):
    data = torch.randn(32, 3) * 2 + 1
    loss = -torch.distributions.Normal(mean, log_scale.exp()).log_prob(data).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
