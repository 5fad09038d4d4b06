"""Healthy programs of plain PyTorch, most of them with something in them that looks like a fault."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.analyze.planted import Program, squares, trained
from tests.corpus.healthy import LENGTH, STEPS, WIDTH, WORDS, Healthy

ORDINARY: list[Healthy] = []


def healthy(build):
    ORDINARY.append(Healthy(build.__name__, build))
    return build


def pictures(count=STEPS, size=8):
    return [{"x": torch.randn(4, 3, size, size), "y": torch.randint(0, 5, (4,))} for _ in range(count)]


def classified(model, x, y):
    return F.cross_entropy(model(x), y)


@healthy
def convolutions():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, padding=1),  # pads with −inf
        nn.Conv2d(8, 8, 3),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8, 5),
    )
    return trained(model, classified, pictures(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


@healthy
def residual_block_with_batch_norm():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
            self.norms = nn.ModuleList([nn.BatchNorm2d(3), nn.BatchNorm2d(3)])
            self.head = nn.Linear(3, 5)

        def forward(self, x):
            h = F.relu(self.norms[0](self.first(x)), inplace=True)
            h = self.norms[1](self.second(h))
            h += x
            return self.head(F.relu(h).mean((2, 3)))

    model = Residual()
    return trained(model, classified, pictures(), torch.optim.Adam(model.parameters()))


@healthy
def recurrent_language_model():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(WORDS, WIDTH, padding_idx=0)
            self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
            self.head = nn.Linear(WIDTH, WORDS)

        def forward(self, ids, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(self.embedding(ids), lengths, batch_first=True)
            out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            return self.head(out)

    def loss(model, ids, lengths):
        return F.cross_entropy(
            model(ids, lengths)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0
        )

    feeds = []
    for _ in range(STEPS):
        ids = torch.randint(1, WORDS, (2, LENGTH))
        ids[1, 4:] = 0
        feeds.append({"ids": ids, "lengths": torch.tensor([LENGTH, 4])})
    model = Recurrent()
    return trained(model, loss, feeds, torch.optim.RMSprop(model.parameters()))


@healthy
def generator_and_discriminator():
    generator = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 6), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    optimizers = {
        "generator": torch.optim.Adam(generator.parameters(), betas=(0.5, 0.999)),
        "discriminator": torch.optim.Adam(discriminator.parameters(), betas=(0.5, 0.999)),
    }

    def step(x):
        fake = generator(torch.randn(len(x), 4))
        real_score, fake_score = discriminator(x), discriminator(fake.detach())
        ones, zeros = torch.ones_like(real_score), torch.zeros_like(fake_score)
        wrong = F.binary_cross_entropy_with_logits
        optimizers["discriminator"].zero_grad()
        judged = wrong(real_score, ones) + wrong(fake_score, zeros)
        judged.backward()
        optimizers["discriminator"].step()
        optimizers["generator"].zero_grad()
        fooled = wrong(discriminator(fake), ones)
        fooled.backward()
        optimizers["generator"].step()
        return {"judged": judged, "fooled": fooled, "loss": fooled}

    modules = {"generator": generator, "discriminator": discriminator}
    return Program(step, modules, optimizers, [{"x": torch.rand(5, 6)} for _ in range(STEPS)])


@healthy
def variational_autoencoder():
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)

        def forward(self, x):
            mean, log_variance = self.encoder(x).chunk(2, -1)
            code = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
            divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1) / 2
            seen = F.binary_cross_entropy(torch.sigmoid(self.decoder(code)), x, reduction="none").sum(-1)
            return (seen + divergence).mean()

    # Pixels that are exactly black or white: the loss holds 0·log(…).
    feeds = [{"x": torch.rand(5, 6).round()} for _ in range(STEPS)]
    return trained(Autoencoder(), lambda model, x: model(x), feeds)


@healthy
def attention_with_infinite_masks():
    class Attention(nn.Module):
        """Padding and the future are masked with −inf, each in a way people write it."""

        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.register_buffer("causal", torch.full((LENGTH, LENGTH), -torch.inf).triu(1))

        def forward(self, ids):
            h = self.embedding(ids)
            scores = self.query(h) @ self.key(h).transpose(-1, -2) / WIDTH**0.5 + self.causal
            scores = scores.masked_fill((ids == 0)[:, None, :], float("-inf"))
            return self.head(scores.softmax(-1) @ self.value(h))

    def loss(model, ids):
        return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)

    feeds = []
    for _ in range(STEPS):
        ids = torch.randint(1, WORDS, (2, LENGTH))
        ids[1, 4:] = 0
        feeds.append({"ids": ids})
    return trained(Attention(), loss, feeds)


@healthy
def translation_with_library_layers():
    class Translation(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
            self.transformer = nn.Transformer(WIDTH, 2, 1, 1, 32, batch_first=True)

        def forward(self, source, target):
            causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
            padding = torch.zeros(source.shape).masked_fill(source == 0, float("-inf"))
            out = self.transformer(
                self.embedding(source),
                self.embedding(target),
                tgt_mask=causal,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
            )
            return self.head(out)

    def loss(model, source, target):
        return F.cross_entropy(
            model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten(), ignore_index=0
        )

    feeds = []
    for _ in range(STEPS):
        source, target = torch.randint(1, WORDS, (2, LENGTH)), torch.randint(1, WORDS, (2, 5))
        source[1, 4:], target[1, 3:] = 0, 0
        feeds.append({"source": source, "target": target})
    return trained(Translation(), loss, feeds)


@healthy
def mixed_precision_with_bfloat16():
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 5))

    def loss(model, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), y)

    feeds = [{"x": torch.randn(4, 6), "y": torch.randint(0, 5, (4,))} for _ in range(STEPS)]
    return trained(model, loss, feeds, torch.optim.AdamW(model.parameters()))


@healthy
def gradient_scaler_that_skips_a_step():
    """A scaler begins with a scale too large, sees infinite gradients, skips that step and tries a smaller one."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**11, growth_interval=1000)

    def step(x):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return {"loss": loss}

    feeds = [{"x": torch.full((4, 6), 10.0)} for _ in range(STEPS)]
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@healthy
def activation_checkpointing():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
            )

        def forward(self, x):
            causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            for block in self.blocks:
                x = checkpoint(block, x, causal, use_reentrant=False)
            return x

    model = Deep()
    feeds = [{"x": torch.randn(2, 5, 8)} for _ in range(STEPS)]
    return trained(model, squares, feeds, torch.optim.AdamW(model.parameters()))


@healthy
def weight_and_spectral_norm():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)),
        nn.ELU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
        nn.Softplus(),
        nn.Linear(8, 2),
    )
    return trained(model, squares, [{"x": torch.randn(5, 6)} for _ in range(STEPS)])


@healthy
def experts_with_infinite_routing():
    class Experts(nn.Module):
        """The two best experts of each word; the others are routed to with −inf."""

        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(8, 4)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            scores = self.gate(x)
            best, chosen = scores.topk(2, -1)
            routed = torch.full_like(scores, float("-inf")).scatter(-1, chosen, best).softmax(-1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows = (chosen == number).any(-1)
                out[rows] += routed[rows, number, None] * expert(x[rows])
            return out

    model = Experts()
    return trained(
        model, squares, [{"x": torch.randn(6, 8)} for _ in range(STEPS)], torch.optim.Adam(model.parameters())
    )


@healthy
def best_so_far_begins_at_infinity():
    """Running minima begin at +inf, and the step keeps them."""
    model = nn.Linear(6, 2)
    best = torch.tensor(float("inf"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        nonlocal best
        optimizer.zero_grad()
        loss = model(x).square().mean()
        best = torch.minimum(best, loss.detach())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "best": best}

    return Program(
        step, {"model": model}, {"optimizer": optimizer}, [{"x": torch.randn(4, 6)} for _ in range(STEPS)]
    )


@healthy
def policy_over_legal_moves():
    """Illegal moves have a probability of exactly zero: their logarithm is −inf, and nobody takes them."""
    model = nn.Linear(6, 4)
    optimizer = torch.optim.Adam(model.parameters())

    def step(state, legal):
        optimizer.zero_grad()
        logits = model(state).masked_fill(~legal, float("-inf"))
        policy = torch.distributions.Categorical(logits=logits)
        move = policy.sample()
        reward = (move == 0).float()
        loss = -(policy.log_prob(move) * (reward - reward.mean())).mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    legal = torch.tensor([[True, True, False, True], [True, False, False, True], [True, True, True, True]])
    feeds = [{"state": torch.randn(3, 6), "legal": legal} for _ in range(STEPS)]
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@healthy
def speech_with_ctc():
    """The forward variables of CTC are −inf and NaN where no alignment is possible."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))

    def loss(model, x, letters):
        scores = model(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, letters, torch.tensor([9, 6]), torch.tensor([3, 2]), zero_infinity=True)

    feeds = [{"x": torch.randn(2, 9, 6), "letters": torch.randint(1, 5, (2, 3))} for _ in range(STEPS)]
    return trained(model, loss, feeds)


@healthy
def beam_search_between_steps():
    """Scores of beams that do not exist yet are −inf; the best are taken by topk."""
    model = nn.Linear(WIDTH, WORDS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            beams = torch.full((len(x), 3), float("-inf"))
            beams[:, 0] = 0
            for _ in range(2):
                scores = model(x).log_softmax(-1)[:, None] + beams[..., None]
                beams, _ = scores.flatten(1).topk(3)
        return {"loss": loss, "best": beams[:, 0]}

    return Program(
        step, {"model": model}, {"optimizer": optimizer}, [{"x": torch.randn(2, WIDTH)} for _ in range(STEPS)]
    )


@healthy
def lengths_of_zero_vectors():
    """The gradient of a norm or a deviation at zero is infinite on the way, and PyTorch puts 0 in its place."""
    model = nn.Linear(6, 4, bias=False)

    def loss(model, x):
        h = model(x)
        return (
            h.norm(dim=-1).mean() + F.normalize(h, dim=-1).sum() + torch.cdist(h, h).mean() + h.std(0).mean()
        )

    feeds = [{"x": torch.randn(5, 6)} for _ in range(STEPS)]
    for each in feeds:
        each["x"][1:3] = 0
        each["x"][:, 2] = 0
    return trained(model, loss, feeds)


@healthy
def observers_that_begin_at_infinity():
    """Least and greatest values seen so far, kept in buffers, as observers for quantisation and metrics do."""

    class Observed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 2)
            self.register_buffer("least", torch.tensor(float("inf")))
            self.register_buffer("greatest", torch.full((2,), float("-inf")))

        def forward(self, x):
            h = self.linear(x)
            self.least.copy_(torch.minimum(self.least, h.detach().min()))
            self.greatest.copy_(torch.maximum(self.greatest, h.detach().amax(0)))
            return h / (self.greatest.max() - self.least + 1)

    return trained(Observed(), squares, [{"x": torch.randn(5, 6)} for _ in range(STEPS)])


@healthy
def bounds_at_infinity_of_a_model_that_is_copied():
    """A constraint to positive numbers keeps its bounds in buffers; copies of the model are made between steps."""

    class Positive(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 2)
            self.register_buffer("lower", torch.zeros(()))
            self.register_buffer("upper", torch.full((2,), float("inf")))

        def forward(self, x):
            h = F.softplus(self.linear(x)) + self.lower
            assert bool(torch.all(h <= self.upper))
            return h

    def loss(model, x):
        copied = copy.deepcopy(model)
        with torch.no_grad():
            copied.upper.copy_(model.upper)
        return model(x).square().mean() + copied(x).detach().mean()

    return trained(Positive(), loss, [{"x": torch.randn(5, 6)} for _ in range(STEPS)])


@healthy
def chain_of_tags():
    """A conditional random field in log space: transitions that are forbidden are −inf."""

    class Tags(nn.Module):
        def __init__(self):
            super().__init__()
            self.emissions = nn.Linear(6, 3)
            self.transitions = nn.Parameter(torch.zeros(3, 3))
            allowed = torch.tensor([[True, True, False], [False, True, True], [True, False, True]])
            self.register_buffer("allowed", allowed)

        def forward(self, x):
            scores = self.emissions(x)
            transitions = self.transitions.masked_fill(~self.allowed, float("-inf"))
            state = torch.zeros(3)
            for word in scores:
                state = torch.logsumexp(state[:, None] + transitions, 0) + word
            return torch.logsumexp(state, 0)

    return trained(Tags(), lambda model, x: model(x), [{"x": torch.randn(5, 6)} for _ in range(STEPS)])


@healthy
def sampling_between_steps():
    """Words are sampled from the most probable ones; all others are set to −inf in place."""
    model = nn.Linear(WIDTH, WORDS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        logits = model(x)
        loss = logits.square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            logits[logits < logits.topk(3).values[:, -1:]] = -float("inf")
            ordered, places = logits.sort(-1, descending=True)
            beyond = ordered.softmax(-1).cumsum(-1) > 0.9
            beyond[:, 0] = False
            logits = logits.masked_fill(beyond.scatter(-1, places, beyond), -float("inf"))
            words = torch.multinomial(logits.softmax(-1), 1)
        return {"loss": loss, "words": words}

    feeds = [{"x": torch.randn(3, WIDTH)} for _ in range(STEPS)]
    return Program(step, {"model": model}, {"optimizer": optimizer}, feeds)


@healthy
def gradient_penalty():
    """The gradient of a gradient."""
    critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(model, x):
        x = x.requires_grad_()
        score = model(x)
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return score.mean() + 10 * (slope.norm(dim=-1) - 1).square().mean()

    return trained(critic, loss, [{"x": torch.randn(5, 6)} for _ in range(STEPS)])


@healthy
def memory_as_it_was_found():
    """Buffers are made with empty() and filled in place, some of them only as far as they are used."""

    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x):
            cache = torch.empty(3 * len(x), 4)
            cache.view(torch.int32).fill_(-1)  # NaN in every place
            cache[: len(x)] = self.linear(x)
            out = torch.empty(len(x), 4)
            torch.mul(cache[: len(x)].detach(), 2, out=out)
            return cache[: len(x)] + out

    return trained(Cached(), squares, [{"x": torch.randn(5, 6)} for _ in range(STEPS)])


@healthy
def missing_values_that_are_masked():
    """Data with NaN where nothing was measured; the program knows, and looks only at what is there."""
    model = nn.Linear(6, 2)

    def loss(model, x):
        seen = ~torch.isnan(x)
        filled = torch.where(seen, x, torch.zeros_like(x))
        return model(filled).square().mean() / seen.float().mean()

    feeds = [{"x": torch.randn(5, 6)} for _ in range(STEPS)]
    for each in feeds:
        each["x"][1, 2] = float("nan")
    return trained(model, loss, feeds)


@healthy
def second_order_optimizer():
    model = nn.Linear(6, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = squares(model, x) + model.weight.square().sum()
            loss.backward()
            return loss

        return {"loss": optimizer.step(closure)}

    return Program(
        step, {"model": model}, {"optimizer": optimizer}, [{"x": torch.randn(5, 6)} for _ in range(STEPS)]
    )


@healthy
def masks_added_twice():
    """The least number of float16 stands for −inf; twice that is −inf, and softmax takes it as meant."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(6, 8), nn.Linear(6, 8)

        def forward(self, x):
            least = torch.finfo(torch.float16).min
            scores = (self.query(x) @ self.key(x).T).half()
            padding = (x == 0).all(-1).half() * least
            causal = torch.full((len(x), len(x)), least, dtype=torch.float16).triu(1)
            return (scores + padding[None, :] + causal).float().softmax(-1) @ x

    feeds = [{"x": torch.randn(5, 6)} for _ in range(STEPS)]
    for each in feeds:
        each["x"][3:] = 0
    return trained(Attention(), squares, feeds)
