"""`toprope estimate` against published numbers of parameters and published memory of public models.

The published figures and their sources are in published_memory.toml; configurations are in configs/.
"""

import pathlib
import tomllib

import pytest

from toprope import chips
from toprope.estimate.model.configs import load
from toprope.estimate.model.estimate import estimate
from toprope.estimate.model.layout import Layout
from toprope.estimate.model.workloads import Work

HERE = pathlib.Path(__file__).parent
CONFIGS = HERE / "configs"
ROWS = tomllib.loads((HERE / "published_memory.toml").read_text(encoding="utf-8"))["row"]
PAGE = HERE.parents[1] / "docs" / "estimate.md"

PARAMETERS = {
    "llama-3-8b": {"LlamaForCausalLM": 8_030_261_248},
    "llama-3-70b": {"LlamaForCausalLM": 70_553_706_496},
    "qwen2.5-7b": {"Qwen2ForCausalLM": 7_615_616_512},
    "qwen3-30b-a3b": {"Qwen3MoeForCausalLM": 30_532_122_624},
    "sdxl": {
        "text_encoder": 123_060_480,
        "text_encoder_2": 694_659_840,
        "unet": 2_567_463_684,
        "vae": 83_653_863,
    },
    "flux.1-dev": {
        "text_encoder": 123_060_480,
        "text_encoder_2": 4_762_310_656,
        "transformer": 11_901_408_320,
        "vae": 83_819_683,
    },
}


@pytest.mark.parametrize("model", PARAMETERS)
def test_parameters_are_those_published(model):
    made = load(str(CONFIGS / model))
    assert {each.name: sum(p.numel() for p in each.module.parameters()) for each in made} == PARAMETERS[model]
    assert {p.device.type for each in made for p in each.module.parameters()} == {"meta"}


def test_active_parameters_of_experts_are_those_published():
    one = estimate(str(CONFIGS / "qwen3-30b-a3b"), chips.get("910B3"), Work("prefill", length=64))
    assert one.parts[0].active == 3_353_032_704


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['card']}-{row['published']}")
def test_memory_is_within_5_percent_of_published_memory_or_named_as_a_miss(row):
    one = estimate(
        str(CONFIGS / row["model"]), chips.get("910B3"), Work(**row["work"]), Layout(**row.get("layout", {}))
    )
    size = one.memory.peak / 2**30
    off = size / row["published"] - 1
    assert (abs(off) > 0.05) == ("miss" in row), f"{size:.2f} GiB of {row['published']}: {off:+.1%}"
    # the page has the line, with what was computed
    line = f"| {row['what']} | {row['card']} | {row['published']:.4g} | {size:.4g} | {off:+.1%} |"
    assert line in PAGE.read_text(encoding="utf-8"), line


def test_70b_takes_no_memory_of_this_process():
    import psutil

    before = psutil.Process().memory_info().rss
    one = estimate(
        str(CONFIGS / "llama-3-70b"),
        chips.get("910B3"),
        Work("train", length=4096, checkpointing=True),
        Layout(tp=8, dp=8, zero=3),
    )
    assert one.parameters == 70_553_706_496
    assert psutil.Process().memory_info().rss - before < 2 * 10**9
