"""Capture one step of greedy decoding into an NPUGraph and replay it for each token."""

import torch
import torch_npu
from torch import nn

LAYERS, WIDTH, HEADS, VOCABULARY, LONGEST = 2, 32, 4, 50, 16


class Layer(nn.Module):
    """Attention over a cache of fixed size, and a feed-forward network."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        inner = 4 * WIDTH
        self.feed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH))

    def forward(self, x, position, cache, mask):
        q, k, v = self.qkv(self.norm(x)).view(3, HEADS, WIDTH // HEADS).unbind(0)
        cache.index_copy_(2, position, torch.stack([k, v]).unsqueeze(2))  # [2, heads, longest, size]
        scores = torch.einsum("hd,hld->hl", q, cache[0]) / (WIDTH // HEADS) ** 0.5 + mask
        x = x + self.out(torch.einsum("hl,hld->hd", scores.softmax(-1), cache[1]).flatten())
        return x + self.feed(x)


class Decoder(nn.Module):
    """A small language model."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, token, position, caches):
        x = (self.tokens(token) + self.places(position)).squeeze(0)
        mask = torch.where(torch.arange(LONGEST, device=x.device) <= position, 0.0, float("-inf"))
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, position, cache, mask)
        return self.head(x).argmax(-1, keepdim=True)


def new_caches():
    return [torch.zeros(2, HEADS, LONGEST, WIDTH // HEADS, device="npu") for _ in range(LAYERS)]


torch.manual_seed(0)
torch_npu.npu.set_device(0)
model = Decoder().npu().eval()

with torch.no_grad():
    caches, token = new_caches(), torch.tensor([1], device="npu")
    eager = []
    for step in range(LONGEST):
        token = model(token, torch.tensor([step], device="npu"), caches)
        eager.append(token.item())

    caches, token, position = new_caches(), torch.tensor([1], device="npu"), torch.tensor([0], device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        token.copy_(model(token, position, caches))
        position.add_(1)

    token.fill_(1)
    decoded = []
    for _ in range(LONGEST):
        graph.replay()
        decoded.append(token.item())

print(f"tokens: {decoded}")
print(f"as without a graph: {decoded == eager}")
