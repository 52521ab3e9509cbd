"""The ledger of resources (`scheduling.ledger`): no card is granted twice, all comes back, no request starves."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from toprope.functions.scheduling.cards import STREAMS, Share
from toprope.functions.scheduling.ledger import Card, Ledger, Node
from toprope.functions.scheduling.nodes import UNMET_AFFINITY
from toprope.functions.scheduling.requests import CardRequest, Request, matches, parse

B3 = tuple(Card(number, "NPU", "910B3", 64000) for number in range(2))
B4 = tuple(Card(number, "NPU", "910B4", 32000) for number in range(4))
GPUS = tuple(Card(number, "GPU", "A100", 40000) for number in range(2))
NODES = {
    "a": Node("a", 4000, 4000, B4, {"ssd": 3}),
    "b": Node("b", 2000, 4000, (*B3[:1], Card(1, "NPU", "910B3", 64000, healthy=False), *GPUS), {"ssd": 0.5}),
    "c": Node("c", 1000, 1000),
}


def pool(count: int = 2, cpu: int = 10000, **more: object) -> Ledger:
    cards = tuple(Card(number, "NPU", "910B4", 32768) for number in range(count))
    return Ledger([Node("n", cpu, 10000, cards, **more)])  # type: ignore[arg-type]


def asked(count: float = 1, cpu: int = 500, model: str = ".+") -> Request:
    return parse({f"NPU/{model}/count": count}, cpu)


def granted(ledger: Ledger, request: Request) -> tuple[int, ...] | None:
    number = ledger.ask(request)
    found = [grant for grant in ledger.serve() if grant.number == number]
    return found[0].cards.get("NPU", ()) if found else None


def test_the_lowest_free_cards_are_given_and_given_back():
    ledger = pool(4)
    numbers = [ledger.ask(asked(count)) for count in (1, 2)]
    assert [grant.cards["NPU"] for grant in ledger.serve()] == [(0,), (1, 2)]
    ledger.release(numbers[0])
    ledger.release(numbers[0])  # a second time does nothing
    assert granted(ledger, asked(2)) == (0, 3)
    assert granted(ledger, asked(1)) is None


def test_shares_pack_on_one_card_and_bar_it_from_whole_requests():
    ledger = pool(2)
    assert [granted(ledger, asked(share)) for share in (0.5, 0.5, 0.6)] == [(0,), (0,), (1,)]
    assert granted(ledger, asked(1)) is None
    assert ledger.shortage(asked(1)).reasons == {"card count: Not Enough": 1}
    assert ledger.shortage(asked(1)).ever


def test_tenths_fill_a_card_exactly():
    ledger = pool(1)
    assert [granted(ledger, asked(0.1)) for _ in range(11)] == [(0,)] * 10 + [None]


def test_memory_goes_to_the_card_with_the_least_latency_and_then_the_least_free_memory():
    ledger = pool(3)

    def share(hbm: int, latency: int, stream: int = 1) -> Request:
        return parse({"NPU/.+/HBM": hbm, "NPU/.+/latency": latency, "NPU/.+/stream": stream})

    assert [granted(ledger, share(1000, 5)) for _ in range(4)] == [(0,), (1,), (2,), (0,)]
    assert granted(ledger, share(1000, 1, STREAMS)) is None
    assert ledger.shortage(share(40000, 1)).reasons == {"HBM: Not Enough": 1}
    assert not ledger.shortage(share(40000, 1)).ever


def test_a_node_whose_cards_have_no_known_memory_shares_none():
    ledger = Ledger([Node("n", 9000, 9000, (Card(0, "NPU", "910B4"),))])
    assert ledger.shortage(asked(0.5)).reasons == {"specified card quantity 0.5 must be a whole number": 1}
    request = parse({"NPU/.+/HBM": 5, "NPU/.+/latency": 1, "NPU/.+/stream": 1})
    assert ledger.shortage(request).reasons == {"HBM: Not Found": 1}
    assert granted(ledger, asked(1)) == (0,)


@pytest.mark.parametrize(("request_", "reason"), [
    (asked(1, model="910"), "Card Type Not Found (there are NPU/910B4)"),
    (parse({"NPU/910/HBM": 1, "NPU/910/latency": 1, "NPU/910/stream": 1}),
     "Card Type: Not Found (there are NPU/910B4)"),
    (parse({"GPU/.+/count": 1}), "Card Type Not Found (there are NPU/910B4)"),
    (asked(3), "card count: Not Enough"),
    (parse({"NPU": 1}), "NPU: Not Found"),
    (parse({"ssd": 7}), "ssd: Not Enough"),
    (parse({}, 16000), "CPU: Not Enough"),
    (parse({}, 500, 200000), "Memory: Not Enough"),
    (parse({"NPU/x/count": 1, "ssd": 7}), "ssd: Not Enough, Card Type Not Found (there are NPU/910B4)"),
])  # fmt: skip
def test_what_is_short_is_said_in_the_vendors_words(request_, reason):
    ledger = pool(2, scalars={"ssd": 5})
    shortage = ledger.shortage(request_)
    assert shortage.reasons == {reason: 1}
    assert shortage.text == (
        "no available resource that meets the request requirements, The reasons are as follows:\n"
        f"\t1 unit with [{reason}]."
    )


@pytest.mark.parametrize(("request_", "advice"), [
    (parse({"NPU": 1}), 'do: {"NPU/.+/count": 1}; "NPU" alone is a named resource, which no node has'),
    (parse({"gpu": 2}), 'do: {"GPU/.+/count": 2}; "gpu" alone is a named resource, which no node has'),
    (parse({"sdd": 1}), 'do: "ssd" instead of "sdd", which no node has'),
    (parse({"tape": 1}),
     'do: ask for ssd or none of the named resources, or offer "tape" with Config.custom_resources'),
    (asked(3), "NPU/.+/count: 3 asked for, no node has more than 2. do: ask for 2 at most"),
    (asked(1, model="910"), "do: NPU/910B4/count, or NPU/.+/count for any model"),
    (parse({"ssd": 7}), "ssd: 7 asked for, no node has more than 5. do: ask for 5 at most"),
    (parse({}, 16000), "CPU: 16000 asked for, no node has more than 10000. do: ask for 10000 at most"),
    (parse({"NPU/.+/HBM": 10**6, "NPU/.+/latency": 1, "NPU/.+/stream": 1}),
     f"NPU/.+/HBM: {10**6:g} asked for, no node has more than 32768. do: ask for 32768 at most"),
])  # fmt: skip
def test_what_can_never_be_met_is_said_with_numbers_and_what_to_do(request_, advice):
    """A key as Ray has it was only "Not Found", and too many cards "Not Enough", without what there is."""
    shortage = pool(2, scalars={"ssd": 5}).shortage(request_)
    assert not shortage.ever
    assert shortage.explained == f"{shortage.text}\n{advice}"


def test_where_there_is_room_no_shortage_is_told():
    """On Ray a process that began slowly was told as a shortage, with no reason behind "The reasons are"."""
    shortage = pool(2).shortage(asked(1))
    assert (shortage.ever, shortage.reasons) == (True, {})
    assert shortage.explained.startswith("There is room for it now: its process has not begun in time, or requests")
    assert "do: a longer schedule_timeout_ms" in shortage.explained
    assert "[" not in shortage.explained  # by which Ray's backend knows a shortage


def test_what_may_be_met_later_has_no_advice():
    ledger = pool(2)
    assert granted(ledger, asked(2)) == (0, 1)
    shortage = ledger.shortage(asked(1))
    assert (shortage.ever, shortage.explained) == (True, shortage.text)


def test_without_a_node_or_without_a_card_that_is_said():
    assert Ledger().shortage(asked()).reasons == {"No Resource In Cluster": 1}
    assert pool(0).shortage(asked()).reasons == {"Card Type Not Found (no card was found on the node)": 1}
    both = Ledger([Node("x", 900, 900), Node("y", 900, 900), *pool(1).nodes])
    assert list(both.shortage(asked(2)).reasons.values()) == [2, 1]


def test_unhealthy_cards_get_no_work_and_healed_ones_do():
    cards = (Card(0, "NPU", "910B4", 9, healthy=False), Card(1, "NPU", "910B4", 9))
    ledger = Ledger([Node("n", 9000, 9000, cards)])
    assert granted(ledger, asked(1)) == (1,)
    assert granted(ledger, asked(1)) is None
    ledger.add(Node("n", 9000, 9000, (Card(0, "NPU", "910B4", 9), cards[1])))
    assert [grant.cards["NPU"] for grant in ledger.serve()] == [(0,)]


def test_npus_and_gpus_of_one_request_are_chosen_apart():
    ledger = Ledger([NODES["b"]])
    ledger.ask(parse({"GPU/.+/count": 1}))
    ledger.ask(parse({"GPU/.+/count": 1, "NPU/.+/count": 1}))
    assert [dict(grant.cards) for grant in ledger.serve()] == [{"GPU": (0,)}, {"GPU": (1,), "NPU": (0,)}]


def test_all_cards_of_a_request_are_of_one_node():
    ledger = Ledger([Node("x", 9000, 9000, B4[:1]), Node("y", 9000, 9000, B4[:1])])
    assert not ledger.shortage(asked(2)).ever
    assert granted(ledger, asked(2)) is None
    assert [granted(ledger, asked(1)) for _ in range(3)] == [(0,), (0,), None]


def test_a_request_for_two_is_not_starved_by_a_stream_of_requests_for_one():
    ledger = pool(2)
    first, second = (ledger.ask(asked(1)) for _ in range(2))
    ledger.serve()
    big, small = ledger.ask(asked(2)), ledger.ask(asked(1))
    ledger.release(first)
    assert ledger.serve() == ()  # one is free, and kept for who came first
    ledger.release(second)
    assert [grant.number for grant in ledger.serve()] == [big]
    ledger.release(big)
    assert [grant.number for grant in ledger.serve()] == [small]


def test_a_request_is_not_starved_by_those_that_take_in_turn_what_it_lacks():
    """Once one took the cores while cards were short, and the next a card while cores were, for ever."""
    ledger = Ledger([Node("n", 1000, 10000, B4[:1])])
    holder = ledger.ask(asked(1, cpu=0))
    ledger.serve()
    wants_both = ledger.ask(asked(1, cpu=1000))
    assert granted(ledger, parse({}, 1000)) is None  # it would lack cores once the card is there
    ledger.release(holder)
    assert [grant.number for grant in ledger.serve()] == [wants_both]


def test_a_request_that_waits_for_a_card_bars_nobody_who_needs_none():
    ledger = pool(1, cpu=2000)
    ledger.ask(asked(1))
    ledger.serve()
    ledger.ask(asked(1))
    assert granted(ledger, parse({}, 500)) == ()
    assert granted(ledger, parse({}, 500)) == ()
    assert granted(ledger, parse({}, 500)) is None  # these are kept for the one that waits


def test_a_request_that_can_never_be_met_bars_nobody():
    ledger = pool(2)
    ledger.ask(asked(3))
    ledger.ask(asked(1, model="310P3"))
    assert granted(ledger, asked(2)) == (0, 1)


def test_a_thousand_equal_requests_are_served_quickly():
    ledger = pool(1)
    request = asked(1)
    for _ in range(1000):
        ledger.ask(request)
        ledger.serve()
    assert len(ledger.grants) == 1


def test_who_waits_lends_its_cores_and_gets_them_back():
    ledger = Ledger([Node("n", 500, 9000)])
    first = ledger.ask(parse({}, 500))
    ledger.serve()
    second = ledger.ask(parse({}, 500))
    assert ledger.serve() == ()
    ledger.pause(first)
    ledger.pause(first)
    assert [grant.number for grant in ledger.serve()] == [second]
    ledger.resume(first)
    assert ledger.free("n").cpu == 0
    ledger.resume(first)
    ledger.release(second)
    ledger.release(first)
    assert ledger.free("n").cpu == 500
    third = ledger.ask(parse({}, 500))
    ledger.serve()
    ledger.pause(third)
    ledger.release(third)  # while it lends them
    assert ledger.free("n").cpu == 500


def amounts(node: Node) -> tuple[int, int, dict[str, float]]:
    return node.cpu, node.memory, dict(node.scalars)


def plain(cpu: int = 0, memory: int = 0, **scalars: float) -> Request:
    """Without the ranges that users are held to."""
    return Request(cpu, memory, (), scalars)


def share(hbm: int, latency: int = 1, stream: int = 1) -> Request:
    return parse({"NPU/.+/HBM": hbm, "NPU/.+/latency": latency, "NPU/.+/stream": stream}, 0, 0)


def test_a_node_that_has_changed_keeps_its_grants():
    """The free part is what the node has now, less what was granted."""
    ledger = Ledger([Node("n", 1000, 2000, B4[:1], {"ssd": 4, "tape": 1})])
    number = ledger.ask(parse({"ssd": 3, "NPU/.+/count": 1}, 400, 500))
    ledger.serve()
    ledger.add(Node("n", 1500, 2600, B4[:2], {"ssd": 9, "disc": 2}))
    free = ledger.free("n")
    assert amounts(free) == (1100, 2100, {"ssd": 6, "tape": 0, "disc": 2})
    assert [card.id for card in free.cards] == [1]
    assert granted(ledger, plain(disc=2)) == ()
    ledger.add(Node("n", 900, 700, B4[:2], {"ssd": 5, "disc": 2}))
    assert amounts(ledger.free("n")) == (500, 200, {"ssd": 2, "tape": 0, "disc": 0})
    ledger.release(number)
    assert amounts(ledger.free("n")) == (900, 700, {"ssd": 5, "tape": 0, "disc": 0})


def test_the_grants_of_a_node_that_leaves_are_void_and_no_others():
    ledger = Ledger([Node("x", 1000, 1000), Node("y", 1000, 1000)])
    numbers = [ledger.ask(plain(1000)) for _ in range(2)]
    ledger.serve()
    ledger.pause(numbers[0])
    assert [grant.number for grant in ledger.remove("x")] == [numbers[0]]
    assert ledger.remove("x") == ()
    assert [grant.number for grant in ledger.grants] == [numbers[1]]
    ledger.add(Node("x", 1000, 1000))
    ledger.resume(numbers[0])  # these do nothing
    ledger.pause(numbers[0])
    ledger.release(numbers[0])
    assert ledger.free("x").cpu == 1000
    assert [node.id for node in ledger.nodes] == ["y", "x"]


def test_what_waits_is_known_until_it_is_granted_or_cancelled():
    ledger = pool(1)
    assert not ledger.is_waited_for
    numbers = [ledger.ask(asked(1)) for _ in range(2)]
    assert len({*numbers}) == 2
    ledger.serve()
    assert ledger.is_waited_for
    ledger.withdraw(99)  # of nobody
    assert ledger.is_waited_for
    ledger.withdraw(numbers[1])
    assert not ledger.is_waited_for


def test_the_parts_of_cards_that_are_held_are_reported():
    ledger = pool(3)
    ledger.ask(asked(1))
    first, second = ledger.ask(share(1000, 7, 20)), ledger.ask(share(500, 2, 30))
    ledger.serve()
    assert ledger.shares("n") == {
        ("NPU", 0): Share(wholes=1), ("NPU", 1): Share(0, 1000, 20, 7, 1), ("NPU", 2): Share(0, 500, 30, 2, 1)
    }  # fmt: skip
    assert ledger.shares("elsewhere") == {}
    ledger.release(first)
    ledger.release(second)
    assert ledger.shares("n") == {("NPU", 0): Share(wholes=1)}


def test_what_other_programs_hold_is_not_granted_and_not_given_back():
    ledger = pool(2)
    ledger.held_elsewhere("elsewhere", {("NPU", 0): Share(wholes=1)})  # of a node that is not there
    ledger.held_elsewhere("n", {("NPU", 0): Share(wholes=1)})
    number = ledger.ask(asked(1))
    assert [grant.cards["NPU"] for grant in ledger.serve()] == [(1,)]
    assert ledger.shares("n") == {("NPU", 1): Share(wholes=1)}
    assert ledger.free("n").cards == ()
    ledger.release(number)
    assert [card.id for card in ledger.free("n").cards] == [1]
    ledger.held_elsewhere("n", {})
    assert granted(ledger, asked(2)) == (0, 1)


def test_a_share_of_memory_comes_back_with_its_streams_and_its_latency():
    ledger = pool(2)
    first, second, third = (
        ledger.ask(share(30000, 5, STREAMS - 10)),
        ledger.ask(share(1000, 4, 20)),
        ledger.ask(share(1)),
    )
    assert [grant.cards["NPU"] for grant in ledger.serve()] == [(0,), (1,), (1,)]  # by streams, by latency
    assert [grant.hbm["NPU"] for grant in ledger.grants] == [30000, 1000, 1]
    assert granted(ledger, share(2769, 1, STREAMS - 20)) is None  # each card lacks one of the two
    for number in (first, second, third):
        ledger.release(number)
    assert len(ledger.serve()) == 1
    assert [granted(ledger, share(32768, 1, STREAMS)) for _ in range(2)] == [(1,), None]


def test_who_waits_for_a_share_has_it_to_the_last_megabyte():
    ledger = pool(1)
    assert granted(ledger, share(32000)) == (0,)
    assert granted(ledger, share(769)) is None
    ledger = pool(1)
    assert [granted(ledger, share(size)) for size in (32000, 768)] == [(0,), (0,)]


def test_what_is_asked_for_to_the_last_bit_is_granted():
    ledger = Ledger([Node("n", 1000, 2000, scalars={"ssd": 0.3})])
    number = ledger.ask(plain(1000, 2000, ssd=0.3))
    assert len(ledger.serve()) == 1
    assert amounts(ledger.free("n")) == (0, 0, {"ssd": 0})
    assert ledger.shortage(plain(1, 1, ssd=0.1)).reasons == {"ssd: Not Enough, CPU: Not Enough, Memory: Not Enough": 1}
    assert ledger.shortage(plain()).reasons == {}
    ledger.release(number)
    assert amounts(ledger.free("n")) == (1000, 2000, {"ssd": 0.3})


def test_a_request_has_a_node_of_its_affinity_and_of_those_the_best():
    ledger = Ledger([Node(name, 1000, 1000, labels={"zone": zone}) for name, zone in zip("abc", "122", strict=True)])

    def on(node: Node) -> bool:
        return node.labels["zone"] == "2"

    numbers = [ledger.ask(plain(1000), on, lambda node: (-ord(node.id),)) for _ in range(3)]
    assert [(grant.number, grant.node) for grant in ledger.serve()] == [(numbers[0], "c"), (numbers[1], "b")]
    shortage = ledger.shortage(plain(1000), on)
    assert shortage.reasons == {UNMET_AFFINITY: 1, "CPU: Not Enough": 2}
    assert shortage.ever
    assert not shortage.is_affinity
    assert ledger.shortage(plain(1000), lambda node: False).is_affinity
    assert not ledger.shortage(plain(1000), lambda node: False).ever


def test_one_request_with_two_affinities_is_tried_with_both():
    """One that has just not been met is not tried again, which the same request elsewhere is not."""
    ledger = Ledger([Node("x", 500, 1000), Node("y", 500, 1000)])
    request = plain(500)
    ledger.ask(request, lambda node: node.id == "z")
    assert [grant.node for grant in ledger.serve()] == []
    second = ledger.ask(request, lambda node: node.id == "y")
    third = ledger.ask(request)
    assert [(grant.number, grant.node) for grant in ledger.serve()] == [(second, "y"), (third, "x")]


def test_requests_together_are_granted_all_or_none():
    ledger = Ledger([Node("x", 1000, 2000), Node("y", 1000, 2000)])
    numbers = ledger.ask_together([plain(600)] * 3)
    assert not ledger.could_ever(numbers[0])
    assert ledger.serve() == ()
    assert [amounts(ledger.free(name))[0] for name in "xy"] == [1000, 1000]
    ledger.withdraw(numbers[1])  # one of them is all of them
    assert not ledger.is_waited_for
    numbers = ledger.ask_together([plain(600)] * 2)
    assert ledger.could_ever(numbers[0])
    assert [(grant.number, grant.node) for grant in ledger.serve()] == [(numbers[0], "x"), (numbers[1], "y")]


def test_requests_together_lie_as_their_strategy_says():
    def nodes(strategy: str, count: int = 2) -> list[str]:
        ledger = Ledger([Node("x", 1000, 2000), Node("y", 1000, 2000)])
        ledger.ask_together([plain(500)] * count, strategy)
        return [grant.node for grant in ledger.serve()]

    assert nodes("PACK") == nodes("STRICT_PACK") == nodes("") == ["x", "x"]
    assert nodes("SPREAD") == nodes("STRICT_SPREAD") == ["x", "y"]
    assert nodes("STRICT_PACK", 3) == nodes("STRICT_SPREAD", 3) == []
    assert nodes("PACK", 3) == ["x", "x", "y"]


def test_consecutive_requests_that_share_a_node_do():
    """Of four in pairs, each pair is on one node, where PACK alone would put three on the first."""
    ledger = Ledger([Node("x", 1500, 2000), Node("y", 1500, 2000)])
    numbers = ledger.ask_together([plain(500)] * 4, "PACK", each=2)
    grants = ledger.serve()
    assert [grant.number for grant in grants] == [*numbers]
    assert [grant.node for grant in grants] == ["x", "x", "y", "y"]
    ledger.release(numbers[0])
    third = ledger.ask_together([plain(1000), plain(500)], each=2)
    assert ledger.serve() == ()  # the first would fit on one, and the second next to it nowhere
    assert [ledger.free(name).cpu for name in "xy"] == [1000, 500]
    ledger.release(numbers[1])
    assert [grant.node for grant in ledger.serve()] == ["x", "x"]
    assert {grant.number for grant in ledger.grants} == {*numbers[2:], *third}


def test_requests_together_have_an_affinity_each():
    ledger = Ledger([Node("x", 1000, 2000), Node("y", 1000, 2000)])
    ledger.ask_together([plain(100)] * 2, on=[lambda node: node.id == "y", None])
    assert [grant.node for grant in ledger.serve()] == ["y", "y"]
    ledger.ask_together([plain(100)] * 2, on=[lambda node: node.id == "y", lambda node: node.id == "x"])
    assert [grant.node for grant in ledger.serve()] == ["y", "x"]


def test_requests_together_keep_what_they_can_use_for_themselves():
    """Two on one node: what the second would lack too is not given to those that come later."""
    ledger = Ledger([Node("n", 1000, 9000)])
    first = ledger.ask(plain(400))
    ledger.serve()
    both = ledger.ask_together([plain(500)] * 2, "STRICT_PACK")
    assert granted(ledger, plain(100)) is None
    assert granted(ledger, plain(0)) == ()  # it takes nothing that they lack
    ledger.release(first)
    assert [grant.number for grant in ledger.serve()] == [*both]
    assert ledger.free("n").cpu == 0


def test_what_is_reserved_for_ever_is_never_there():
    ledger = pool(2, cpu=1000, scalars={"ssd": 3})
    ledger.hold("n", parse({"NPU/.+/count": 1, "ssd": 1}, 200, 300))
    assert amounts(ledger.free("n")) == (800, 9700, {"ssd": 2})
    assert ledger.grants == ()
    for request in (asked(2), plain(801), plain(ssd=3), plain(1, 9701)):
        assert not ledger.shortage(request).ever
        number = ledger.ask(request)
        assert not ledger.could_ever(number)
        ledger.withdraw(number)
    number = ledger.ask(parse({"NPU/.+/count": 1, "ssd": 2}, 800, 9700))
    assert ledger.could_ever(number)
    assert len(ledger.serve()) == 1


def test_what_others_hold_now_may_be_met_some_day():
    ledger = pool(1)
    assert granted(ledger, asked(1)) == (0,)
    number = ledger.ask(asked(1))
    assert ledger.could_ever(number)
    assert amounts(ledger.free("n"))[0] == 9500  # to ask takes nothing
    assert ledger.shares("n") == {("NPU", 0): Share(wholes=1)}


REQUESTS = st.one_of(
    st.builds(asked, st.sampled_from([1, 1, 2, 3, 0.5, 0.3, 0.7]), st.sampled_from([0, 500, 1500]),
              st.sampled_from([".+", "910B4", "910B3"])),
    st.builds(lambda hbm, stream, cpu: parse(
        {"NPU/.+/HBM": hbm, "NPU/.+/latency": 3, "NPU/.+/stream": stream}, cpu),
        st.sampled_from([1000, 20000, 50000]), st.sampled_from([1, 60]), st.sampled_from([0, 1000])),
    st.builds(lambda count, npus: parse({"GPU/.+/count": count} | ({"NPU/.+/count": 1} if npus else {})),
              st.sampled_from([1, 2, 0.5]), st.booleans()),
    st.builds(lambda cpu, memory, ssd: parse({"ssd": ssd} if ssd else {}, cpu, memory),
              st.sampled_from([300, 1000, 2000]), st.sampled_from([128, 2000]), st.sampled_from([0, 0.1, 0.5, 2])),
)  # fmt: skip


class Office(RuleBasedStateMachine):
    """Requests come, are granted, and end; nodes join and leave."""

    numbers = Bundle("numbers")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.requests: dict[int, Request] = {}
        self.waiting: set[int] = set()

    def served(self) -> None:
        for grant in self.ledger.serve():
            assert grant.number in self.waiting
            assert grant.request is self.requests[grant.number]
            self.waiting.discard(grant.number)

    @rule(name=st.sampled_from(sorted(NODES)))
    def join(self, name):
        self.ledger.add(NODES[name])
        self.served()

    @rule(name=st.sampled_from(sorted(NODES)))
    def leave(self, name):
        gone = self.ledger.remove(name)
        assert all(grant.node == name for grant in gone)
        assert not any(grant.node == name for grant in self.ledger.grants)
        self.served()

    @rule(target=numbers, request=REQUESTS)
    def come(self, request):
        number = self.ledger.ask(request)
        self.requests[number] = request
        self.waiting.add(number)
        self.served()
        return number

    @rule(number=consumes(numbers))
    def end(self, number):
        if number in self.waiting:
            self.waiting.discard(number)
            self.ledger.withdraw(number)
        self.ledger.release(number)
        self.served()

    @precondition(lambda self: self.waiting)
    @rule()
    def those_before_the_first_end(self):
        """The first that could be met is met once those before it have ended: nobody behind it is in its way."""
        able = [number for number in sorted(self.waiting) if self.ledger.shortage(self.requests[number]).ever]
        if able:
            for grant in self.ledger.grants:
                if grant.number < able[0]:
                    self.ledger.release(grant.number)
            self.served()
            assert able[0] not in self.waiting

    @invariant()
    def nothing_is_held_twice(self):
        for node in self.ledger.nodes:
            grants = [grant for grant in self.ledger.grants if grant.node == node.id]
            assert sum(grant.request.cpu for grant in grants) <= node.cpu
            assert sum(grant.request.memory for grant in grants) <= node.memory
            for name, amount in node.scalars.items():
                assert round(sum(grant.request.scalars.get(name, 0) for grant in grants), 6) <= amount
            for card in node.cards:
                self.check_card(card, [
                    (grant, each) for grant in grants for each in grant.request.cards
                    if each.vendor == card.vendor and card.id in grant.cards[card.vendor]
                ])  # fmt: skip

    def check_card(self, card: Card, holders: list) -> None:
        whole = [grant for grant, each in holders if each.whole_cards]
        assert len(whole) + bool(len(holders) - len(whole)) <= 1
        assert sum(grant.hbm[card.vendor] for grant, _ in holders) <= card.hbm
        assert sum(each.stream for _, each in holders) <= STREAMS
        assert card.healthy or not holders
        assert all(matches(each, card.vendor, card.model) for _, each in holders)

    @invariant()
    def what_is_granted_is_what_was_asked_for(self):
        for grant in self.ledger.grants:
            for each in grant.request.cards:
                ids = grant.cards[each.vendor]
                assert list(ids) == sorted(set(ids))
                assert len(ids) == (each.whole_cards or 1)

    def teardown(self):
        for number in self.requests:
            self.ledger.withdraw(number)
            self.ledger.release(number)
        assert self.ledger.grants == ()
        for node in self.ledger.nodes:
            free = self.ledger.free(node.id)
            healthy = tuple(card for card in node.cards if card.healthy)
            assert (free.cpu, free.memory, free.cards) == (node.cpu, node.memory, healthy)
            assert free.scalars == node.scalars


TestOffice = pytest.mark.slow(Office.TestCase)
TestOffice.settings = settings(stateful_step_count=40, suppress_health_check=list(HealthCheck))


def test_a_request_keeps_its_kind():
    assert CardRequest("NPU", ".+", hbm=1, latency=1, stream=1).kind == "HBM"
