"""Stages that split an input, work on its parts in several instances, and put them together again. Not a test."""

import os
import signal
import time

import numpy as np

from toprope import flow as df
from toprope.flow.udf import flow_func as ff

ROWS, COLS = 2, 3


class Split:
    """Each element of a matrix by itself, or all at once."""

    @ff.proc_wrapper("i0,o0")
    def split(self, run_context, messages):
        matrix = messages[0].get_tensor().numpy()
        at = [(row, col) for row in range(ROWS) for col in range(COLS)]
        values = [np.array([row, col, matrix[row, col]]) for row, col in at]
        config = ff.BalanceConfig(ROWS, COLS)
        if matrix[0, 0] % 2:
            config.set_data_pos(at)
            return run_context.set_multi_outputs(0, values, config)
        for place, value in zip(at, values, strict=True):
            config.set_data_pos([place])
            code = run_context.set_output(0, value, config)
            if code:
                return code
        return ff.FLOW_FUNC_SUCCESS


class Work:
    """Says in which instance an element was, and sends it on with its row."""

    policy = ff.AffinityPolicy.ROW_AFFINITY

    @ff.init_wrapper()
    def begin(self, params):
        self.instance = params.get_running_instance_id()
        return ff.FLOW_FUNC_SUCCESS

    @ff.proc_wrapper("i0,o0")
    def work(self, run_context, messages):
        row, col, value = messages[0].get_tensor().numpy().tolist()
        if value == 666 and self.instance:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.002 * (value % 3))
        config = ff.BalanceConfig(ROWS, COLS, self.policy)
        config.set_data_pos([(int(row), int(col))])
        return run_context.set_output(0, np.array([row, col, value * 10, self.instance]), config)


class Columns(Work):
    policy = ff.AffinityPolicy.COL_AFFINITY


class Free(Work):
    policy = ff.AffinityPolicy.NO_AFFINITY


class Merge:
    """A row of a matrix, once its elements are there."""

    @ff.init_wrapper()
    def begin(self, params):
        self.instance, self.rows = params.get_running_instance_id(), {}
        return ff.FLOW_FUNC_SUCCESS

    @ff.proc_wrapper("i0,o0")
    def merge(self, run_context, messages):
        row, col, value, instance = messages[0].get_tensor().numpy().tolist()
        kept = self.rows.setdefault((messages[0].transaction_id, row), {})
        kept[col] = (value, instance)
        if len(kept) < COLS:
            return ff.FLOW_FUNC_SUCCESS
        found = [number for col in range(COLS) for number in kept[col]]
        return run_context.set_output(0, np.array([row, self.instance, *found]))


@df.pyflow
def both(left, right):
    return np.stack([left.numpy(), right.numpy()])


def func(cls):
    node = df.FlowNode(1, 1)
    node.add_process_point(df.FuncProcessPoint(py_func=cls))
    return node
