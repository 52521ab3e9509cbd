"""Operators by release of torch_npu: the reader, and the table's agreement with public facts.

Holds src/toprope/support/operators_on_card.py.
"""

import pytest

from toprope.errors import UsageError
from toprope.support.operators_on_card import Kind, find_release, releases, status


@pytest.mark.parametrize(
    ("operator", "version", "kind"),
    [
        ("isin.Tensor_Tensor_out", "2.1.0.post6", Kind.HOST),
        ("isin.Tensor_Tensor_out", "2.1.0.post8", Kind.ON_CARD),
        ("aten::_upsample_nearest_exact2d.out", "2.1.0.post8", Kind.HOST),
        ("aten::_upsample_nearest_exact2d.out", "2.1.0.post10", Kind.ON_CARD),
        ("scatter_reduce.two_out", "2.12.0", Kind.HOST),
        ("bitwise_left_shift.Tensor_out", "2.12.0", Kind.HOST),
        ("bitwise_left_shift.Tensor_out", "2.13.0", Kind.ON_CARD),
        ("_embedding_bag_backward", "2.1.0.post8", Kind.HOST),
        ("bitwise_xor_.Tensor", "2.7.1", Kind.ON_CARD),
    ],
)
def test_status_of_operators_whose_history_is_known(operator: str, version: str, kind: Kind) -> None:
    assert status(operator, release=version).kind is kind


def test_functional_and_inplace_forms_count_as_their_out_variant() -> None:
    for form in ("isin.Tensor_Tensor", "aten::isin.Tensor_Tensor"):
        found = status(form, release="2.1.0")
        assert (found.operator, found.kind) == ("aten::isin.Tensor_Tensor_out", Kind.HOST)
    assert status("hypot_", release="2.13.0").operator == "aten::hypot.out"


def test_composed_operators_are_neither_on_the_card_nor_on_the_host() -> None:
    assert status("linalg_inv", release="7.2.0", torch="2.7.1").kind is Kind.COMPOSED
    assert status("scatter_reduce_.two", release="2.9.0").operator == "aten::scatter_reduce.two_out"


def test_dtype_decides_where_the_source_names_dtypes() -> None:
    operator = "adaptive_max_pool3d"
    assert status(operator, release="2.13.0").kind is Kind.PARTLY_HOST
    assert status(operator, release="2.13.0", dtype="float64").kind is Kind.HOST
    assert status(operator, release="2.13.0", dtype="torch.float16").kind is Kind.ON_CARD


def test_chip_decides_where_the_source_names_chips() -> None:
    assert status("logit", release="2.7.1", chip="910A").kind is Kind.HOST
    assert status("logit", release="2.7.1", chip="910B3").kind is Kind.ON_CARD


def test_what_no_source_mentions_is_unknown() -> None:
    assert status("no_such_operator", release="2.7.1").kind is Kind.UNKNOWN


def test_operators_of_other_libraries_and_of_torch_npu() -> None:
    assert status("torchvision::nms", release="2.7.1").kind is Kind.HOST
    assert status("npu::npu_rms_norm", release="2.7.1").kind is Kind.ON_CARD


def test_host_operator_without_a_kernel_for_the_cpu_fails() -> None:
    found = status("_scaled_dot_product_efficient_attention", release="2.8.0")
    assert found.kind is Kind.HOST
    assert found.fails


def test_release_for_a_torch_is_the_newest_of_it() -> None:
    assert find_release(torch="2.1.0").release == "7.2.0"
    assert find_release(torch="2.13.0+cpu").versions == ("2.13.0",)
    assert find_release("master", torch="2.7.1").branch == "v2.7.1"


def test_release_for_a_torch_without_source_is_the_newest_with_source_and_says_its_torch() -> None:
    found = find_release(torch="2.99.0")
    assert found.release != "master"
    assert found.position == max(one.position for one in releases() if one.release != "master")
    assert found.torch in found.text


def test_unknown_version_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match=r"2\.1\.0\.post7") as caught:
        find_release("2.1.0.post7")
    assert "2.1.0.post8" in str(caught.value)


def test_only_releases_with_the_switch_can_refuse_fallbacks() -> None:
    assert not find_release("2.7.1").can_refuse
    assert find_release("2.13.0").can_refuse
