"""A linear layer with a quantised weight: `tiers.pages.QuantisedLinear`, for users and the image pipelines.

Its state_dict is a format that files have: `QuantisedTensor.state_dict` in `quant.tensor` defines it, so its keys stay.
The interface is nn.Linear's. Tests: tests/tiers/test_pages_kernels.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from toprope.tiers.quant.codec import encode
from toprope.tiers.quant.formats import format_named
from toprope.tiers.quant.matmul import product
from toprope.tiers.quant.tensor import QuantisedTensor, read_header

__all__ = ["QuantisedLinear"]


class QuantisedLinear(torch.nn.Module):
    """torch's Linear with a frozen weight in few bits.

    On the CPU the forward pass uses our kernels, which never decode the weight as a whole; on a card, simulated or
    real, the weight is decoded on the card and multiplied. Gradients reach the input and the bias, not the weight; the
    backward pass decodes it. The weight's codes are parameters without gradient. `.to(dtype)` does not change them, so
    `state_dict` and loading keep them exact; `toprope.tiers.attach` offloads them. In a block compiled by torch.compile
    the layer is one operator.

    Args:
        in_features, out_features: as for torch.nn.Linear.
        bias: True for a bias, which is a parameter.
        format: "nvfp4", "mxfp4", "nf4" or "int8".
        dtype: dtype of the bias, and dtype that `decode` gives the weight.

    The weight is zero until it is loaded; `from_linear` makes a layer from an existing one.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    global_scale: torch.Tensor | None
    header: torch.Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        format: str = "nvfp4",
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        dtype = dtype or torch.get_default_dtype()
        form = format_named(format)
        zeros = torch.zeros(1, in_features, dtype=dtype).expand(out_features, in_features)
        self._hold(encode(zeros, form.name, "reference"))
        self.bias = torch.nn.Parameter(torch.zeros(out_features, dtype=dtype)) if bias else None

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, format: str = "nvfp4", scale: str = "search") -> QuantisedLinear:
        """Make a layer that computes the same as `linear`, up to the error of the format, and shares its bias.

        Args:
            linear: it is not changed.
            format, scale: as for `encode`.
        """
        layer = cls.__new__(cls)
        torch.nn.Module.__init__(layer)
        layer.in_features, layer.out_features = linear.in_features, linear.out_features
        layer._hold(encode(linear.weight, format, scale))
        layer.bias = linear.bias
        layer.train(linear.training)
        return layer

    def _hold(self, page: QuantisedTensor) -> None:
        self.register_buffer("header", page.header().to(page.device))
        self.register_parameter("codes", torch.nn.Parameter(page.codes, requires_grad=False))
        self.register_parameter("scales", torch.nn.Parameter(page.scales, requires_grad=False))
        self.register_buffer("global_scale", page.global_scale)
        self._read = (page.format, page.shape, page.dtype)
        self._page = replace(page, codes=self.codes, scales=self.scales)

    @property
    def page(self) -> QuantisedTensor:
        """The weight."""
        kept = self._page
        if torch.compiler.is_compiling() or not (
            kept.codes is self.codes and kept.scales is self.scales and kept.global_scale is self.global_scale
        ):
            form, shape, dtype = self._read
            kept = QuantisedTensor(form, shape, dtype, self.codes, self.scales, self.global_scale)
            if not torch.compiler.is_compiling():
                self._page = kept  # its constructor checks sizes, which takes longer than some products
        return kept

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input @ weight.T + bias."""
        return product(input, self.page, self.bias)

    def _load_from_state_dict(self, state_dict, prefix, *others):  # type: ignore[no-untyped-def]
        # A weight of another format with the same shape replaces this one.
        header = state_dict.get(f"{prefix}header")
        if header is not None:
            form, shape, dtype = read_header(header)
            if shape == (self.out_features, self.in_features) and form is not self._read[0]:
                page = QuantisedTensor.from_state_dict(state_dict, prefix)
                self._hold(page.to(self.codes.device))
            elif shape == (self.out_features, self.in_features):
                self.header = header.to(self.codes.device, copy=True)
                self._read = (form, shape, dtype)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        """The layer's text in `repr`."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None},"
            f" format={self._read[0].name}"
        )
