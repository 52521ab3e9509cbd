"""The deploy file (`graph.deploy_file`), and the options of a graph (`graph.settings`).

The example of the reference's manual is among them.
"""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.flow.exceptions import DfException
from toprope.flow.graph.deploy_file import addresses, parse, template
from toprope.flow.graph.settings import card, check_key, deploys, is_compile_only
from toprope.flow.stage.spec import Deploy

RANGES = st.tuples(st.integers(0, 9), st.integers(0, 3)).map(lambda each: (each[0], each[0] + each[1]))


@given(st.lists(st.lists(RANGES, min_size=3, max_size=4), min_size=1, max_size=3))
def test_ranges_are_a_product_in_order(listed):
    text = ",".join(":".join(str(a) if a == b else f"{a}~{b}" for a, b in each) for each in listed)
    wanted = [each for sides in listed for each in itertools.product(*(range(a, b + 1) for a, b in sides))]
    assert addresses(text) == wanted


def test_the_example_of_the_manual():
    assert len(addresses("0:0:0~1:0~1")) == 4


@pytest.mark.parametrize(
    "text",
    ["", "0", "0:0", "0:0:0:0:0", "0:0:3~1", "0:0:a", "0:0:-1", "0:0:123456", "0:0:0~32768", "0:0:0,", "0:0:0~",
     "0:0~300:0~300", None, 5],
)  # fmt: skip
def test_what_is_no_address_is_refused(text):
    with pytest.raises(DfException):
        addresses(text)


def entry(nodes, where):
    return json.dumps({"batch_deploy_info": [{"flow_node_list": nodes, "logic_device_list": where}]})


def test_a_file_names_the_cards_of_each_instance():
    assert parse(entry(["a", "b"], "0:0:0~1:0")) == {"a": Deploy((0, 1)), "b": Deploy((0, 1))}
    text = json.dumps(
        {"deploy_info": [{"flow_node_name": "c", "logic_device_id": "0:0:3"}], "keep_logic_device_order": 1}
    )
    assert parse(text, ["c"]) == {"c": Deploy((3,))}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"deploy_info": 3}', '{"deploy_info": [{}]}', '{"deploy_info": [5]}', entry("a", "0:0:0"),
     entry([1], "0:0:0"), entry(["a", "a"], "0:0:0"), entry(["a"], "1:0:0"),
     entry(["a"], "0:1:0"), entry(["b"], "0:0:0")],
)  # fmt: skip
def test_a_file_that_cannot_be_is_refused(text):
    with pytest.raises(DfException):
        parse(text, ["a"])


@given(st.lists(st.text(min_size=1), unique=True, min_size=1))
def test_the_template_is_such_a_file(names):
    assert parse(template(names), names) == dict.fromkeys(names, Deploy((0,)))


def test_the_card_of_the_options():
    assert card({}) == 0
    assert card({"ge.exec.deviceId": "3"}) == 3
    assert card({"ge.exec.logicalDeviceClusterDeployMode": "SINGLE", "ge.exec.logicalDeviceId": "[0:2]"}) == 2
    for options in ({"ge.exec.deviceId": "x"}, {"ge.exec.deviceId": "-1"}, {"ge.exec.logicalDeviceId": "0:0"}):
        with pytest.raises(DfException):
            card(options)


def test_no_file_is_card_0_unless_strict(tmp_path):
    path = tmp_path / "deploy.json"
    options = {"ge.experiment.data_flow_deploy_info_path": str(path)}
    assert deploys({}, ["a"], strict=False) == {}
    with pytest.raises(DfException):
        deploys({}, ["a"], strict=True)
    with pytest.raises(DfException):
        deploys(options, ["a"], strict=False)
    path.write_text(template(["a"]))
    assert deploys(options, ["a"], strict=True) == {"a": Deploy((0,))}


def test_other_options():
    check_key({"ge.graph_key": "a_b-1"})
    with pytest.raises(DfException):
        check_key({"ge.graph_key": "a b"})
    assert is_compile_only({"ge.runFlag": "0"})
    assert not is_compile_only({})
