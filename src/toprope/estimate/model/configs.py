"""Models without weights, on the meta device: of transformers or diffusers by a config, or a class of the user.

Called by estimate.py and workloads.py. The two libraries fix the names of files and fields (config.json,
model_index.json). Nothing is downloaded, and code that comes with a configuration (auto_map) is not run; both are
promises to users. Tests: tests/estimate/test_models_on_paper.py, against published counts of parameters, and
tests/estimate/test_paper.py.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toprope.errors import PackageError, UsageError
from toprope.estimate.record.quantised import Quantised, quantised_of
from toprope.extras import advice

__all__ = ["DTYPES", "Component", "dtype_of", "load", "quiet"]

DTYPES = ("bfloat16", "float16", "float32")
_PIPELINE, _CONFIG = "model_index.json", "config.json"


@dataclass
class Component:
    """A model on the meta device, whole or as a part of a pipeline.

    Attributes:
        name: "unet", "text_encoder"; the class where the model is one.
        module: the model.
        library: "transformers", "diffusers", or "" for a class of the user.
        config: transformers' configuration; what diffusers' config.json says.
        notes: what was left out of it.
        quantised: how its weights are stored; None for the dtype that was asked for.
    """

    name: str
    module: torch.nn.Module
    library: str
    config: Any = None
    notes: tuple[str, ...] = ()
    quantised: Quantised | None = None

    def quantised_weights(self) -> Iterator[torch.nn.Parameter]:
        """The weights that are stored as `quantised` says: of linear layers and of experts."""
        if self.quantised is None:
            return
        for name, module in self.module.named_modules():
            if self.quantised.covers(name):
                of_experts = isinstance(getattr(module, "num_experts", None), int)
                for parameter in module.parameters(recurse=False):
                    if (isinstance(module, torch.nn.Linear) and parameter.dim() == 2) or (
                        of_experts and parameter.dim() == 3
                    ):
                        yield parameter

    def weight_bytes(self) -> int:
        """Bytes of all weights, as they are stored."""
        stored = {id(each) for each in self.quantised_weights()}
        bits = 0.0 if self.quantised is None else self.quantised.bits_in_memory
        total = 0.0
        for each in self.module.parameters():
            total += each.numel() * (bits / 8 if id(each) in stored else each.element_size())
        return round(total)

    @property
    def is_language_model(self) -> bool:
        """True for models that predict one token after the other, with a cache of keys and values."""
        module: Any = self.module
        return self.library == "transformers" and hasattr(module, "generate") and bool(module.can_generate())


def dtype_of(name: str) -> torch.dtype:
    """torch's dtype of a name.

    Raises:
        UsageError: models are not computed in it.
    """
    if name not in DTYPES:
        raise UsageError(f"{name!r} is no dtype of weights here.", do=f"write one of {', '.join(DTYPES)}")
    found: torch.dtype = getattr(torch, name)
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' warnings from the output, such as about attributes in a config that they do not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)


@contextlib.contextmanager
def _on_meta(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)


def load(
    model: str, dtype: str = "bfloat16", *, arguments: Mapping[str, Any] | None = None, change: Any = None
) -> list[Component]:
    """Make a model, or the models of a pipeline, without weights.

    Args:
        model: a folder with config.json or model_index.json, such a file, or "package.module:Class" or "file.py:Class".
        dtype: of the weights.
        arguments: of the class, for a class of the user.
        change: called with a configuration of transformers before its model is made; gives the one to use.

    Raises:
        UsageError: there is no such model, or its class is not known.
        PackageError: the library that it needs is not installed.
    """
    with quiet():
        return _load(model, dtype_of(dtype), dict(arguments or {}), change)


def _load(model: str, wanted: torch.dtype, arguments: dict[str, Any], change: Any) -> list[Component]:
    path = Path(model)
    if arguments and path.exists() and path.suffix != ".py":
        raise UsageError("--kwargs are arguments of a class, and a configuration has its own.", do="leave them out")
    if path.is_dir():
        if (path / _PIPELINE).is_file():
            return _pipeline(path / _PIPELINE, wanted)
        if not (path / _CONFIG).is_file():
            raise UsageError(
                f"{path} has no {_CONFIG} and no {_PIPELINE}.",
                looked_at=", ".join(sorted(each.name for each in path.iterdir())[:8]) or "an empty folder",
                do="name the folder of a model of transformers or diffusers, or module:Class",
            )
        path = path / _CONFIG
    if path.is_file() and path.suffix == ".json":
        if path.name == _PIPELINE:
            return _pipeline(path, wanted)
        return [_of_config(path, wanted, change=change)]
    module, colon, name = model.rpartition(":")
    if not colon or not name.isidentifier():
        if path.is_file() and path.suffix == ".py":
            raise UsageError(f"{model} is a program, not a model.", do=f"name the class in it: {model}:CLASS")
        raise UsageError(
            f"there is no model {model!r}.",
            looked_at=f"{Path.cwd()}; nothing is downloaded",
            do="name a folder with config.json or model_index.json, such a file, FILE.py:CLASS or module:CLASS",
        )
    return [_of_class(module, name, wanted, arguments)]


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read.",
            looked_at=f"{type(error).__name__}: {error}",
            do="give the file as the library wrote it: text in JSON",
        ) from None
    if not isinstance(data, dict):
        raise UsageError(
            f"{path} is no configuration: it has no names.", do="name the config.json of a model, or its folder"
        )
    return data


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PackageError(
            f"this model needs {name}, which cannot be imported.", str(error), advice("images")
        ) from error


def _class_of(library: str, name: str, path: Path) -> Any:
    found = getattr(_library(library), name, None)
    if found is None:
        raise UsageError(
            f"the installed {library} has no class {name}.",
            looked_at=f"{path}, {library} {getattr(_library(library), '__version__', '')}",
            do=f"install the version of {library} that has it, or name a class of your own as module:Class",
        )
    return found


def _pipeline(path: Path, dtype: torch.dtype) -> list[Component]:
    """The components of a pipeline of diffusers that have weights."""
    made, left_out = [], []
    for name, entry in _read(path).items():
        config = path.parent / name / _CONFIG
        if isinstance(entry, list) and len(entry) == 2 and entry[0] in ("transformers", "diffusers"):
            if config.is_file():
                made.append(_of_config(config, dtype, name=name, cls=entry[1]))
            elif not _without_weights(str(entry[1])):
                raise UsageError(
                    f"{path} names the component {name} ({entry[1]}), and there is no {config}.",
                    do=f"put its {_CONFIG} there; the weights are not needed",
                )
        elif isinstance(entry, list) and any(entry):
            left_out.append(f"{name} ({entry[-1]}) is not counted: its class is in neither transformers nor diffusers")
    if not made:
        raise UsageError(
            f"{path} names no component with weights.", do="name the model_index.json of a pipeline of diffusers"
        )
    made[0].notes += tuple(left_out)
    return made


def _without_weights(name: str) -> bool:
    return any(part in name for part in ("Tokenizer", "Scheduler", "Processor", "FeatureExtractor"))


def _of_config(path: Path, dtype: torch.dtype, *, name: str = "", cls: str = "", change: Any = None) -> Component:
    data = _read(path)
    notes: tuple[str, ...] = ()
    quantised = quantised_of(data)
    if quantised is not None:
        notes = (f"weights of linear layers are stored by {quantised.text}; activations are of the dtype asked for",)
    elif unknown := data.get("quantization_config"):
        method = unknown.get("quant_method") if isinstance(unknown, dict) else None
        notes = (f"weights are quantised by a method not known here ({method}): counted in the dtype asked for",)
    data.pop("quantization_config", None)
    if "_class_name" in data:
        cls = cls or str(data["_class_name"])
        kind = _class_of("diffusers", cls, path)
        module = _build(lambda: kind.from_config(data), dtype, path)
        return Component(name or cls, module, "diffusers", data, notes, quantised)
    if "model_type" not in data:
        raise UsageError(
            f"{path} has neither model_type (of transformers) nor _class_name (of diffusers).",
            do="name the config.json of a model of one of the two, or module:Class",
        )
    transformers = _library("transformers")
    if data.get("auto_map") and data["model_type"] not in transformers.CONFIG_MAPPING:
        raise UsageError(
            f"the model of {path} comes with code of its own, which is not run.",
            do="name its class as module:Class, with its arguments in --kwargs",
        )
    if data["model_type"] not in transformers.CONFIG_MAPPING:
        raise UsageError(
            f"the installed transformers {transformers.__version__} does not know {data['model_type']!r}.",
            do="install a transformers that does",
        )
    config = _build(lambda: transformers.AutoConfig.for_model(**data), dtype, path)
    if change is not None:
        config = change(config)
    architecture = cls or next(iter(data.get("architectures") or ()), "")
    if architecture:
        kind = _class_of("transformers", architecture, path)
        module = _build(lambda: kind._from_config(config, dtype=dtype), dtype, path)
    else:
        auto = transformers.AutoModelForCausalLM
        module = _build(lambda: auto.from_config(config, dtype=dtype), dtype, path)
    return Component(name or type(module).__name__, module, "transformers", config, notes, quantised)


def _build(make: Any, dtype: torch.dtype, path: Path) -> Any:
    try:
        with _on_meta(dtype):
            return make()
    except UsageError:
        raise
    except Exception as error:  # of libraries that are not ours, such as huggingface_hub's of a field of another type
        text = str(error).strip().splitlines()
        raise UsageError(
            f"the model of {path} cannot be made: {text[0] if text else type(error).__name__}",
            looked_at=type(error).__name__,
            do="compare the configuration with one that the installed library writes",
        ) from error


def _of_class(module: str, name: str, dtype: torch.dtype, arguments: dict[str, Any]) -> Component:
    try:
        with _on_meta(dtype):
            made = _found(_module(module), module, name)(**arguments)
    except UsageError:
        raise
    except Exception as error:  # of code that is not ours
        raise UsageError(
            f"{module}:{name} cannot be made on the meta device: {type(error).__name__}: {error}",
            do="give its arguments with --kwargs; weights must not be read when it is made",
        ) from error
    if not isinstance(made, torch.nn.Module):
        raise UsageError(
            f"{module}:{name} gives {type(made).__name__}, which is no torch.nn.Module.",
            do="name a class of modules, or a function that returns one",
        )
    if any(each.device.type != "meta" for each in made.parameters()):
        made = made.to("meta")
    return Component(name, made, "")


def _found(home: Any, module: str, name: str) -> Any:
    """The class, or the function, of a module."""
    if hasattr(home, name):
        return getattr(home, name)
    classes = [
        each
        for each, value in vars(home).items()
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == home.__name__
    ]
    raise UsageError(
        f"{module} has no {name}.",
        looked_at=f"classes of modules in it: {', '.join(classes) or 'none'}",
        do=f"name one of them: {module}:{classes[0]}" if classes else "name a class of torch.nn.Module",
    )


def _module(name: str) -> Any:
    path = Path(name)
    if path.suffix != ".py":
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(name)
    if not path.is_file():
        raise UsageError(f"there is no file {path}.", do="name a file of Python that has the class: FILE.py:Class")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None  # a file that ends with .py has one
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made
