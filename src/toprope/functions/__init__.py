"""Stateful functions with NPU resources, with the names and the meaning of the yr API.

    from toprope import functions as yr

    @yr.instance
    class Counter:
        def __init__(self):
            self.n = 0

        def add(self, k):
            self.n += k
            return self.n

    yr.init()
    counter = Counter.invoke()
    print(yr.get(counter.add.invoke(3)))
    yr.finalize()

Functions and instances run in processes of this machine, or, by `Config(server_address="ray")`, on Ray.
"""

from toprope.functions.api import (
    ClientInfo,
    cancel,
    exit,
    finalize,
    get,
    init,
    is_initialized,
    kv_del,
    kv_get,
    kv_read,
    kv_set,
    kv_write,
    list_named_instances,
    load_state,
    put,
    resources,
    save_state,
    wait,
)
from toprope.functions.exceptions import (
    CancelError,
    GetTimeoutError,
    YRequestError,
    YRError,
    YRInvokeError,
    YRRuntimeError,
    YRTimeoutError,
    YRTypeError,
    YRValueError,
)
from toprope.functions.objects import ObjectRef
from toprope.functions.options import (
    Affinity,
    AffinityKind,
    AffinityScope,
    AffinityType,
    Config,
    FunctionGroupOptions,
    GroupOptions,
    InvokeOptions,
    LabelOperator,
    OperatorType,
    ResourceGroupOptions,
    UserTLSConfig,
)
from toprope.functions.proxies import (
    FunctionProxy,
    InstanceCreator,
    InstanceProxy,
    MethodProxy,
    get_instance,
    instance,
    invoke,
    kill_instance,
    method,
)

__all__ = [
    "Affinity",
    "AffinityKind",
    "AffinityScope",
    "AffinityType",
    "CancelError",
    "ClientInfo",
    "Config",
    "FunctionGroupOptions",
    "FunctionProxy",
    "GetTimeoutError",
    "GroupOptions",
    "InstanceCreator",
    "InstanceProxy",
    "InvokeOptions",
    "LabelOperator",
    "MethodProxy",
    "ObjectRef",
    "OperatorType",
    "ResourceGroupOptions",
    "UserTLSConfig",
    "YRError",
    "YRInvokeError",
    "YRRuntimeError",
    "YRTimeoutError",
    "YRTypeError",
    "YRValueError",
    "YRequestError",
    "cancel",
    "exit",
    "finalize",
    "get",
    "get_instance",
    "init",
    "instance",
    "invoke",
    "is_initialized",
    "kill_instance",
    "kv_del",
    "kv_get",
    "kv_read",
    "kv_set",
    "kv_write",
    "list_named_instances",
    "load_state",
    "method",
    "put",
    "resources",
    "save_state",
    "wait",
]
