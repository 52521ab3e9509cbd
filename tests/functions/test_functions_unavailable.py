"""Every name of the yr API is importable from `yr`; those that toprope lacks say so when they are used.

The names are those of openYuanrong's Python API, master of 2026-08.
"""

import json
import pickle
import subprocess
import sys
import types

import pytest

from toprope import functions
from toprope.cli.launch.child_process import SITE
from toprope.functions.api.unavailable import TABLE, names

pytestmark = pytest.mark.process

# What `import yr` of openYuanrong offers (its Python API, master of 2026-08).
EXPORTS = """
init finalize is_initialized exit put get wait cancel invoke instance method
get_instance list_named_instances kill_instance save_state load_state restore_from_checkpoint delete_checkpoint
list_checkpoints SnapstartInfo SnapstartResponse
resources create_resource_group remove_resource_group ResourceGroup get_node_ip_address
kv_write kv_read kv_set kv_get kv_del kv_write_with_param kv_get_with_param kv_m_write_tx
ExistenceOpt WriteMode CacheType ConsistencyType SetParam MSetParam CreateParam GetParam GetParams
create_stream_producer create_stream_consumer delete_stream query_global_producers_num query_global_consumers_num
ProducerConfig SubscriptionConfig Element
cpp_function cpp_instance_class java_function java_instance_class go_function go_instance_class
Group GroupOptions FunctionGroupOptions SchedulingAffinityType FunctionGroupContext ServerInfo DeviceInfo
Config UserTLSConfig InvokeOptions ResourceGroupOptions PortForwarding Affinity AffinityType AffinityKind AffinityScope
LabelOperator OperatorType
Gauge Alarm UInt64Counter DoubleCounter CustomGauge CustomCounter Histogram AlarmInfo AlarmSeverity trace
DebugServer set_trace sandbox Sandbox SandboxInstance Function Context SessionService
YRError YRRuntimeError YRTimeoutError YRValueError YRTypeError YRInvokeError YRequestError CancelError GetTimeoutError
StatelessFunction StatefulInstance StatefulInstanceCreator
fcc ObjectRef
"""
IN_APIS = ["get_node_id", "get_namespace", "resource_group_table", "receive_request_loop", "reinit"]

ASK = """
import importlib, json, sys
missing = []
for module, names in json.loads(sys.argv[1]).items():
    found = importlib.import_module(module)
    missing += [f"{module}.{name}" for name in names if not hasattr(found, name)]
import yr, toprope.functions
same = yr.fcc.create_function_group is toprope.functions.fcc.create_function_group
print(json.dumps([missing, same, "torch" in sys.modules]))
"""


def test_every_name_of_the_api_is_importable_from_yr():
    asked = {
        "yr": EXPORTS.split(),
        "yr.apis": [*IN_APIS, "init", "resources"],
        "yr.fcc": ["create_function_group", "get_function_group_context"],
        "yr.config": ["InvokeOptions", "GroupOptions", "FunctionGroupContext"],
        "yr.exception": ["YRInvokeError"],
        "yr.affinity": ["Affinity", "AffinityKind", "AffinityScope", "AffinityType", "LabelOperator", "OperatorType"],
        "yr.decorator": ["instance_proxy"],
        "yr.decorator.instance_proxy": ["InstanceCreator", "InstanceProxy", "MethodProxy", "FunctionGroupHandler"],
        "yr.generator": ["ObjectRefGenerator"],
        "yr.object_ref": ["ObjectRef"],
        "yr.stream": ["ProducerConfig", "SubscriptionConfig", "Element"],
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(asked)],
        env={"PYTHONPATH": SITE, "PATH": "", "TOPROPE_DEVICE": "cpu"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [[], True, False]
    assert done.stderr == ""


def test_the_door_lists_what_it_has():
    assert len(set(functions.__all__)) == len(functions.__all__)
    assert all(hasattr(functions, name) for name in functions.__all__)


@pytest.mark.parametrize("name", names())
def test_using_what_is_left_out_names_it(name):
    left_out = getattr(functions, name)
    part = next(part for part, (_, listed) in TABLE.items() if name in listed.split())
    for use in (lambda: left_out(1, key=2), lambda: left_out.create, lambda: types.new_class("Mine", (left_out,))):
        with pytest.raises(NotImplementedError, match=rf"yr\.{name} is not part of toprope, nor are {part}: "):
            use()
    assert not isinstance(3, left_out)
    assert "not part of toprope" in repr(left_out)
    assert repr(pickle.loads(pickle.dumps(left_out))) == repr(left_out)


def test_what_is_left_out_of_groups_names_itself():
    group = functions.Group("any")
    for call in (group.suspend, group.resume):
        with pytest.raises(NotImplementedError, match=f"Group.{call.__name__} is not part of toprope"):
            call()
