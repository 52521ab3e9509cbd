"""Inputs that are split over the instances of a stage, and put together again, by BalanceConfig (`udf.routing`)."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import flow_balance as stages
from flow_balance import COLS, ROWS, func
from functions_session import session
from toprope import flow as df
from toprope.flow.stage.spec import Head
from toprope.flow.udf import flow_func as ff
from toprope.flow.udf.run_context import MetaRunContext

pytestmark = [pytest.mark.native, pytest.mark.process]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    found, before = tmp_path_factory.mktemp("work"), Path.cwd()
    os.chdir(found)
    try:
        with session("910B4x1"):
            df.init({})
            yield found
            df.finalize()
    finally:
        os.chdir(before)


def deployed(folder, counts):
    """Options by which nodes have so many instances."""
    rows = [
        {"flow_node_list": [name], "logic_device_list": ",".join(["0:0:0"] * count)} for name, count in counts.items()
    ]
    path = folder / "deploy.json"
    path.write_text(json.dumps({"batch_deploy_info": rows}))
    return {"ge.experiment.data_flow_deploy_info_path": str(path)}


def matrix(number):
    return np.arange(ROWS * COLS).reshape(ROWS, COLS) + number


@pytest.mark.slow
def test_parts_go_to_several_instances_and_rows_come_together_in_one(folder):
    split, work, merge = (func(cls) for cls in (stages.Split, stages.Work, stages.Merge))
    split.set_balance_scatter()
    work.set_balance_gather()
    data = df.FlowData()
    out = merge(work(split(data)))
    options = deployed(folder, {split.name: 1, work.name: 2, merge.name: 2})
    with df.FlowGraph([out], options) as graph:
        for number in range(6):
            assert graph.feed_data({data: matrix(number)}) == 0
        found = [graph.fetch_data(timeout=30_000) for _ in range(6 * ROWS)]
    assert [code for _, _, code in found] == [0] * 6 * ROWS
    rows, instances, mergers = {}, {}, {}
    for (tensor,), info, _ in found:
        row, merger, *cells = tensor.numpy().tolist()
        rows[info.transaction_id, row] = cells[::2]
        instances.setdefault(info.transaction_id, []).extend(cells[1::2])
        mergers.setdefault(info.transaction_id, set()).add(merger)
    assert rows == {
        (number + 1, row): [10 * value for value in matrix(number)[row]] for number in range(6) for row in range(ROWS)
    }
    assert all(sorted(each) == [0, 0, 0, 1, 1, 1] for each in instances.values())  # half of each input in each
    assert all(each == {0, 1} for each in mergers.values())  # and a row in each of the next stage


def test_joins_of_parts_pair_the_same_part_and_one_that_dies_fails_alone(folder):
    split, left, right, join = func(stages.Split), func(stages.Work), func(stages.Columns), stages.both.fnode()
    split.set_balance_scatter()
    left.set_balance_gather()
    right.set_balance_gather()
    data = df.FlowData()
    parts = split(data)
    out = join(left(parts), right(parts))
    options = deployed(folder, {split.name: 1, left.name: 2, right.name: 2, join.name: 1})
    with df.FlowGraph([out], options) as graph:
        for number in range(6):
            assert graph.feed_data({data: matrix(number)}) == 0
        for _ in range(6 * ROWS * COLS):
            result = graph.fetch_result(timeout=30_000)
            (pair,) = result.get()
            assert pair[0][:3].tolist() == pair[1][:3].tolist()
        deadly = np.zeros((ROWS, COLS), int)
        deadly[0, 2] = deadly[0, 1] = 666  # one of them is in the second instances
        assert graph.feed_data({data: deadly}) == 0
        results = [graph.fetch_result(timeout=30_000) for _ in range(ROWS * COLS)]
        assert sum(each.code == 0 for each in results) == ROWS * COLS - 1
        (error,) = [each.error for each in results if each.code]
        assert "SIGKILL" in str(error)
        assert graph.fetch(timeout=100) == ([], 545601)


def test_what_a_node_may_not_use_is_refused(folder):
    """As the reference: a config needs a node that says so, scattering has no affinity, gathering has one."""
    sent = []

    class Call:
        head = Head(3, user_data=b"x", data_size=1)

        def set_output(self, index, message):
            sent.append((index, message.head.transaction_id, message.head.data_label, message.route_label))

    row, free = ff.BalanceConfig(2, 2, ff.AffinityPolicy.ROW_AFFINITY), ff.BalanceConfig(2, 2)
    for each in (row, free):
        each.set_data_pos([(1, 0), (1, 1)])
    values = [np.ones(1), np.ones(1)]
    for balance, config, code in [
        ("", free, 164000), ("scatter", row, 164000), ("gather", free, 164000),
        ("scatter", free, 0), ("gather", row, 0),
    ]:  # fmt: skip
        assert MetaRunContext(Call(), (0,), {}, balance).set_multi_outputs(0, values, config) == code
    assert sent == [(0, 3, 3, 3), (0, 3, 4, 4), (0, 3, 3, 2), (0, 3, 4, 2)]
    assert MetaRunContext(Call(), (0,), {}, "scatter").set_output(0, values[0], free) == 164000  # two positions
    node = func(stages.Split)
    node.set_balance_gather()
    node.set_balance_scatter()
    assert node.balance == "gather"
    data = df.FlowData()
    graph = df.FlowGraph([stages.both.fnode()(node(data), data)])
    assert graph.feed_data({data: 1}) == 4294967295
    assert "must come from nodes with set_balance_scatter" in str(graph.error)
