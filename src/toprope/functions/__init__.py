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

from toprope.functions import fcc
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
from toprope.functions.fcc import (
    DeviceInfo,
    FunctionGroupContext,
    FunctionGroupHandler,
    SchedulingAffinityType,
    ServerInfo,
)
from toprope.functions.instance_groups import Group
from toprope.functions.kv import (
    CacheType,
    ConsistencyType,
    CreateParam,
    ExistenceOpt,
    GetParam,
    GetParams,
    MSetParam,
    SetParam,
    WriteMode,
    kv_get_with_param,
    kv_m_write_tx,
    kv_write_with_param,
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
from toprope.functions.resource_groups import (
    ResourceGroup,
    create_resource_group,
    remove_resource_group,
    resource_group_table,
)
from toprope.functions.this_node import get_namespace, get_node_id, get_node_ip_address
from toprope.functions.unavailable import names as _unavailable

StatelessFunction, StatefulInstance, StatefulInstanceCreator = FunctionProxy, InstanceProxy, InstanceCreator

__all__ = [
    "Affinity",
    "AffinityKind",
    "AffinityScope",
    "AffinityType",
    "CacheType",
    "CancelError",
    "ClientInfo",
    "Config",
    "ConsistencyType",
    "CreateParam",
    "DeviceInfo",
    "ExistenceOpt",
    "FunctionGroupContext",
    "FunctionGroupHandler",
    "FunctionGroupOptions",
    "FunctionProxy",
    "GetParam",
    "GetParams",
    "GetTimeoutError",
    "Group",
    "GroupOptions",
    "InstanceCreator",
    "InstanceProxy",
    "InvokeOptions",
    "LabelOperator",
    "MSetParam",
    "MethodProxy",
    "ObjectRef",
    "OperatorType",
    "ResourceGroup",
    "ResourceGroupOptions",
    "SchedulingAffinityType",
    "ServerInfo",
    "SetParam",
    "StatefulInstance",
    "StatefulInstanceCreator",
    "StatelessFunction",
    "UserTLSConfig",
    "WriteMode",
    "YRError",
    "YRInvokeError",
    "YRRuntimeError",
    "YRTimeoutError",
    "YRTypeError",
    "YRValueError",
    "YRequestError",
    "cancel",
    "create_resource_group",
    "exit",
    "fcc",
    "finalize",
    "get",
    "get_instance",
    "get_namespace",
    "get_node_id",
    "get_node_ip_address",
    "init",
    "instance",
    "invoke",
    "is_initialized",
    "kill_instance",
    "kv_del",
    "kv_get",
    "kv_get_with_param",
    "kv_m_write_tx",
    "kv_read",
    "kv_set",
    "kv_write",
    "kv_write_with_param",
    "list_named_instances",
    "load_state",
    "method",
    "put",
    "remove_resource_group",
    "resource_group_table",
    "resources",
    "save_state",
    "wait",
]

globals().update(_unavailable())
__all__ += _unavailable()
