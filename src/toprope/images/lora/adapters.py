"""Load, list, scale, fuse, unfuse and unload LoRAs, on models of any family that takes them.

A file is read and compared with the model first (`files`); if anything is wrong, no weight was changed. Weights
that fusing changes are kept on the host, so that unfusing restores them exactly, without rounding errors.

Called by `images.engine` (`Engine.loras`) and `images.pipeline_manager`. It uses peft's and diffusers' own loaders and
layers, so new kinds of layers come with their releases; what it reads of them (`lora_A`, `_lora_loadable_modules`) is
theirs. Tests: tests/images/test_images_lora.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toprope.errors import LoraError, PackageError
from toprope.extras import advice
from toprope.images.lora.files import LoraFile, Report, Spec, check_scale, inspect, read_spec

if TYPE_CHECKING:
    import torch

    from toprope.images.memory.placement import Loaded

__all__ = ["Adapter", "Adapters", "open_all"]


@dataclass
class Adapter:
    """A LoRA that is on the model.

    Attributes:
        name: name of its file without the ending, with a number if another one has that name.
        report: contents of its file.
        scale: factor with which it is added.
        key: its name in peft.
    """

    name: str
    report: Report
    scale: float
    key: str

    def as_json(self) -> dict[str, Any]:
        """Facts about it for a record."""
        report = self.report
        return {
            "name": self.name, "path": str(report.path), "scale": self.scale, "ranks": list(report.ranks),
            "modules": dict(report.modules), "targets": list(report.targets), "bytes": report.bytes,
            "sha256": report.sha256,
        }  # fmt: skip


class Adapters:
    """The LoRAs of a loaded model, whose weights must be where they were loaded to while they are changed.

    Attributes:
        fused: whether they are part of the weights now.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._adapters: list[Adapter] = []
        self._kept: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        self._made = 0
        self.fused = False

    def __iter__(self) -> Iterator[Adapter]:
        return iter(tuple(self._adapters))

    def __len__(self) -> int:
        return len(self._adapters)

    def describe(self) -> list[dict[str, Any]]:
        """Facts about all of them for JSON."""
        return [each.as_json() | {"fused": self.fused} for each in self]

    def specs(self) -> list[Spec]:
        """Specifications with which the same LoRAs can be loaded again."""
        return [Spec(each.report.path, each.scale) for each in self]

    # Changes

    def load(self, lora: str | Spec) -> Adapter:
        """Load one in addition to those that are loaded.

        Args:
            lora: "path" or "path:scale".

        Raises:
            LoraError: it does not fit, or the model takes none; the model is unchanged.
        """
        return self.load_all([lora])[0]

    def load_all(self, loras: Sequence[str | Spec]) -> list[Adapter]:
        """Load several: all files are checked before the first one is loaded, and all or none are loaded afterwards."""
        specs = [read_spec(each) if isinstance(each, str) else each for each in loras]
        files = [inspect(self._loaded, each.path) for each in specs]
        for file in files:
            file.report.check()
        if files:
            _need_peft()
        added: list[Adapter] = []
        with self._unfused():
            try:
                for spec, file in zip(specs, files, strict=True):
                    self._made += 1
                    adapter = Adapter(self._free_name(file.report), file.report, spec.scale, f"lora_{self._made}")
                    added.append(adapter)
                    self._adapters.append(adapter)
                    self._inject(adapter, file)
            except BaseException as error:
                for each in added:
                    self._take_off(each)
                self._activate()
                if not isinstance(error, Exception) or self._loaded.device.is_out_of_memory(error):
                    raise
                raise LoraError(
                    f"{added[-1].report.path.name} cannot be loaded; the model is as it was.",
                    looked_at=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
                    do="use a LoRA that was trained on this model",
                ) from error
            self._activate()
        return added

    def scale(self, name: str, scale: float) -> None:
        """Set the scale of one: 1 as it was trained, 0 for none of it.

        Raises:
            LoraError: it is not loaded, or the number is no scale.
        """
        adapter, number = self.named(name), check_scale(scale)
        with self._unfused():
            adapter.scale = number
            self._activate()

    def fuse(self) -> None:
        """Add all of them to the weights, so that nothing is added while computing, which is faster.

        Raises:
            LoraError: they would also be added to the weights of the refine stage.
        """
        if self.fused or not self._adapters:
            return
        stages = getattr(self._loaded.pipeline, "stages", None)
        if getattr(stages, "shares_weights", False):
            raise LoraError(
                "a LoRA cannot be fused into this model: its edit and refine stages share weights.",
                looked_at=f"{self._loaded.folder}, whose edit weights differ from its base in some layers alone",
                do="leave it as it is: the pictures are the same",
            )
        try:
            for layer in self._layers():
                base, active = layer.get_base_layer(), [key for key in layer.active_adapters if key in layer.lora_A]
                if not active:
                    continue
                for parameter in (base.weight, base.bias):
                    if parameter is not None:
                        self._kept.append((parameter, parameter.detach().to("cpu", copy=True)))
                layer.merge(adapter_names=active)
        except BaseException:
            self._restore()
            raise
        self.fused = True

    def unfuse(self) -> None:
        """Restore the weights bit for bit, and add the LoRAs while computing."""
        self._restore()
        self.fused = False

    def unload(self, name: str | None = None) -> None:
        """Unload one, or all. The others stay fused or not fused.

        Raises:
            LoraError: it is not loaded.
        """
        gone = list(self._adapters) if name is None else [self.named(name)]
        with self._unfused():
            for each in gone:
                self._take_off(each)
            self._activate()

    def set(self, loras: Sequence[str]) -> None:
        """Load exactly these, in this order; those that are loaded already are scaled.

        Raises:
            LoraError: one does not fit; the model is unchanged.
        """
        wanted = [read_spec(each) for each in loras]
        there = {each.report.path: each for each in self}
        files = [inspect(self._loaded, each.path) for each in wanted]
        for file in files:
            file.report.check()
        if [file.report.path for file in files] == list(there) and all(
            file.report.sha256 == there[file.report.path].report.sha256 for file in files
        ):
            for adapter, spec in zip(self, wanted, strict=True):
                if adapter.scale != spec.scale:
                    self.scale(adapter.name, spec.scale)
            return
        before = self.specs()
        self.unload()
        try:
            self.load_all(wanted)
        except BaseException:
            self.load_all(before)
            raise

    def named(self, name: str) -> Adapter:
        """Find a loaded LoRA by its name.

        Raises:
            LoraError: it is not loaded.
        """
        for each in self._adapters:
            if each.name == name:
                return each
        raise LoraError(
            f"no LoRA {name!r} is on the model.",
            looked_at=f"there are {', '.join(each.name for each in self) or 'none'}",
            do="load it first",
        )

    # Inside

    def _free_name(self, report: Report) -> str:
        """A name from the LoRA's file that no loaded one has."""
        stem, names = report.path.stem, {each.name for each in self._adapters}
        if stem in ("pytorch_lora_weights", "adapter_model"):  # the default names of such files
            stem = report.path.resolve().parent.name
        number = next(
            each for each in range(1, len(names) + 2) if (stem if each == 1 else f"{stem}-{each}") not in names
        )
        return stem if number == 1 else f"{stem}-{number}"

    def _parts(self) -> list[Any]:
        """The pipeline's components that a LoRA can change."""
        pipeline = self._loaded.pipeline
        names = getattr(pipeline, "_lora_loadable_modules", ())
        return [part for name in names if (part := getattr(pipeline, name, None)) is not None]

    def _layers(self, of: Any = None) -> list[Any]:
        """The layers with which peft has replaced the model's, of all components or of one."""
        if not self._adapters and of is None:
            return []
        from peft.tuners.tuners_utils import BaseTunerLayer

        parts = self._parts() if of is None else [of]
        return [each for part in parts for each in part.modules() if isinstance(each, BaseTunerLayer)]

    def _inject(self, adapter: Adapter, file: LoraFile) -> None:
        """Load one with diffusers, component by component, and check that all its layers were taken."""
        from toprope.images.families.loading import without_bars

        with without_bars(), warnings.catch_warnings():
            # peft's, about a second LoRA on one model
            warnings.filterwarnings("ignore", message="Already found a `peft_config` attribute")
            self._inject_parts(adapter, file)

    def _inject_parts(self, adapter: Adapter, file: LoraFile) -> None:
        """Load a LoRA into each component, and check that every layer took it."""
        pipeline = self._loaded.pipeline
        for name, count in adapter.report.modules.items():
            part = getattr(pipeline, name)
            options: dict[str, Any] = {
                "network_alphas": file.alphas, "metadata": file.metadata, "adapter_name": adapter.key,
                "low_cpu_mem_usage": True,
            }  # fmt: skip
            if hasattr(part, "load_lora_adapter"):
                part.load_lora_adapter(file.tensors, prefix=name, **options)
            else:
                pipeline.load_lora_into_text_encoder(
                    file.tensors, text_encoder=part, prefix=name, lora_scale=1.0, **options
                )
            found = sum(adapter.key in layer.lora_A for layer in self._layers(part))
            if found != count:
                raise RuntimeError(f"{found} of {count} layers of {name} took it")

    def _activate(self) -> None:
        """Activate the loaded LoRAs with their scales; one with the scale 0 is not computed at all."""
        on = [each.key for each in self._adapters if each.scale]
        for layer in self._layers():
            for each in self._adapters:
                layer.set_scale(each.key, each.scale)
            layer.set_adapter(on)
            for kind in layer.adapter_layer_names:
                getattr(layer, kind).requires_grad_(False)

    def _take_off(self, adapter: Adapter) -> None:
        """Remove one; the last one takes peft's layers with it."""
        layers = self._layers()
        self._adapters.remove(adapter)
        others = {each.key for each in self._adapters}
        for layer in layers:
            layer.set_adapter([key for key in layer.active_adapters if key in others])
            layer.delete_adapter(adapter.key)
        for part in self._parts():
            configs = getattr(part, "peft_config", None)
            if configs is None:
                continue
            configs.pop(adapter.key, None)
            if not configs:
                _remove_layers(part)

    def _unfused(self) -> _Unfused:
        return _Unfused(self)

    def _restore(self) -> None:
        """Copy the weights back that fusing has changed."""
        import torch

        with torch.no_grad():
            for parameter, kept in self._kept:
                parameter.copy_(kept)
        self._kept.clear()
        for layer in self._layers():
            layer.merged_adapters.clear()


class _Unfused:
    """Context in which LoRAs are not fused; afterwards they are fused again if they were before."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self._fused = adapters.fused

    def __enter__(self) -> None:
        if self._fused:
            self._adapters.unfuse()

    def __exit__(self, *error: object) -> None:
        if self._fused:
            self._adapters.fuse()


def open_all(loaded: Loaded, loras: Sequence[str | Spec], *, fused: bool = False) -> Adapters:
    """Load LoRAs on a model that was just loaded.

    Args:
        loaded: the model.
        loras: "path" or "path:scale" each.
        fused: fuse them.

    Raises:
        LoraError: one does not fit; none is loaded then.
    """
    made = Adapters(loaded)
    made.load_all(loras)
    if fused:
        made.fuse()
    return made


def _need_peft() -> None:
    """Raise an error with advice if peft cannot be imported."""
    try:
        import peft  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: a library of it that cannot be loaded
        raise PackageError(
            "LoRAs need peft, which cannot be imported.",
            looked_at=" ".join(str(error).split()),
            do=advice("images"),
        ) from error


def _remove_layers(part: Any) -> None:
    """Replace peft's layers by the model's own, as diffusers does it for one of its models."""
    from diffusers.utils import recurse_remove_peft_layers

    recurse_remove_peft_layers(part)
    del part.peft_config
    part._hf_peft_config_loaded = None
