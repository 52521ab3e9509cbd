"""Tensors with more than eight dimensions: CANN's kernels refuse them, and what runs no kernel takes them."""

import pytest
import torch

SIM = "910B3"

NINE = (1, 1, 2, 2, 3, 2, 2, 3, 2)
ORDER = (0, 1, 4, 7, 5, 8, 3, 2, 6)


def nine(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of the card that came from the host."""
    return torch.arange(288, dtype=dtype).view(NINE).npu()


@pytest.mark.parametrize(
    ("call", "kernel", "parameter"),
    [
        (lambda: nine().permute(ORDER).contiguous(), "aclnnInplaceCopy", "self"),
        (lambda: nine().permute(ORDER).reshape(4, -1), "aclnnInplaceCopy", "self"),
        (lambda: nine().clone(), "aclnnInplaceCopy", "self"),
        (lambda: nine().permute(ORDER).cpu(), "aclnnInplaceCopy", "self"),
        (lambda: nine().permute(ORDER).copy_(torch.zeros(NINE).permute(ORDER)), "aclnnInplaceCopy", "self"),
        (lambda: nine() + 1, "aclnnAdd", "self"),
        (lambda: torch.ones(1, device="npu") + nine(), "aclnnAdd", "other"),
        (lambda: nine().half(), "aclnnCast", "self"),
        (lambda: nine().sum(0), "aclnnReduceSum", "self"),
        (lambda: torch.randn(NINE, device="npu"), "aclnnInplaceNormal", "self"),
    ],
    ids=[
        *("contiguous", "reshape", "clone", "to the host", "from the host", "add", "add to fewer", "cast"),
        *("sum", "random numbers"),
    ],
)
def test_a_ninth_dimension_ran_here_and_is_refused_on_a_card(call, kernel, parameter):
    with pytest.raises(RuntimeError, match="error code is 161002") as error:
        call()
    text = str(error.value)
    assert kernel in text
    assert "ERR00100 PTA call acl api failed" in text
    assert f"EZ1001): The {parameter} tensor cannot be larger than 8 dimensions." in text


def test_what_runs_no_kernel_takes_as_many_dimensions_as_torch():
    x = nine()
    assert x.view(-1).sum().item() == 287 * 144
    assert x.permute(ORDER).shape[2] == 3
    assert x.cpu().shape == NINE
    assert torch.empty(NINE, device="npu").dim() == 9
    assert torch.empty((0, *NINE), device="npu").clone().shape == (0, *NINE)


def test_eight_dimensions_are_taken():
    x = nine().view(NINE[1:]).permute(0, 7, 1, 2, 3, 4, 5, 6)
    assert (x.contiguous() + 1).sum((1, 2)).dim() == 6


def test_tensors_of_the_host_are_not_the_chips_business():
    assert (torch.ones(NINE) + 1).sum() == 576
