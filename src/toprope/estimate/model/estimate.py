"""Parameters, memory and time of a model on one card, or divided among cards: the sum of what `workloads` recorded.

Called by `toprope estimate` (cli/estimate.py); text.py shows the result. `as_dict` is the public JSON
(docs/estimate.md): its keys stay. Collectives and stages follow Megatron-LM and 1F1B scheduling. Tests:
tests/estimate/test_paper.py and test_models_on_paper.py (published memory).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any, Literal

import torch

from toprope.chips import Chip
from toprope.errors import UsageError
from toprope.estimate.cost.costs import cost_of
from toprope.estimate.cost.rates import Rates, UnknownRateError, rates_of
from toprope.estimate.cost.span import NOTHING, Span, total_of
from toprope.estimate.cost.timeline import Act, Timeline, bound_by
from toprope.estimate.model.configs import Component, load
from toprope.estimate.model.layout import BUFFER_BYTES, Layout, collective, divided, exposed, gradient_time, send
from toprope.estimate.model.options import Asked, refuse_without_effect
from toprope.estimate.model.workloads import SIZED, Mode, Recording, Stage, Work, has_fused_attention, record, tokens_of
from toprope.estimate.record.calls import OperatorCall
from toprope.estimate.record.recorder import Event

__all__ = ["COMMUNICATION", "Estimate", "Memory", "Part", "Time", "as_dict", "estimate"]

COMMUNICATION = "communication"
_NEAR = 0.9
"""Share of the usable memory above which kernels' workspaces, which no source gives, may not fit any more."""

_DENOISERS = ("unet", "transformer")

Fit = Literal["fits", "may not fit", "does not fit", "unknown"]


@dataclass(frozen=True)
class Part:
    """A component of a model.

    Attributes:
        name, class_name: "unet", "UNet2DConditionModel".
        parameters: their number, of the whole model.
        active: those that one token uses; fewer where it goes to some of the experts.
        weight_bytes: of all parameters in the chosen dtype.
        peak: bytes that it needs when it runs, without other components.
        time: of one pass.
        passes: how often it runs for one result.
    """

    name: str
    class_name: str
    parameters: int
    active: int
    weight_bytes: int
    peak: int = 0
    time: Span = NOTHING
    passes: int = 1


@dataclass(frozen=True)
class Memory:
    """The most that a card holds at once.

    Attributes:
        peak: bytes of tensors.
        held: the same by kind, the most first.
        largest: what activations were made by at the peak: operator, dtype and shape, with bytes, the most first.
        buffers: bytes of HCCL's buffers.
        usable: bytes that programs get on this chip; None where it is not known.
        usable_source: where that comes from.
        fit: the verdict.
    """

    peak: int
    held: dict[str, int]
    largest: dict[str, int]
    buffers: int
    usable: int | None
    usable_source: str
    fit: Fit


@dataclass(frozen=True)
class Time:
    """Time of a step.

    Attributes:
        total: of the step.
        host: how long the host is busy with launching.
        aside: how long the host is busy with going on after waits.
        card: how long the card is busy.
        kinds: time of the card by kind of operator, with the number of launches, the longest first.
        outside: collectives that may run next to the computation, each with the part that is waited for.
        tokens_per_second: of all cards; nothing where a step makes no tokens.
        waits: times that the host waits for the card.
    """

    total: Span
    host: Span
    aside: Span
    card: Span
    kinds: tuple[tuple[str, int, Span], ...]
    outside: tuple[tuple[str, Span], ...] = ()
    tokens_per_second: Span = NOTHING
    waits: int = 0

    @property
    def bound(self) -> str:
        """Return the longest: "launches" or "copies" of the host, or the "card"."""
        return bound_by(self.host, self.aside, self.card)


@dataclass(frozen=True)
class Estimate:
    """All of it.

    Attributes:
        model: as it was named.
        chip: the chip.
        work, layout: what was asked.
        parts: components.
        memory: of the card that needs most.
        time: None where no source gives a figure that it rests on.
        why_no_time: which one is missing.
        notes: what was assumed, and what is not in it.
    """

    model: str
    chip: Chip
    work: Work
    layout: Layout
    parts: tuple[Part, ...]
    memory: Memory
    time: Time | None
    why_no_time: str = ""
    notes: tuple[str, ...] = ()

    @property
    def basis(self) -> dict[str, str]:
        """Basis of the times by kind of operator."""
        rates = rates_of(self.chip)
        found = [kind for kind, _, _ in self.time.kinds] if self.time is not None else []
        links = "rates of links of public measurements inside a node"
        return {each: links if each == COMMUNICATION else rates.basis(each) for each in found}  # type: ignore[arg-type]

    @property
    def parameters(self) -> int:
        """Number of parameters of all components."""
        return sum(each.parameters for each in self.parts)


def as_dict(one: Estimate) -> dict[str, Any]:
    """Return the estimate for JSON: bytes, and seconds as [low, likely, high], where null is an end that is unknown."""
    memory, time = asdict(one.memory), None
    if one.time is not None:
        time = {
            "total": _ends(one.time.total),
            "host": _ends(one.time.host),
            "copies_and_waits": _ends(one.time.aside),
            "card": _ends(one.time.card),
            "bound": one.time.bound,
            "kinds": [
                {"kind": kind, "launches": count, "seconds": _ends(span)} for kind, count, span in one.time.kinds
            ],
            "outside": [{"name": name, "seconds": _ends(span)} for name, span in one.time.outside],
            "tokens_per_second": _ends(one.time.tokens_per_second) if one.time.tokens_per_second.likely else None,
            "waits": one.time.waits,
        }
    return {
        "model": one.model,
        "chip": one.chip.name,
        "work": {
            key: value
            for key, value in asdict(one.work).items()
            if key not in ("shard", "expert_shard", "accumulate", "copies")
        },
        "layout": asdict(one.layout) | {"cards": one.layout.cards},
        "parameters": {"total": one.parameters, "word": "counted"},
        "components": [asdict(each) | {"time": _ends(each.time)} for each in one.parts],
        "memory": memory | {"word": "estimate", "usable_word": "profile"},
        "time": None if time is None else time | {"word": "estimate", "basis": one.basis},
        "why_no_time": one.why_no_time,
        "notes": list(one.notes),
    }


def _ends(span: Span) -> list[float | None]:
    return [each if isfinite(each) else None for each in span]


_COMPOSED = "attention is composed of products and a softmax: this chip has no fused kernel"


def estimate(
    model: str,
    chip: Chip,
    work: Work,
    layout: Layout | None = None,
    *,
    steps: int = 1,
    arguments: dict[str, Any] | None = None,
    queue: int = 1,
    given: Collection[str] = (),
) -> Estimate:
    """Estimate what a model needs on a chip, without weights and without a card.

    Args:
        model: as `models.load` takes it.
        chip: the chip.
        work: what the model does.
        layout: how it is divided among cards.
        steps: passes of the denoiser of a pipeline for one picture.
        arguments: of the class, for a class of the user.
        queue: TASK_QUEUE_ENABLE of torch_npu.
        given: names of the options that the user wrote: each that has no effect on this model and mode is refused.

    Raises:
        UsageError: the model cannot be made, does not do this, or cannot be divided so; an option has no effect.
        PackageError: the library of the model is not installed.
    """
    layout = layout or Layout()
    components = load(model, work.dtype, arguments=arguments)
    parts = [_part(each) for each in components]
    usual: Mode = "prefill" if len(components) == 1 and components[0].is_language_model else "forward"
    work = replace(work, mode=work.mode or usual)
    refuse_without_effect(given, _asked(components, work))
    work = _with_sharding(work, layout)
    notes = [note] if (note := rates_of(chip).not_used) else []
    composed = [] if has_fused_attention(chip) else [_COMPOSED]
    if len(components) > 1:
        notes += composed
        return _pipeline(model, chip, work, layout, components, parts, steps, queue, notes)
    component = components[0]
    _check_mode(component, work.mode)
    runs = _runs(model, component, work, layout, chip)
    calls = [event.call for _, one in runs for event in one.events if event.call is not None]
    if any("softmax" in call.name for call in calls):
        notes += composed
    notes += [note for _, one in runs for note in one.notes]
    notes += [*component.notes, *_experts_notes(component, work)]
    memory = _memory(chip, layout, work, runs)
    parts = [replace(parts[0], peak=memory.peak)]
    try:
        time, why = _time(rates_of(chip), component, work, layout, runs, queue), ""
    except UnknownRateError as error:
        time, why = None, str(error)
    if time is not None:
        parts = [replace(parts[0], time=time.total)]
    return Estimate(model, chip, work, layout, tuple(parts), memory, time, why, _notes(notes, layout, work))


def _asked(components: Sequence[Component], work: Work) -> Asked:
    """Facts about what is estimated that options depend on."""
    first = components[0]
    kind = first.library or "class"
    if len(components) > 1:
        kind = "pipeline"
    elif first.is_language_model:
        kind = "language model"
    elif kind == "transformers":
        kind = "pictures" if getattr(first.module, "main_input_name", "") == "pixel_values" else "text"
    elif first.module.__class__.__name__ not in SIZED and kind == "diffusers":
        kind = "class"
    return Asked(
        work.mode or "forward",
        work.graph,
        kind,
        len(components) == 1 and any(True for _ in _experts(first.module)),
        any(each.name in _DENOISERS for each in components),
        bool(work.inputs),
    )


def _with_sharding(work: Work, layout: Layout) -> Work:
    if work.mode != "train":
        given = {"zero": layout.zero, "micro_batches": layout.micro_batches > 1,
                 "checkpointing": work.checkpointing, "master": work.master}  # fmt: skip
        refuse_without_effect([name for name, value in given.items() if value], Asked(work.mode, work.graph, ""))
        return work
    return replace(
        work,
        shard=layout.dp,
        expert_shard=layout.dp // layout.ep,
        zero=layout.zero,
        accumulate=layout.micro_batches > 1,
        copies=layout.dp > 1,
    )


def _check_mode(component: Component, mode: str) -> None:
    if mode in ("prefill", "decode") and not component.is_language_model:
        raise UsageError(f"{component.name} does not generate tokens.", do="use --mode forward or train")


def _notes(notes: Sequence[str], layout: Layout, work: Work) -> tuple[str, ...]:
    made = list(dict.fromkeys(notes))
    if layout.cards > 1:
        made.append("the division is on paper: no program was divided")
    made.append(
        "not in it: workspaces of kernels, fragments of the allocator, reading of data, and Python between operators"
        + ("" if work.mode != "decode" else ", and sampling of the next token")
    )
    return tuple(made)


# ---- parameters


def _experts(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Modules that hold the weights of several experts, one behind the other."""
    for part in module.modules():
        count = getattr(part, "num_experts", None)
        own = list(part.parameters(recurse=False))
        if isinstance(count, int) and own and all(each.dim() == 3 and each.shape[0] == count for each in own):
            yield part


def _part(component: Component) -> Part:
    module = component.module
    total = sum(each.numel() for each in module.parameters())
    chosen = getattr(component.config, "num_experts_per_tok", None) if component.library == "transformers" else None
    idle = 0
    if chosen:
        for part in _experts(module):
            held = sum(each.numel() for each in part.parameters(recurse=False))
            count: Any = part.num_experts
            idle += held * max(count - chosen, 0) // count
    return Part(component.name, type(module).__name__, total, total - idle, component.weight_bytes())


def _experts_notes(component: Component, work: Work) -> list[str]:
    if next(_experts(component.module), None) is None:
        return []
    grouped = work.experts == "grouped" or (not work.experts and work.graph)
    how = "npu_grouped_matmul" if grouped else "one product after the other, as torch composes grouped_mm on a card"
    return [f"tokens are distributed evenly among the experts, which run as {how}"]


# ---- the part of one card


def _runs(model: str, component: Component, work: Work, layout: Layout, chip: Chip) -> list[tuple[Stage, Recording]]:
    """The stages that differ: the first and the last one of a pipeline, or the whole."""
    if layout.tp == layout.pp == layout.ep == 1:
        whole = Stage(component.module, list(component.module.parameters()), _expert_ids(component.module))
        return [(whole, record(component, work, chip, whole))]
    if component.library != "transformers" or not component.is_language_model:
        raise UsageError(
            f"--tp, --pp and --ep divide language models of transformers, and {component.name} is none.",
            do="use --dp alone",
        )
    mine = load(model, work.dtype, change=lambda config: divided(config, layout))[0]
    if layout.tp > 1:
        _check_division(component.module, mine.module, layout)
    if layout.ep > 1:
        _divide_experts(mine.module, layout.ep)
    if layout.pp == 1:
        stages = [Stage(mine.module, list(mine.module.parameters()), _expert_ids(mine.module))]
    else:
        stages = _stages(mine.module)
    return [(stage, record(mine, work, chip, stage)) for stage in stages]


def _stages(module: Any) -> list[Stage]:
    """The first and the last stage of a pipeline; a stage between them has no more than these."""
    base, table = module.base_model, module.get_input_embeddings()
    embedded = {id(each) for each in table.parameters()}
    tied = any(id(each) in embedded for each in module.get_output_embeddings().parameters())
    last = [each for each in module.parameters() if tied or id(each) not in embedded]
    experts = _expert_ids(module)
    return [
        Stage(base, list(base.parameters()), experts, from_ids=True, to_loss=False),
        Stage(module, last, experts, from_ids=False, to_loss=True),
    ]


def _expert_ids(module: torch.nn.Module) -> frozenset[int]:
    return frozenset(id(each) for part in _experts(module) for each in part.parameters(recurse=False))


def _check_division(whole: torch.nn.Module, part: torch.nn.Module, layout: Layout) -> None:
    """Compare the parameters of one card with the model's: each is as it is, or divided once.

    Raises:
        UsageError: they are not.
    """
    shapes = {name: each.shape for name, each in part.named_parameters()}
    count = 0
    for name, each in whole.named_parameters():
        if name not in shapes:
            continue  # of another stage
        for full, mine in zip(each.shape, shapes[name], strict=True):
            # heads of keys and values are kept at least once, and the vocabulary is filled up
            if mine != full and not full / layout.tp <= mine < full:
                raise UsageError(
                    f"{name} {list(each.shape)} cannot be divided by {layout.tp}.", do="choose another --tp"
                )
            count += mine != full
    if not count:
        raise UsageError(f"--tp divides nothing of {type(whole).__name__}.", do="leave it out")


def _divide_experts(module: torch.nn.Module, parts: int) -> None:
    found = list(_experts(module))
    if not found:
        raise UsageError(f"{type(module).__name__} has no experts.", do="leave --ep out")
    for part in found:
        count: int = part.num_experts  # type: ignore[assignment]
        if count % parts:
            raise UsageError(f"{count} experts cannot be divided by {parts}.", do="choose an --ep that divides them")
        for name, each in list(part.named_parameters(recurse=False)):
            made = torch.empty((count // parts, *each.shape[1:]), dtype=each.dtype, device="meta")
            setattr(part, name, torch.nn.Parameter(made))
        part.num_experts = count // parts  # type: ignore[assignment]


# ---- memory


def _memory(chip: Chip, layout: Layout, work: Work, runs: Iterable[tuple[Stage, Recording]]) -> Memory:
    best = max((_held(layout, work, stage, one) for stage, one in runs), key=lambda each: sum(each[0].values()))
    held, largest = best
    peak = sum(held.values())
    return _verdict(chip, peak, held, largest, layout.communicators * BUFFER_BYTES)


def _held(layout: Layout, work: Work, stage: Stage, one: Recording) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes by kind at the peak of a stage.

    With 1F1B scheduling the first of p stages keeps the activations of p micro-batches.
    """
    held = one.memory.peak_by_kind()
    waiting = min(layout.pp, layout.micro_batches) - 1 if work.mode == "train" and stage.from_ids else 0
    if waiting:
        held["activations of other micro-batches"] = waiting * one.kept
    return held, dict(list(one.memory.peak_by_label("activations").items())[:5])


def _verdict(chip: Chip, peak: int, held: dict[str, int], largest: dict[str, int], buffers: int) -> Memory:
    usable, figure = chip.usable_bytes, chip.figure("hbm_usable_mib") or chip.figure("hbm_mib")
    source = "" if figure is None else ", ".join(each.url for each in figure.sources)
    if usable is None:
        fit: Fit = "unknown"
    elif peak + buffers > usable:
        fit = "does not fit"
    else:
        fit = "may not fit" if peak + buffers > _NEAR * usable else "fits"
    return Memory(peak, dict(sorted(held.items(), key=lambda each: -each[1])), largest, buffers, usable, source, fit)


# ---- time


def _acts(events: Iterable[Event], rates: Rates, *, graph: bool, queue: int, extent: int) -> Iterator[Act]:
    known: dict[OperatorCall, Act] = {}
    wait = Act("synchronise", host=rates.synchronise())
    for event in events:
        if event.collective is not None:
            name, size, ranks = event.collective
            span = collective(rates, name, size, ranks, extent)
            yield Act("launch", host=rates.launch(queue=queue, graph=graph), card=span, kind=COMMUNICATION)
            continue
        if event.call is None:
            if not graph:
                yield wait
            continue
        act = known.get(event.call)
        if act is None:
            cost = cost_of(event.call)
            host = rates.launch(cost.kind, queue=queue, graph=graph)
            act = known[event.call] = Act("launch", host=host, card=rates.seconds(cost), kind=cost.kind)
        for _ in range(event.times):
            yield act


def _time(
    rates: Rates, component: Component, work: Work, layout: Layout, runs: Sequence[tuple[Stage, Recording]], queue: int
) -> Time:
    slowest: list[tuple[Timeline, Timeline, int]] = []
    for stage, one in runs:
        events = _with_collectives(one.events, component, work, layout, stage)
        passes = [each for each in events if each.phase != "optimizer"]
        rest = [each for each in events if each.phase == "optimizer"]
        computed, stepped = (
            Timeline.of(_acts(each, rates, graph=work.graph, queue=queue, extent=layout.tp * layout.ep))
            for each in (passes, rest)
        )
        slowest.append((computed, stepped, sum(each.call is None and each.collective is None for each in passes)))
    computed, stepped, waits = max(slowest, key=lambda each: each[0].total.likely + each[1].total.likely)
    training = work.mode == "train"
    # 1F1B: m micro-batches pass p stages; without training a batch passes one stage after the other
    rounds = layout.micro_batches + layout.pp - 1 if training else layout.pp
    total = computed.total.times(rounds).plus(stepped.total)
    outside = []
    if layout.pp > 1:
        sent = send(rates, _hidden_bytes(component, work), layout.cards).times((2 if training else 1) * (layout.pp - 1))
        outside.append(("between stages: send", sent))
        total = total.plus(sent)
    if training:
        for name, span in gradient_time(rates, layout, runs[0][1].gradients, runs[0][1].weights):
            hidden = computed.total.times(layout.micro_batches) if layout.zero > 1 else computed.total.times(2 / 3)
            waited = exposed(span, hidden)
            outside.append((name, waited))
            total = total.plus(waited)
    made = _together([(computed, layout.micro_batches if training else 1), (stepped, 1)], total)
    speed = _speed(work, layout, total) if component.is_language_model else NOTHING
    return replace(made, outside=tuple(outside), tokens_per_second=speed, waits=waits)


def _together(timelines: Iterable[tuple[Timeline, int]], total: Span) -> Time:
    """The time of timelines that each run several times; `total` may be more than their sum."""
    host = aside = NOTHING
    busy: dict[str, Span] = {}
    launches: Counter[str] = Counter()
    for line, times in timelines:
        host, aside = host.plus(line.host.times(times)), aside.plus(line.aside.times(times))
        for kind, span in line.busy.items():
            busy[kind] = busy.get(kind, NOTHING).plus(span.times(times))
            launches[kind] += line.calls[kind] * times
    card = total_of(busy.values())
    kinds = sorted(((kind, launches[kind], span) for kind, span in busy.items()), key=lambda each: -each[2].likely)
    return Time(total, host, aside, card, tuple(kinds))


def _speed(work: Work, layout: Layout, total: Span) -> Span:
    if work.mode == "forward" or not total.likely:
        return NOTHING
    tokens = tokens_of(work) * layout.dp
    tokens *= layout.micro_batches if work.mode == "train" else 1
    return Span(tokens / total.high, tokens / total.likely, tokens / total.low)


def _hidden_bytes(component: Component, work: Work) -> int:
    text = component.config.get_text_config()
    return int(tokens_of(work) * text.hidden_size * (4 if work.dtype == "float32" else 2))


def _with_collectives(
    events: Sequence[Event], component: Component, work: Work, layout: Layout, stage: Stage
) -> list[Event]:
    """The events with the collectives of tensor and expert parallelism among them, at equal distances.

    Megatron-LM: an all-reduce of the activations behind attention and one behind the MLP of each layer, forward and
    backward, again where the layer is computed again; one behind the embedding. Experts: tokens are sent to their
    experts and back, so two all-to-alls in each layer with experts, each way.
    """
    made = list(events)
    if layout.tp == layout.ep == 1:
        return made
    text = component.config.get_text_config()
    layers = text.num_hidden_layers // layout.pp
    size = _hidden_bytes(component, work)
    again = 1 if work.checkpointing and work.mode == "train" else 0
    for phase, repeats in (("forward", 1), ("backward", 1 + again)):
        found = [place for place, each in enumerate(made) if each.phase == phase]
        if not found:
            continue
        new = []
        if layout.tp > 1:
            reduce = Event(None, 1, phase, ("allreduce", size, layout.tp))
            new += [reduce] * (2 * layers * repeats + (1 if stage.from_ids or phase == "backward" else 0))
        if layout.ep > 1:
            chosen = getattr(text, "num_experts_per_tok", 1)
            moved = Event(None, 1, phase, ("alltoall", size * chosen, layout.ep))
            experts = sum(1 for _ in _experts(component.module)) // layout.pp
            new += [moved] * (2 * experts * repeats)
        made = _inserted_evenly(made, new, found[0], found[-1] + 1)
    return made


def _inserted_evenly(events: list[Event], new: list[Event], begin: int, end: int) -> list[Event]:
    inside, made, put = events[begin:end], events[:begin], 0
    for place, each in enumerate(inside, 1):
        made.append(each)
        while put < len(new) * place // len(inside):
            made.append(new[put])
            put += 1
    return made + events[end:]


# ---- pipelines of diffusers


def _pipeline(
    model: str,
    chip: Chip,
    work: Work,
    layout: Layout,
    components: Sequence[Component],
    parts: Sequence[Part],
    steps: int,
    queue: int,
    notes: list[str],
) -> Estimate:
    """All components are on the card, and run one after the other: encoders, denoiser, decoder."""
    if work.mode != "forward":
        raise UsageError(
            f"{model} is a pipeline: --mode {work.mode} belongs to one model.",
            do="use --mode forward, or name the folder of one component, such as its unet or transformer",
        )
    if layout.cards > 1:
        raise UsageError("a pipeline is not divided here.", do="leave --dp, --tp, --pp and --ep out")
    rates, weights = rates_of(chip), sum(each.weight_bytes for each in parts)
    made, timelines, why = [], [], ""
    held: dict[str, int] = {}
    largest: dict[str, int] = {}
    peak = 0
    for component, part in zip(components, parts, strict=True):
        denoises = component.name in _DENOISERS
        doubled = component.name == "unet"
        own = replace(work, batch=work.batch * 2 if doubled else work.batch, length=512)
        if doubled:
            notes.append("the UNet runs on a doubled batch: with and without the text (classifier-free guidance)")
        one = record(component, own, chip)
        notes += [*component.notes, *one.notes]
        others = weights - part.weight_bytes
        if one.memory.peak + others > peak:
            peak = one.memory.peak + others
            held = one.memory.peak_by_kind()
            held["weights"] = held.get("weights", 0) + others
            largest = dict(list(one.memory.peak_by_label("activations").items())[:5])
        passes = steps if denoises else 1
        span = NOTHING
        try:
            line = Timeline.of(_acts(one.events, rates, graph=work.graph, queue=queue, extent=1))
            span = line.total
            timelines.append((line, passes))
        except UnknownRateError as error:
            why = str(error)
        made.append(replace(part, peak=one.memory.peak, time=span, passes=passes))
    memory = _verdict(chip, peak, held, largest, 0)
    time = None
    if not why:
        time = _together(timelines, total_of(line.total.times(passes) for line, passes in timelines))
    notes.append("all components stay on the card")
    return Estimate(model, chip, work, layout, tuple(made), memory, time, why, _notes(notes, layout, work))
