"""FP8 weights on a simulated card: the link carries codes, and the card decodes them to the same values as the host.

The rest of `store.coded` is tested in ../test_tiers_codes.py.
"""

import pytest
import torch

import tiers_codes
from toprope.tiers import attach, skeleton

SIM = "910B3"

CODES = 64 * 64
SCALES = 4 * 4 * 4


def run(model):
    torch.manual_seed(1)
    with torch.no_grad():
        return model(torch.randn(3, 64).to("npu")).cpu()


@pytest.mark.parametrize("block", [16, 24], ids=["whole blocks", "the last blocks are smaller"])
@pytest.mark.parametrize("host", ["1MB", "0MB"])
def test_the_link_carries_codes(block, host, tmp_path):
    """Of the card's own dtypes FP8 is none. Rows that do not end with a block are decoded on the host."""
    whole = tiers_codes.folder_of_net(tmp_path, block=block).to("npu")
    with skeleton():
        model = tiers_codes.net()
    with attach(model, "140kB" if block == 16 else "60kB", host, tmp_path, on="npu", small=1000, poison=True) as handle:
        for _ in range(3):  # the first steps are planned again
            run(model)
        handle.reset_stats()
        assert torch.equal(run(model), run(whole))
        found, each = handle.stats(), CODES + SCALES if block == 16 else 4 * CODES
        assert 0 < found.moved["host_to_device"] <= (found.loads + 2) * each
        assert found.moved["host_to_device"] % each == 0
        assert found.device_peak_bytes <= found.budget_bytes["device"] + found.outside_bytes
        for name, value in whole.state_dict().items():
            assert torch.equal(model.state_dict()[name].cpu(), value.cpu())


def test_the_card_decodes_every_code_as_the_host(tmp_path):
    """NaN too; the memory that it takes is part of the budget."""
    tiers_codes.folder_of_net(tmp_path)
    with skeleton():
        model = tiers_codes.net()
    with attach(model, "200kB", "1MB", tmp_path, on="npu", small=1000) as handle:
        homes = [each for each in handle._engine.model.coded.values() if each.coding.there is not None]
        assert len(homes) == 6
        assert handle._engine.model.decoding > 0
        table, coding = homes[0].coding.there, homes[0].coding
        codes = torch.arange(CODES, dtype=torch.int32).to(torch.uint8)
        made = table.decode(codes.to("npu"), coding, coding.scales.to("npu"), 0).cpu()
        assert torch.equal(made.view(torch.uint8), coding.decode(codes, 0).view(torch.uint8))
        assert int(made.isnan().sum()) == CODES // 128


def test_pieces_that_begin_within_a_block(tmp_path):
    """160 rows in blocks of 16, decoded 40 at a time."""
    whole = tiers_codes.folder_of_net(tmp_path, width=160)
    with skeleton():
        model = tiers_codes.net(width=160)
    with attach(model, "400kB", "1MB", tmp_path, on="npu", small=1000, poison=True) as handle:
        coding = next(iter(handle._engine.model.coded.values())).coding
        assert coding.there is not None
        assert coding.there.piece // 160 == 40
        for _ in range(2):
            assert torch.equal(
                model(torch.ones(2, 160).to("npu")).cpu(), whole.to("npu")(torch.ones(2, 160).to("npu")).cpu()
            )
        assert handle.plan.slots
