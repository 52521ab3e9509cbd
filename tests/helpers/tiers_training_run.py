"""A training run with accumulation, clipping, a schedule and dropout, with tiers or without. Not a test."""

import hashlib

import torch
from torch import nn

from toprope.tiers import attach

KB = 1000


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return x + self.drop(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    """An embedding tied to its head, and blocks."""

    def __init__(self, blocks=5, width=64):
        super().__init__()
        self.embed, self.head = nn.Embedding(200, width), nn.Linear(width, 200, bias=False)
        self.layers = nn.Sequential(*[Block(width) for _ in range(blocks)])
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens):
        self.seen += tokens.numel()
        return self.head(self.layers(self.embed(tokens)))


class Run:
    def __init__(self, optimizer=torch.optim.AdamW, on="cpu", options=None, **places):
        torch.manual_seed(42)
        self.model = Net().to("cpu" if places else on)
        self.on = on
        self.handle = None
        if places:
            # What stays and the tied weight take 62 kB, a slot 66 kB.
            given = {
                "device": 240 * KB,
                "host": "10MB",
                "small": 10 * KB,
                "training": True,
                "poison": True,
                "limit": 30,
            }
            self.handle = attach(self.model, on=on, **given | places)
        self.optimizer = optimizer(self.model.parameters(), **{"lr": 1e-2} | (options or {}))
        if self.handle is not None:
            assert self.handle.optimizer(self.optimizer) is self.optimizer
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.losses = []

    def steps(self, first, last):
        for _ in range(first, last):
            for _ in range(2):
                tokens = torch.randint(0, 200, (4, 16)).to(self.on)
                scores = self.model(tokens[:, :-1])
                loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()) / 2
                loss.backward()
                self.losses.append(float(loss.detach()))
            if self.handle is None:
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            else:
                norm = self.handle.clip_grad_norm_(0.5)
            self.losses.append(float(norm))
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        return self

    def save(self, path, step):
        self.handle.save(path, {"step": step, "scheduler": self.scheduler.state_dict(), "losses": self.losses})

    def restore(self, path):
        extra = self.handle.restore(path)
        self.scheduler.load_state_dict(extra["scheduler"])
        self.losses = extra["losses"]
        return extra["step"]

    def end(self):
        """A digest of the weights and buffers, and all losses and norms."""
        if self.handle is not None:
            assert self.handle.stats().peak_bytes["device"] <= self.handle.stats().budget_bytes["device"]
            self.handle.detach()
        told = hashlib.sha256()
        for name, each in sorted(self.model.state_dict().items()):
            told.update(name.encode() + each.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return told.hexdigest(), self.losses
