"""A function that runs models and graphs, importable in its process. Not a test."""

import torch

from toprope import flow as df
from toprope.flow.udf import flow_func as ff


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


@df.pyflow
def plus_one(x):
    return df.Tensor(x.numpy() + 1)


class Scale:
    @ff.init_wrapper()
    def init_flow_func(self, meta_params):
        code, self.factor = meta_params.get_attr_int("factor")
        return code

    @ff.proc_wrapper("i0,o0")
    def scale(self, run_context, messages):
        code, doubled = run_context.run_flow_model("model", messages, 20_000)
        if code:
            return code
        code, found = run_context.run_flow_model("graph", doubled, 20_000)
        if code:
            return code
        return run_context.set_output(0, found[0].get_tensor().numpy() * self.factor)


@df.npu_model
def halved(x):
    return x / 2


class Classify:
    @ff.proc_wrapper("i0,o0")
    def classify(self, run_context, messages):
        code, found = run_context.run_flow_model("model", messages, 20_000)
        return code or run_context.set_output(0, found[1].get_tensor().numpy())
