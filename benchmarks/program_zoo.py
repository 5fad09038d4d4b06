"""Whole programs in the shapes that people train, small enough to be measured; `programs.py` measures them.

Each factory makes a program and returns its step: what a user would call an iteration. `STEPS` says how many of them
make the whole program. Started as a script, this file is one such program, which executes as many steps as it is told
to, block by block, and says how long each took.

    python benchmarks/program_zoo.py mlp --steps 100
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Step = Callable[[], object]


def dense(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with activations between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def mlp() -> Step:
    """Five linear layers and Adam: a step of a millisecond."""
    model = dense(32, 64, 64, 64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(32, 32), torch.randint(10, (32,))

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def ppo() -> Step:
    """128 steps of a rollout without gradients, then four epochs of updates over minibatches."""
    actor, critic = dense(4, 64, 64, 2, activation=nn.Tanh), dense(4, 64, 64, 1, activation=nn.Tanh)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)

    def iterate() -> None:
        observation = torch.randn(4, 4)
        rows: list[tuple[Tensor, ...]] = []
        for _ in range(128):
            with torch.no_grad():
                policy = torch.distributions.Categorical(logits=actor(observation))
                action = policy.sample()
                rows.append((observation, action, policy.log_prob(action), critic(observation).flatten()))
            observation = observation * 0.9 + torch.randn(4, 4) * 0.1 + action[:, None] * 0.05
        states, actions, old, values = (torch.cat(each) for each in zip(*rows, strict=True))
        returns = torch.randn(len(states))
        for _ in range(4):
            order = torch.randperm(len(states))
            for chosen in order.chunk(4):
                policy = torch.distributions.Categorical(logits=actor(states[chosen]))
                ratio = (policy.log_prob(actions[chosen]) - old[chosen]).exp()
                advantage = returns[chosen] - values[chosen]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
                value_loss = (critic(states[chosen]).flatten() - returns[chosen]).square().mean()
                loss = policy_loss - 0.01 * policy.entropy().mean() + 0.5 * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()

    return iterate


def trainer() -> Step:
    """A tiny BERT, fine-tuned as the Trainer of Transformers does: accumulation, clipping, schedule."""
    from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

    config = BertConfig(
        vocab_size=1000,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 100_000)

    def step() -> float:
        model.train()
        tokens = torch.randint(1000, (8, 32))
        loss = model(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=torch.randint(2, (8,))
        ).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        model.zero_grad()
        return loss.item()

    return step


class GraphLayer(nn.Module):
    """A graph convolution over a sparse adjacency matrix."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return torch.sparse.mm(adjacency, x @ self.weight) + self.bias


class GraphNetwork(nn.Module):
    """Two graph convolutions with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GraphLayer(128, 16), GraphLayer(16, 7)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.first(x, adjacency)), 0.5, self.training)
        return F.log_softmax(self.second(x, adjacency), dim=1)


def gcn() -> Step:
    """Graph convolutions over a sparse graph of 2,708 nodes; training and evaluation in every epoch."""
    nodes = 2708
    edges = torch.randint(nodes, (2, 4 * nodes))
    adjacency = torch.sparse_coo_tensor(edges, torch.rand(edges.shape[1]), (nodes, nodes)).coalesce()
    features, labels = torch.randn(nodes, 128), torch.randint(7, (nodes,))
    model = GraphNetwork()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    def epoch() -> float:
        model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(model(features, adjacency)[:140], labels[:140])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            return float(F.nll_loss(model(features, adjacency)[200:500], labels[200:500]))

    return epoch


class Sequence(nn.Module):
    """Two LSTM cells, unrolled by Python."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.lstm2 = nn.LSTMCell(1, 16), nn.LSTMCell(16, 16)
        self.linear = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        h1 = c1 = h2 = c2 = torch.zeros(x.shape[0], 16, dtype=x.dtype)
        outputs = []
        for part in x.split(1, dim=1):
            h1, c1 = self.lstm1(part, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


def lbfgs() -> Step:
    """A loop over LSTM cells in double precision, trained by L-BFGS with a closure of up to five evaluations."""
    model = Sequence().double()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
    waves = torch.sin(torch.arange(60.0).double() / 4 + torch.rand(8, 1).double())

    def step() -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(waves[:, :-1]), waves[:, 1:])
            loss.backward()
            return loss

        optimizer.step(closure)

    return step


class WordModel(nn.Module):
    """Embedding, LSTM, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(500, 64), nn.LSTM(64, 64, 1)
        self.decoder = nn.Linear(64, 500)

    def forward(self, words: Tensor) -> Tensor:
        return self.decoder(F.dropout(self.lstm(self.embedding(words))[0], 0.2, self.training))


def words() -> Step:
    """A word model over sentences whose lengths vary from batch to batch."""
    model = WordModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lengths = random.Random(0)

    def step() -> None:
        sentence = torch.randint(500, (lengths.randint(5, 40) + 1, 16))
        loss = F.cross_entropy(model(sentence[:-1]).flatten(0, 1), sentence[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()

    return step


def gan() -> Step:
    """A generator and a discriminator with an optimizer each."""
    generator = nn.Sequential(
        nn.ConvTranspose2d(32, 32, 4), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    discriminator = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 4),
    )  # fmt: skip
    first = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    second = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    ones, zeros = torch.ones(16, 1, 1, 1), torch.zeros(16, 1, 1, 1)

    def step() -> None:
        first.zero_grad()
        F.binary_cross_entropy_with_logits(discriminator(torch.randn(16, 1, 16, 16)), ones).backward()
        fake = generator(torch.randn(16, 32, 1, 1))
        F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros).backward()
        first.step()
        second.zero_grad()
        F.binary_cross_entropy_with_logits(discriminator(fake), ones).backward()
        second.step()

    return step


class AutoEncoder(nn.Module):
    """A variational auto-encoder for small images."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.mean, self.log_variance = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.fc1(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(latent)))), mean, log_variance


def vae() -> Step:
    """A variational auto-encoder on batches of 128."""
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.rand(128, 784)

    def step() -> float:
        optimizer.zero_grad()
        made, mean, log_variance = model(images)
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        loss = F.binary_cross_entropy(made, images, reduction="sum") + divergence
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


class Residual(nn.Module):
    """A residual block that is told the time."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv1, self.conv2 = (
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.time = nn.Linear(64, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    """A small U-Net over noisy images."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64))
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.down1, self.down2, self.middle = Residual(16, 16), Residual(16, 32), Residual(32, 32)
        self.up2, self.up1 = Residual(64, 16), Residual(32, 16)
        self.leave = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        frequencies = torch.exp(torch.arange(8) * -1.0)
        angles = t[:, None] * frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        first = self.down1(self.enter(x), time)
        second = self.down2(F.avg_pool2d(first, 2), time)
        middle = self.middle(F.avg_pool2d(second, 2), time)
        up = self.up2(torch.cat([F.interpolate(middle, scale_factor=2), second], dim=1), time)
        return self.leave(self.up1(torch.cat([F.interpolate(up, scale_factor=2), first], dim=1), time))


def unet() -> Step:
    """A U-Net that learns to remove noise, with an average of its weights beside it."""
    model, average = UNet(), UNet()
    average.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    signal = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0)
    images = torch.randn(8, 3, 16, 16)

    def step() -> None:
        t, noise = torch.randint(1000, (8,)), torch.randn_like(images)
        share = signal[t][:, None, None, None]
        loss = F.mse_loss(model(share.sqrt() * images + (1 - share).sqrt() * noise, t.float()), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.001)

    return step


class Block(nn.Module):
    """A block of a transformer, as nanoGPT has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """A language model of a few blocks."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def nanogpt() -> Step:
    """nanoGPT's settings for a CPU: 4 layers, 4 heads, width 128, 64 characters, batches of 12."""
    model = Transformer(65, 64, 128, 4, 4)
    decayed = [each for each in model.parameters() if each.dim() >= 2]
    others = [each for each in model.parameters() if each.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    text = torch.randint(65, (10_000,))

    def step() -> None:
        starts = torch.randint(len(text) - 65, (12,))
        x = torch.stack([text[i : i + 64] for i in starts])
        y = torch.stack([text[i + 1 : i + 65] for i in starts])
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def ddp() -> Step:
    """A small network on two ranks under DistributedDataParallel."""
    _join()
    inner = dense(64, 128, 128, 128, 10)
    model = nn.parallel.DistributedDataParallel(inner)
    return _plain_loop(model, torch.randn(64, 64), torch.randint(10, (64,)))


def fsdp2() -> Step:
    """A small transformer on two ranks, its weights sharded."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _join()
    mesh = init_device_mesh("cpu", (2,))
    model = Transformer(100, 32, 64, 4, 2)
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _plain_loop(model, torch.randint(100, (8, 32)), torch.randint(100, (8, 32)))


def tp() -> Step:
    """A network on two ranks, its layers split between them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    _join()
    mesh = init_device_mesh("cpu", (2,))
    model = dense(64, 256, 64, 256, 10)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(), "6": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    return _plain_loop(model, torch.randn(32, 64), torch.randint(10, (32,)))


def _join() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(0)


def _plain_loop(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def lstm() -> Step:
    """The loop of tiny operations of `overhead.py`."""
    from workloads import make_lstm

    workload = make_lstm()
    return lambda: workload.step(**workload.batch)


def suite() -> Step:
    """Tests, one after the other: in each, another small model is made, trained for three steps and forgotten."""
    number = 0
    optimizers = (
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
    )
    activations = (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.SiLU)

    def test() -> None:
        nonlocal number
        number += 1
        width = 4 + number % 29
        model = dense(8, *[width] * (1 + number % 4), 1, activation=activations[number % 5])
        optimizer = optimizers[number % 7 % 5](model.parameters(), lr=1e-3)
        x = torch.randn(3 + number % 11, 8)
        for _ in range(3):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            assert model(x).isfinite().all()

    return test


PROGRAMS: dict[str, Callable[[], Step]] = {
    each.__name__: each
    for each in (mlp, ppo, trainer, gcn, lbfgs, words, gan, vae, unet, nanogpt, lstm, ddp, fsdp2, tp, suite)
}
STEPS = {
    "mlp": 2000, "ppo": 25, "trainer": 200, "gcn": 300, "lbfgs": 12, "words": 300, "gan": 150, "vae": 300, "unet": 80,
    "nanogpt": 60, "lstm": 150, "ddp": 400, "fsdp2": 100, "tp": 150, "suite": 500,
}  # fmt: skip
RANKS = {"ddp": 2, "fsdp2": 2, "tp": 2}


def serve(step: Step, commands: str, answers: str) -> None:
    """Execute as many steps as each line of one pipe says, and tell the other how long each of them took."""
    rank = os.environ.get("RANK", "0")
    with open(commands + rank) as heard, open(answers + rank, "w") as told:
        for line in heard:
            print(json.dumps(timed(step, int(line))), file=told, flush=True)


def timed(step: Step, count: int) -> dict[str, Any]:
    """Seconds of each step, and of processor time for all of them: of the process, and of this thread."""
    walls, cpu, thread = [], time.process_time(), time.thread_time()
    for _ in range(count):
        began = time.perf_counter()
        step()
        walls.append(time.perf_counter() - began)
    return {"walls": walls, "cpu": time.process_time() - cpu, "thread": time.thread_time() - thread}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=list(PROGRAMS))
    parser.add_argument("--steps", type=int, help="how many; as many as make the whole program by default")
    parser.add_argument("--pipes", nargs=2, help="where commands come from and answers go")
    parser.add_argument("--floor", help="observe every operator for nothing, see floors.py")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = PROGRAMS[options.program]()
    if options.floor:
        from floors import observe_for_nothing

        observe_for_nothing(options.floor)
    if options.pipes:
        serve(step, *options.pipes)
    else:
        timed(step, options.steps or STEPS[options.program])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
