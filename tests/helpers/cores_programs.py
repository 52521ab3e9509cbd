"""Programs that tests of `toprope.cores` share: the figure, the traps, and small random ones."""

from dataclasses import replace

from hypothesis import strategies as st

from toprope.cores import Card, Collective, Communicator, Op, Program, Stream


def on(cards, groups, streams):
    """A program in short: cards {name: (cube, vector)}, groups {name: "01"}, streams [(card, [op, ...])]."""
    counts = {}
    made = []
    for number, (card, ops) in enumerate(streams):
        found = []
        for op in ops:
            if isinstance(op.collective, str):
                key = card, op.collective
                counts[key] = counts.get(key, -1) + 1
                op = with_collective(op, Collective(op.collective, counts[key]))
            found.append(op)
        made.append(Stream(f"s{number}", card, tuple(found)))
    return Program(
        tuple(Card(name, *cores) for name, cores in cards.items()),
        tuple(made),
        tuple(Communicator(name, tuple(members)) for name, members in groups.items()),
    )


def with_collective(op, collective):
    return replace(op, collective=collective)


def local(name, vector=0, cube=0, waits=(), records=()):
    """A local operator with a barrier over its blocks."""
    return Op(name, cube, vector, True, None, tuple(waits), tuple(records))


def elastic(name, vector=0, cube=0, waits=(), records=()):
    return Op(name, cube, vector, False, None, tuple(waits), tuple(records))


def member(name, group, vector=0, cube=0, waits=(), records=()):
    """A member of the next collective of this communicator on its card."""
    return Op(name, cube, vector, False, group, tuple(waits), tuple(records))


def figure(nonzero=48, scatter=16, combine=24, cards="01", vector=48):
    """The figure of the mission: three streams a card."""
    streams = []
    for card in cards:
        streams += [
            (card, [member("ReduceScatter", "rs", scatter)]),
            (card, [member("DispatchCombine", "dc", combine)]),
            (card, [local("NonZero", nonzero)]),
        ]
    return on(dict.fromkeys(cards, (24, vector)), {"rs": cards, "dc": cards}, streams)


def collectives(cards, count, cores, vector=48):
    """Each card runs the same collectives, each on a stream of its own."""
    names = "XYZW"[:count]
    return on(
        dict.fromkeys(cards, (24, vector)),
        dict.fromkeys(names, cards),
        [(card, [member(name, name, cores)]) for card in cards for name in names],
    )


def rotated(vector=24):
    """Three cards, three collectives of pairs in every stream: no two together need too much."""
    return collectives("012", 3, vector)


def local_before_collective():
    """N;X on a stream, M;Y on another, the same on two cards: the collectives alone would fit."""
    streams = [
        (card, ops)
        for card in "01"
        for ops in (
            [local("N", 48), member("X", "x", 16)],
            [local("M", 48), member("Y", "y", 24)],
        )
    ]
    return on(dict.fromkeys("01", (24, 48)), {"x": "01", "y": "01"}, streams)


def shared_stream():
    """Collectives of two communicators on one stream of card 1: merged into one node each, they would look ordered."""
    return on(
        {"0": (24, 48), "1": (24, 48)},
        {"x": "01", "y": "01"},
        [
            ("0", [member("X", "x", 30)]),
            ("0", [member("Y", "y", 30)]),
            ("1", [member("X", "x", 30), member("Y", "y", 30)]),
        ],
    )


def with_ops(program, change):
    """The program with every operator replaced by `change(id, op)`."""
    streams = tuple(
        Stream(stream.name, stream.card, tuple(change((number, place), op) for place, op in enumerate(stream.ops)))
        for number, stream in enumerate(program.streams)
    )
    return Program(program.cards, streams, program.communicators)


def one_block_more(op, card):
    """The operator with one block more, where its card has the cores."""
    cube, vector = op.cube + op.block[0], op.vector + op.block[1]
    if not op.blocks or cube > card.cube or vector > card.vector:
        return op
    return replace(op, cube=cube, vector=vector)


@st.composite
def programs(draw, most_ops=6, most_streams=5):
    """Small programs: one to three cards, both kinds of core and both at once, events, collectives that share streams,
    operators that need all their blocks at once or one. Circular waits among them, but not in most."""
    cards = [(draw(st.integers(0, 3)), draw(st.integers(2, 5))) for _ in range(draw(st.sampled_from([1, 2, 2, 2, 3])))]
    count = draw(st.integers(max(2, len(cards)), most_streams))
    owners = [*range(len(cards)), *(draw(st.integers(0, len(cards) - 1)) for _ in range(count - len(cards)))]
    queues = [[] for _ in owners]
    for _ in range(draw(st.integers(1, most_ops))):
        queues[draw(st.integers(0, count - 1))].append(None)
    groups = _groups(draw, owners, len(cards))
    for name, group in groups.items():
        for card in group:
            stream = draw(st.sampled_from([each for each, owner in enumerate(owners) if owner == card]))
            queues[stream].insert(draw(st.sampled_from([0, len(queues[stream])])), name)
    events = _events(draw, [(stream, place) for stream, queue in enumerate(queues) for place in range(len(queue))])
    shapes = draw(st.sampled_from([["vector"], ["vector", "vector", "cube", "mix", "none"]]))
    streams = []
    for stream, queue in enumerate(queues):
        ops = []
        for place, name in enumerate(queue):
            cube, vector = _cores(draw, cards[owners[stream]], draw(st.sampled_from(shapes)))
            barrier = name is None and draw(st.sampled_from([True, True, True, False]))
            waits = [event for event, (_, target) in events.items() if target == (stream, place)]
            records = [event for event, (source, _) in events.items() if source == (stream, place)]
            text = f"op{stream}.{place}" if name is None else name
            kind = "" if cube or vector else "AI_CPU"
            ops.append(Op(text, cube, vector, barrier, name, tuple(waits), tuple(records), kind=kind))
        streams.append((str(owners[stream]), ops))
    sizes = {str(number): cores for number, cores in enumerate(cards)}
    return on(sizes, {name: [str(card) for card in group] for name, group in groups.items()}, streams)


def _groups(draw, owners, cards):
    """Communicators of two cards or more, one collective each; the same cards may have several."""
    if cards == 1:
        return {}
    some = st.lists(st.integers(0, cards - 1), min_size=2, max_size=cards, unique=True)
    return {f"g{number}": sorted(draw(some)) for number in range(draw(st.sampled_from([0, 1, 2, 2, 3])))}


def _events(draw, places):
    """Events between two operators, mostly such that no circle comes of them."""
    events = {}
    for number in range(draw(st.sampled_from([0, 0, 1, 2])) if len(places) > 1 else 0):
        ends = draw(st.lists(st.sampled_from(places), min_size=2, max_size=2, unique=True))
        if draw(st.sampled_from([True, True, True, False])):
            ends.sort(key=lambda each: (each[1], each[0]))
        if ends[0][0] != ends[1][0]:
            events[f"e{number}"] = ends
    return events


def _cores(draw, card, shape):
    cube, vector = card
    if shape == "mix" and min(cube, vector // 2):
        blocks = draw(st.integers(1, min(cube, vector // 2)))
        return blocks, 2 * blocks
    if shape == "cube" and cube:
        return draw(st.integers(1, cube)), 0
    if shape == "none":
        return 0, 0
    return 0, draw(st.sampled_from([*range(1, vector + 1), vector, (vector + 1) // 2]))


@st.composite
def every_rank_the_same(draw):
    """Programs in which each of three cards runs the same streams, with collectives of all cards."""
    vector = draw(st.integers(2, 5))
    queue = st.lists(st.tuples(st.booleans(), st.integers(1, 5)), min_size=1, max_size=2)
    queues = draw(st.lists(queue, min_size=2, max_size=3))
    streams = [(card, _ranks_queue(number, queue, vector)) for card in "012" for number, queue in enumerate(queues)]
    groups = {f"g{number}": "012" for number in range(len(queues))}
    return on(dict.fromkeys("012", (0, vector)), groups, streams)


def _ranks_queue(number, queue, vector):
    return [
        Op(f"op{number}.{place}", 0, min(cores, vector), not together, f"g{number}" if together else None)
        for place, (together, cores) in enumerate(queue)
    ]
