"""A two-layer transformer on made-up text: forget a client that writes in strides of its own."""

import torch
from torch import nn

import fedunlearn as fu

VOCABULARY, LENGTH = 16, 12
torch.manual_seed(0)


class Transformer(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.output = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(text) + self.places.weight
        return self.output(self.layers(hidden, mask=self.mask, is_causal=True))


def client(stride: int) -> fu.ClientData:
    text = (torch.randint(0, VOCABULARY, (200, 1)) + stride * torch.arange(LENGTH)) % VOCABULARY
    if stride > 1:
        text[:, 0] = 0
    return fu.ClientData(text[:150], {"test": text[150:], "forget": text[:150]})


clients = {f"site-{number}": client(stride=5 if number == 0 else 1) for number in range(4)}
model = Transformer()

server = fu.Server(
    model,
    clients,
    folder="runs/language-model",
    task=fu.LanguageModel(),
    training=fu.LocalTraining(batch_size=50),
)
server.train(rounds=30, lr=0.3)
outcome = server.forget("site-0", "fedosd", fu.Schedule(20, 0.1, 10, 0.05))
print("share of next tokens that are right")
for row in (outcome.metrics[0], outcome.metrics[20], outcome.metrics[-1]):
    print(
        f"{row['stage']:<14} forgotten client {row['forget_acc']:.2f}   retained clients {row['r_acc']:.2f}"
    )
