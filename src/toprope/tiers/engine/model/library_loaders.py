"""Read model folders whose files do not match the model's tensors, with the loaders of transformers and diffusers.

The libraries rename tensors, fuse experts, tie weights, read `.bin` files and dequantise FP8 with scales. Called by
`attach` if `weight_files` cannot read the folder in place. Values must be those of the library's own loader. It uses
internal modules of transformers: where one is missing or different, the folder is read by the library as a whole.
Tests: tests/tiers/test_tiers_files.py, tests/tiers/test_tiers_codes.py.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from logging import CRITICAL
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from toprope.errors import TierCapacityError, WeightsError
from toprope.sizes import gibibytes
from toprope.tiers.store.headers import FLOATS, Stored, read_folder, refuse_pointer
from toprope.tiers.store.memory import DTYPES

__all__ = ["layouts", "load_values", "quantization", "stored_in_bins"]

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


def quantization(folder: Path) -> dict[str, Any] | None:
    """The `quantization_config` of a model's folder."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = config.get("quantization_config") if isinstance(config, dict) else None
    return found if isinstance(found, dict) else None


def stored_in_bins(folder: Path) -> list[Stored] | None:
    """List the tensors in the `.bin` files of a model's folder; None without such files, or in the format of old torch.

    Raises:
        WeightsError: a file is damaged.
    """
    files = sorted((*folder.glob("pytorch_model*.bin"), *folder.glob("diffusion_pytorch_model*.bin")))
    if not files or not (folder / "config.json").is_file():
        return None
    names = {dtype: name for name, dtype in DTYPES.items()}
    found = []
    for file in files:
        refuse_pointer(file)
        with file.open("rb") as stream:
            zipped, old = stream.read(2) == b"PK", stream.seek(0) == 0 and stream.read(1) == b"\x80"
        if old:
            return None  # a format of torch before 1.6: no part of it can be read alone
        try:
            if not zipped:
                raise ValueError(f"it is of another format: {file.stat().st_size} bytes")
            tensors = torch.load(file, map_location="meta", mmap=True, weights_only=True)
            found += [
                Stored(name, file, 0, each.nbytes, names.get(each.dtype, str(each.dtype)), tuple(each.shape))
                for name, each in tensors.items()
                if isinstance(each, torch.Tensor)
            ]
        except Exception as error:
            raise WeightsError(
                f"{file} is no file of weights, or is damaged.",
                looked_at=f"{file.stat().st_size} bytes; {str(error).splitlines()[0] if str(error) else ''}",
                do="check that it was downloaded whole",
            ) from None
    return found


def layouts(module: nn.Module, names: Iterable[str]) -> dict[str, list[str]] | None:
    """The tensors of files that each tensor of a transformers model consists of, one after another in its memory.

    Args:
        module: the model.
        names: of the tensors of the files.

    Returns:
        None where the model is of no such library, or is made from them in another way than by new names and by
        putting experts together; then its library has to read them.
    """
    if not _is_instance(module, "transformers", "PreTrainedModel"):
        return None
    model: Any = module
    try:
        loading: Any = import_module("transformers.core_model_loading")
        mapping = import_module("transformers.conversion_mapping").get_model_conversion_mapping(model)
        renamings = [each for each in mapping if isinstance(each, loading.WeightRenaming)]
        converters = [each for each in mapping if isinstance(each, loading.WeightConverter)]
        own = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
        found: dict[str, dict[str, list[str]]] = {}
        for name in sorted(names, key=loading.dot_natural_key):
            if name.endswith(("_scale_inv", ".activation_scale")):
                continue  # a part of the tensor that has this name without the ending
            options = (model.base_model_prefix, own)
            target, pattern = loading.rename_source_key(name, renamings, converters, *options)
            if target not in own and name in own:
                target, pattern = loading.rename_source_key(name, [], [], *options)
            found.setdefault(target, {}).setdefault(pattern or "", []).append(name)
        by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        result = {}
        for target, patterns in found.items():
            if "" in patterns:
                if len(patterns) > 1 or len(patterns[""]) > 1:
                    return None
                result[target] = patterns[""]
                continue
            converter = by_pattern[next(iter(patterns))]
            lists = [patterns[each] for each in converter.source_patterns if each in patterns]
            if not _stacks(loading, converter) or len({len(each) for each in lists}) != 1:
                return None
            result[target] = [name for row in zip(*lists, strict=True) for name in row]
    except (ImportError, AttributeError, TypeError, ValueError, KeyError):
        return None  # another version of transformers
    return result


def _stacks(loading: Any, converter: Any) -> bool:
    """Tell if a conversion puts matrices of several experts together, and those of one expert one below the other."""
    first, *rest = converter.operations
    joins = not rest or (len(rest) == 1 and isinstance(rest[0], loading.Concatenate) and rest[0].dim == 1)
    return (
        isinstance(first, loading.MergeModulelist) and first.dim == 0 and joins and len(converter.target_patterns) == 1
    )


@contextmanager
def _quiet(library: str) -> Iterator[None]:
    """Context without the library's progress bars and reports; problems are reported once, in our own error."""
    log: Any = import_module(f"{library}.utils.logging")
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(CRITICAL)
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def load_values(module: nn.Module, folder: Path) -> dict[str, torch.Tensor] | None:
    """The tensors of a model, by their names in the model, read by the library that the model is of.

    Returns:
        None where the folder has no config.json, or the model is of no such library.

    Raises:
        WeightsError: the library cannot read it, or it is not this model's.
        TierCapacityError: the host has no memory for it: it is read as a whole.
    """
    if not (folder / "config.json").is_file():
        return None
    library = next((name for name, base in _BASES.items() if _is_instance(module, name, base)), None)
    if library is None:
        return None
    size = sum(each.stat().st_size for each in folder.iterdir() if each.suffix in _WEIGHTS)
    free = psutil.virtual_memory().available
    if size > free * 9 // 10:
        raise TierCapacityError(
            f"{folder} has to be read by {library} as a whole, and the host has no memory for it.",
            looked_at=f"{gibibytes(size)} in files, {gibibytes(free)} available",
            do=f"with more memory, save it in the layout of this version of {library}: save_pretrained(other)",
        )
    cls: Any = type(module)
    dtype = next((each.dtype for each in module.parameters() if each.is_floating_point()), None)
    options = _transformers_options(module, folder) if library == "transformers" else {}
    try:
        with _quiet(library):
            loaded, info = cls.from_pretrained(
                folder, **{"dtype" if library == "transformers" else "torch_dtype": dtype},
                output_loading_info=True, local_files_only=True, **options,
            )  # fmt: skip
    except Exception as error:
        raise WeightsError(
            f"{library} cannot read the weights of {folder} into a {cls.__name__}.",
            looked_at=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            do="check the folder, and that the packages for its format are installed",
        ) from error
    problems = {
        name: sorted(map(str, info.get(name) or ())) for name in ("missing_keys", "mismatched_keys", "unexpected_keys")
    }
    if any(problems.values()):
        raise WeightsError(
            f"{folder} and this {cls.__name__} do not have the same weights.",
            looked_at="; ".join(f"{len(some)} {name}, such as {some[0]}" for name, some in problems.items() if some),
            do="build the model from the config.json of the same folder",
        )
    state: dict[str, torch.Tensor] = loaded.state_dict(keep_vars=True)
    values = {name: each.detach() for name, each in (*state.items(), *loaded.named_buffers())}
    own = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    for name, each in own.items():
        there = values.get(name)
        if there is None or there.shape != each.shape or there.is_floating_point() != each.is_floating_point():
            raise WeightsError(
                f"{name} is not in the model that {library} reads from {folder} as it is in this one.",
                looked_at=f"{_brief(there)} in the files, {_brief(each)} in the model",
                do="build the model from the config.json of the same folder",
            )
    return {name: values[name].to(each.dtype) for name, each in own.items()}


_BASES = {"transformers": "PreTrainedModel", "diffusers": "ModelMixin"}


def _is_instance(module: nn.Module, library: str, base: str) -> bool:
    cls = getattr(sys.modules.get(library), base, None)  # a model of it has imported it
    return cls is not None and isinstance(module, cls)


def _transformers_options(module: Any, folder: Path) -> dict[str, Any]:
    config = copy.deepcopy(module.config)
    stored = quantization(folder)
    if stored is not None:
        method = stored.get("quant_method")
        if method != "fp8":
            raise WeightsError(
                f"{folder} is quantised ({method}), and this {type(module).__name__} is not.",
                looked_at=f"{_first_quantised(module, folder)}quantization_config of its config.json; the model's "
                f"parameters are {next(module.parameters()).dtype}",
                do="build the model with from_pretrained(folder), and attach it without disk=folder",
            )
        config.quantization_config = {**stored, "dequantize": True}
    return {"config": config}


def _first_quantised(module: nn.Module, folder: Path) -> str:
    """Text about the first quantised weight and the tensors that hold it; empty if the files do not show it."""
    try:
        stored = {each.name: each for each in read_folder(folder)}
    except WeightsError:
        return ""
    for name, parameter in module.named_parameters():
        found = stored.get(name)
        if found is None or found.dtype not in FLOATS or found.shape != tuple(parameter.shape):
            prefix = name.rpartition(".")[0] + "."
            parts = [each.removeprefix(prefix) for each in stored if each.startswith(prefix)]
            if parts:
                return f"{name} is stored as {', '.join(parts[:5])}; "
    return ""


def _brief(tensor: torch.Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
