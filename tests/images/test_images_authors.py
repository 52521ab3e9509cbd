"""`like="authors"`: the preprocessing, numerics and refine stage of the scripts of HiDream-E1's authors (f6f0631).

The references here are written from what the scripts do, and share no code with ours. They were compared with the
scripts themselves, see docs/hidream.md.

Holds `images.families.hidream.guidance`, `pipeline` and `images.picture.geometry`.
"""

import math

import numpy
import pytest
import torch
from PIL import Image

from images_tiny import QUIET, picture, tiny
from toprope.errors import UsageError
from toprope.images import EditRequest, Engine
from toprope.images.families.hidream.guidance import AUTHORS
from toprope.images.families.hidream.pipeline import target_of
from toprope.images.picture.files import fit_in
from toprope.images.picture.geometry import plan_as_authors

pytestmark = QUIET
SIZES = [(1000, 700), (1600, 1200), (3000, 2100), (4032, 3024)]
VARIANTS = ("hidream-e1", "hidream-e1-full")


def smooth(width, height):
    """A picture of soft blots."""
    blots = numpy.random.default_rng(width).integers(0, 256, (height // 50, width // 50, 3), dtype=numpy.uint8)
    return Image.fromarray(blots).resize((width, height), Image.Resampling.BICUBIC)


def prepared(given, edge):
    """The input that E1.1's script gives the model: halved by averaging, resized to cover, the middle cropped."""
    while min(given.size) >= 2 * edge:
        given = given.resize((given.width // 2, given.height // 2), Image.Resampling.BOX)
    wide, high = given.size
    factor = math.sqrt(edge * edge / (wide * high))
    tried = [
        (across(wide * factor) // 16 * 16, down(high * factor) // 16 * 16)
        for across in (round, math.floor)
        for down in (round, math.floor)
    ]
    tried.sort(key=lambda size: -size[0] * size[1])
    to = next(size for size in tried if size[0] * size[1] <= edge * edge)
    if wide / to[0] < high / to[1]:
        tall = round(high / (wide / to[0]))
        given = given.resize((to[0], tall), Image.Resampling.BICUBIC)
        return given.crop((0, (tall - to[1]) // 2, to[0], (tall - to[1]) // 2 + to[1]))
    long = round(wide / (high / to[1]))
    given = given.resize((long, to[1]), Image.Resampling.BICUBIC)
    return given.crop(((long - to[0]) // 2, 0, (long - to[0]) // 2 + to[0], to[1]))


@pytest.mark.parametrize("size", [*SIZES, (700, 1000), (2048, 2048), (5000, 1100), (640, 480), (1333, 777)])
def test_the_model_sees_the_very_pixels_that_the_script_shows_it(size) -> None:
    given = smooth(*size)
    frame = plan_as_authors(size, pixels=1024 * 1024, multiple=16, square=False)
    assert fit_in(given, frame).tobytes() == prepared(given, 1024).tobytes()
    assert frame.output == size  # and the result is stretched to the source
    square = plan_as_authors(size, pixels=768 * 768, multiple=16, square=True)
    assert fit_in(given, square).tobytes() == given.resize((768, 768)).tobytes()


def test_the_description_is_read_as_the_pipeline_reads_it() -> None:
    label = "Target Image Description:"
    assert target_of(f"a {label} b {label} c", exactly=True) == "b"
    assert target_of("a target image description: b", exactly=True) == "a target image description: b"
    assert target_of(f"a {label}", exactly=True) == ""
    # ours: whatever case, and letters whose lower case is longer
    assert target_of("İİİ paint. target image description: cat on a mat") == "cat on a mat"


def test_refining_begins_where_floats_say() -> None:
    assert [AUTHORS.refine_from(10, 0.9), AUTHORS.refine_from(28, 0.3), AUTHORS.refine_from(4, 0.0)] == [0, 19, 4]


def by_the_script(engine, shown, *, text, negative, guidance, image_guidance, steps, strength, norm):
    """The picture of the authors' pipeline: in the model's dtype throughout, both stages with the edit weights."""
    pipeline = engine.loaded.pipeline
    model, vae, scheduler, dtype = pipeline.transformer, pipeline.vae, pipeline.scheduler, engine.loaded.dtype
    t5, no_t5, llama, no_llama, pooled, no_pooled = pipeline.encode_prompt(
        prompt=text, negative_prompt=negative, device="cpu", do_classifier_free_guidance=True
    )
    first = (t5, llama, pooled) if norm else (no_t5, no_llama, no_pooled)
    avoided, wanted = (no_t5, no_llama, no_pooled), (t5, llama, pooled)

    def predict(inputs, timestep, *texts):
        words, layers, whole = (
            torch.cat(each, dim=dim) for each, dim in zip(zip(*texts, strict=True), (0, 1, 0), strict=True)
        )
        found = model(
            hidden_states=inputs, timesteps=timestep.expand(len(inputs)), encoder_hidden_states_t5=words,
            encoder_hidden_states_llama3=layers, pooled_embeds=whole, return_dict=False,
        )[0]  # fmt: skip
        return (-1.0 * found[..., :width]).chunk(len(texts))

    pixels = pipeline.image_processor.preprocess(shown).to(dtype)
    seen = (vae.encode(pixels).latent_dist.mode() - vae.config.shift_factor) * vae.config.scaling_factor
    width = seen.shape[-1]
    latents = torch.randn(seen.shape, generator=torch.Generator().manual_seed(3), dtype=dtype)
    from diffusers.pipelines.hidream_image.pipeline_hidream_image import calculate_shift

    scheduler.set_timesteps(steps, device="cpu", mu=calculate_shift(model.max_seq))
    switch = getattr(pipeline.stages, "switch", None)
    for number, timestep in enumerate(scheduler.timesteps):
        if number == int(steps * (1.0 - strength)) and switch is not None:
            switch.on = False  # what the LoRA adds
        if number < int(steps * (1.0 - strength)):
            inputs = torch.cat([torch.cat([latents] * 3), torch.cat([torch.zeros_like(seen), seen, seen])], dim=-1)
            nothing, image, everything = predict(inputs, timestep, first, avoided, wanted)
            if norm:
                text_part = image + guidance * (everything - image)
                scale = everything.norm(dim=1, keepdim=True) / (text_part.norm(dim=1, keepdim=True) + 1e-8)
                guided = nothing + image_guidance * (text_part * scale.clamp(0, 1) - nothing)
            else:
                guided = nothing + image_guidance * (image - nothing) + guidance * (everything - image)
        else:
            nothing, everything = predict(torch.cat([latents] * 2), timestep, avoided, wanted)
            guided = nothing + guidance * (everything - nothing)
        latents = scheduler.step(guided, timestep, latents, return_dict=False)[0]
    if switch is not None:
        switch.on = True
    decoded = vae.decode(latents / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False)[0]
    return pipeline.image_processor.postprocess(decoded, output_type="pil")[0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_edit_is_the_scripts_picture_pixel_for_pixel(variant, dtype) -> None:
    knobs = {"guidance": 3.0, "image_guidance": 1.5, "steps": 2, "negative": "low quality"}
    with Engine.open(tiny(variant), device="cpu", dtype=dtype) as engine:
        edge = math.isqrt(engine.family.native(engine.loaded.pipeline).pixels)
        for at, size in enumerate(SIZES):
            given, norm = smooth(*size), at % 2 == 0
            shown = prepared(given, edge) if variant == "hidream-e1" else given.resize((edge, edge))
            with torch.no_grad():
                wanted = by_the_script(engine, shown, text="make it snow", strength=0.5, norm=norm, **knobs)
            asked = EditRequest(
                given, "make it snow", seed=3, refine_strength=0.5, cfg_norm=norm, like="authors", **knobs
            )
            result = engine.edit(asked)
            assert result.pictures[0].tobytes() == wanted.resize(size).tobytes(), size
            assert result.record["request"]["generator_device"] == "device"
            assert result.record["frame"]["script"]["crop"]
            assert engine.edit(asked).pictures[0].tobytes() == result.pictures[0].tobytes()
        plain = EditRequest(given, "make it snow", seed=3, refine_strength=0.5, **knobs)
        assert engine.edit(plain).pictures[0].tobytes() != result.pictures[0].tobytes()  # the base's weights are back


@pytest.mark.slow
def test_a_plain_instruction_to_e1_full_is_taken_with_a_notice() -> None:
    asked = {"steps": 1, "seed": 3, "refine_strength": 0, "max_pixels": 1024}
    with Engine.open(tiny("hidream-e1-full"), device="cpu", dtype="fp32") as engine:
        (notice,) = engine.edit(EditRequest(picture(), "snow", **asked)).record["notices"]
        assert "no description" in notice
        full = "Editing Instruction: snow. Target Image Description: white"
        assert engine.edit(EditRequest(picture(), full, **asked)).record["notices"] == []


def test_what_the_scripts_decide_cannot_be_given_too() -> None:
    for options in ({"size": "768"}, {"fit": "crop"}, {"max_pixels": 4096}, {"sampler": "euler"}):
        with pytest.raises(UsageError, match=f"which decides {next(iter(options))} too"):
            EditRequest("a.png", "x", like="authors", **options).validate()
    with pytest.raises(UsageError, match="like is 'me', and must be one of authors"):
        EditRequest("a.png", "x", like="me").validate()


def test_a_family_whose_authors_have_no_script_here_refuses_it() -> None:
    from toprope.images.families import named

    with pytest.raises(UsageError, match="family kontext have no like 'authors'"):
        named("kontext").refuse(EditRequest(picture(), "x", like="authors"))
