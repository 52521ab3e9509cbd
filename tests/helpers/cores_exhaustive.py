"""Every moment that a small program can get to, by plain breadth-first search: what the checker is held to.

Written from the words of `Discipline`, without a line of the checker: moments are dictionaries of who has what.
"""

from collections import deque
from math import gcd

from toprope.cores import Discipline


class TooMany(Exception):
    """There are more moments than the search may look at."""


def deadlocks(program, discipline, most=60_000):
    """Whether any order of things ends with work left and nothing able to go on."""
    world = World(program, discipline)
    seen, queue = {world.start}, deque([world.start])
    while queue:
        moment = queue.popleft()
        after = list(world.after(moment))
        if not after and moment[0] != world.end:
            return True
        for each in after:
            if each not in seen:
                seen.add(each)
                queue.append(each)
        if len(seen) > most:
            raise TooMany
    return False


class World:
    def __init__(self, program, discipline):
        self.discipline = discipline
        self.cards = {card.name: (card.cube, card.vector) for card in program.cards}
        self.streams = [(stream.card, stream.ops) for stream in program.streams]
        self.end = tuple(len(ops) for _, ops in self.streams)
        zeros = (0,) * len(self.streams)
        self.start = (zeros, zeros, ())  # finished and blocks held by stream; D1: (card, stream that keeps its cores)
        self.recorded = {
            event: (number, place)
            for number, (_, ops) in enumerate(self.streams)
            for place, op in enumerate(ops)
            for event in op.records
        }
        self.size = {group.name: len(group.cards) for group in program.communicators}

    def head(self, number, done):
        ops = self.streams[number][1]
        if done[number] == len(ops):
            return None
        op = ops[done[number]]
        passed = all(done[self.recorded[event][0]] > self.recorded[event][1] for event in op.waits)
        return op if passed else None

    def wanted(self, op):
        """(most blocks it can hold, blocks with which it can end, cores of a block)"""
        blocks = gcd(op.cube, op.vector)
        block = (op.cube // blocks, op.vector // blocks) if blocks else (0, 0)
        gang = op.sync_all or op.collective is not None
        if self.discipline is Discipline.D0B:
            return blocks, blocks if gang else min(1, blocks), block
        needed = blocks if gang else min(1, blocks)
        return needed, needed, block

    def after(self, moment):
        done, held, _ = moment
        heads = {n: op for n in range(len(self.streams)) if (op := self.head(n, done)) is not None}
        idle = dict(self.cards)
        for number, op in heads.items():
            block, card = self.wanted(op)[2], self.streams[number][0]
            idle[card] = tuple(idle[card][k] - held[number] * block[k] for k in (0, 1))
        for number, op in heads.items():
            yield from self.taking(moment, number, op, idle[self.streams[number][0]])
        yield from self.ending(moment, heads)

    def taking(self, moment, number, op, idle):
        done, held, kept = moment
        most, _, block = self.wanted(op)
        card = self.streams[number][0]
        room = min((idle[k] // block[k] for k in (0, 1) if block[k]), default=0)
        has = held[number]

        def now(blocks, keeping=kept):
            return done, (*held[:number], blocks, *held[number + 1 :]), keeping

        if self.discipline is Discipline.D0:
            if has < most and room:
                yield now(has + 1)
        elif self.discipline is Discipline.D0B:
            if has < most and room:
                yield now(min(most, has + room))
            if not (op.sync_all or op.collective) and has > 1:
                yield now(has - 1)
        elif has < most:
            fits = all(idle[k] >= most * block[k] for k in (0, 1))
            keeper = dict(kept).get(card) if self.discipline is Discipline.D1 else None
            if keeper not in (None, number):
                return
            if fits:
                yield now(most, tuple(each for each in kept if each[0] != card))
            elif keeper is None and self.discipline is Discipline.D1:
                yield now(has, tuple(sorted((*kept, (card, number)))))

    def ending(self, moment, heads):
        done, held, kept = moment
        together = {}
        for number, op in heads.items():
            if held[number] >= self.wanted(op)[1]:
                together.setdefault(op.collective or number, []).append(number)
        for who, numbers in together.items():
            if isinstance(who, int) or len(numbers) == self.size[who.communicator]:
                yield (
                    tuple(count + (n in numbers) for n, count in enumerate(done)),
                    tuple(0 if n in numbers else count for n, count in enumerate(held)),
                    kept,
                )
