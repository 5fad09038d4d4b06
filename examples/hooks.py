"""Train a small transformer under a MonitoredSession, and show what the hooks saw and fetched.

Run it with `python examples/hooks.py`. The model and the step know nothing of it.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional as F

import tensortap as tt

VOCABULARY, WIDTH, HEADS, LENGTH = 32, 64, 4, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(tokens):
    """An ordinary training step: predict the next token."""
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}


def batch():
    """Counting modulo the vocabulary from a random start: easy to learn."""
    return (torch.randint(VOCABULARY, (8, 1)) + torch.arange(LENGTH)) % VOCABULARY


def entropy(probabilities):
    """How spread out attention is, on average."""
    return torch.special.entr(probabilities).sum(-1).mean()


class WatchAttention(tt.SessionRunHook):
    """Fetches tensors from the middle of the run, every few steps, and follows them."""

    names = ("model/blocks/0/attention/softmax:0", "gradients/model/blocks/0/attention/qkv/weight:0")

    def begin(self):
        graph = tt.get_default_graph()
        self.derived = {
            "attention entropy": graph.add_derived("attention_entropy", entropy, self.names[:1]),
            "gradient norm": graph.add_derived("gradient_norm", torch.linalg.vector_norm, self.names[1:]),
        }
        self.runs, self.history = 0, []

    def before_run(self, run_context):
        self.runs += 1
        if self.runs % 10 == 1:
            return tt.SessionRunArgs({"step": "global_step:0", **self.derived})
        return None

    def after_run(self, run_context, run_values):
        if run_values.results is not None:
            self.history.append(run_values.results)


def show_graph(graph):
    kinds = {"forward": 0, "gradients": 0, "optimizer": 0}
    for node in graph.nodes:
        scope = node.name.split("/")[0]
        kinds[scope if scope in kinds else "forward"] += 1
    print(f"\n{len(graph)} nodes seen in one step: " + ", ".join(f"{n} {k}" for k, n in kinds.items()))
    for name in ("model/blocks/0/attention/softmax", "gradients/model/blocks/0/attention/softmax"):
        node = next(node for node in graph.nodes if node.name.startswith(name))
        source = node.source
        print(f"\n  {node.name}\n      {node.op_type} -> {', '.join(map(str, node.outputs))}")
        print(f"      from {', '.join(node.inputs)}")
        print(f"      at   {source.file.rsplit('/', 1)[-1]}:{source.line} in {source.function}")


def main():
    logging.basicConfig(level=logging.INFO, format="  %(message)s", stream=sys.stdout)
    torch.set_num_threads(1)  # a model this small gains nothing from more
    watch = WatchAttention()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tensortap-demo-") as folder:
        print("Training a 2-layer transformer for 60 steps, with hooks:\n")
        session = tt.torch.Session(step)
        hooks = [
            tt.StopAtStepHook(last_step=60),
            tt.LoggingTensorHook(["loss"], every_n_iter=20),
            tt.NanTensorHook("loss"),
            tt.FeedFnHook(lambda: {"tokens": batch()}),
            watch,
        ]
        with tt.MonitoredTrainingSession(
            session=session, checkpoint_dir=folder, hooks=hooks, save_checkpoint_steps=30
        ) as monitored:
            while not monitored.should_stop():
                monitored.run()
        print(f"\nFetched from the middle of every 10th run, out of {watch.names[0]}\nand its gradient:\n")
        print("  step  attention entropy  gradient norm")
        for row in watch.history:
            print(f"  {row['step']:4d}  {row['attention entropy']:17.3f}  {row['gradient norm']:13.3f}")
        show_graph(session.graph)
        print(
            f"\nNewest checkpoint: {tt.latest_checkpoint(folder).name}; restored runs continue bit for bit."
        )
    print(f"Done in {time.perf_counter() - started:.1f} s.")


if __name__ == "__main__":
    main()
