"""Train a small convolutional network on handwritten digits on an Ascend NPU, in mixed precision."""

import argparse
import sys

import torch
import torch_npu  # noqa: F401  makes the device "npu" known
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(nn.Module):
    """Two convolutions and a linear layer for images of 8 x 8 pixels."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 4 * 4, 10))

    def forward(self, images):
        return self.classifier(self.features(images))


def load(batch_size):
    """The digits that come with scikit-learn: three quarters to train on, one quarter held out."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    parts = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = parts
    train = DataLoader(
        TensorDataset(train_images, train_labels), batch_size, shuffle=True, drop_last=True, pin_memory=True
    )
    return train, DataLoader(TensorDataset(test_images, test_labels), 256, pin_memory=True)


def train_epoch(model, loader, optimizer, schedule, scaler, device):
    model.train()
    total = torch.zeros((), device=device)
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast("npu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        total += loss.detach()
    return total.item() / len(loader)


@torch.no_grad()
def accuracy(model, loader, device):
    """Percentage of the digits that the model reads right."""
    model.eval()
    right = torch.zeros((), device=device)
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast("npu", dtype=torch.float16):
            right += (model(images).argmax(1) == labels).sum()
    return 100 * right.item() / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--require", type=float, default=97.0, help="fail below this held-out accuracy, in percent")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    device = torch.device("npu:0")
    train, test = load(arguments.batch_size)
    model = Digits().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs * len(train))
    scaler = torch.amp.GradScaler("npu")
    for epoch in range(1, arguments.epochs + 1):
        loss = train_epoch(model, train, optimizer, schedule, scaler, device)
        print(f"epoch {epoch}  loss {loss:.3f}  accuracy {accuracy(model, test, device):.1f} %", flush=True)
    final = accuracy(model, test, device)
    print(f"held-out accuracy {final:.2f} % of {len(test.dataset)} digits")
    if final < arguments.require:
        sys.exit(f"accuracy is below {arguments.require} %")


if __name__ == "__main__":
    main()
