"""Stages for a Ray of several nodes, importable in their processes. Not a test."""

import os
import time

import torch

from toprope import flow as df

HALF = {"num_cpus": 5}
"""More than half of the processors of a node: two such stages are on two nodes."""


@df.npu_model(resources=HALF)
def doubled(image):
    if image.shape[-1] == 13:
        raise ValueError("thirteen")
    return image * 2


@df.npu_model(resources=HALF)
class Shifted(torch.nn.Module):
    """Adds; an image of eleven that begins below zero takes it for ever."""

    def __init__(self, offset):
        super().__init__()
        self.offset = torch.nn.Parameter(torch.tensor(float(offset)))

    @df.method()
    def forward(self, image):
        if image.shape[-1] == 11 and image.flatten()[0] < 0:
            time.sleep(600)
        return image + self.offset


@df.pyflow
def described(image):
    """The values and what goes with them, some of it large."""
    return {"values": image, "sum": float(torch.as_tensor(image).sum()), "big": bytes(100_000), "pid": os.getpid()}
