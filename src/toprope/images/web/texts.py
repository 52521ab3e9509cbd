"""The texts of the page in its languages, in one table; those of errors and notices are in `messages`.

Used by all modules of the page. The keys are fixed by them; a test fails where a key of the page is missing here, or a
language. The words are free, but for the names in braces. Tests: tests/images/test_images_texts.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toprope.images.web.messages import translated

__all__ = ["ENGLISH", "LANGUAGES", "TEXTS", "Words", "words_for"]

LANGUAGES = ("en", "zh")
"""The order of the columns of `TEXTS`."""

TEXTS: dict[str, tuple[str, str]] = {
    # the page
    "title": ("Edit pictures by instruction", "按指令编辑图片"),
    "tab_picture": ("Picture", "单张"),
    "tab_batch": ("Batch", "批量"),
    "picture": ("Picture", "图片"),
    "slider": ("Before and after", "编辑前后对比"),
    "undo": ("Undo", "撤销"),
    "redo": ("Redo", "重做"),
    "fresh": ("New session", "新会话"),
    "back": ("Session before", "上一个会话"),
    "other": ("Another picture", "换一张图片"),
    "use_source": ("Use its source", "使用它的原图"),
    "instruction": ("Instruction", "指令"),
    "placeholder": ("make it snow", "make it snow（建议用英文）"),
    "edit": ("Edit", "编辑"),
    "again": ("Try again", "重试"),
    "cancel": ("Cancel", "取消"),
    "refined": ("Instruction that was used", "实际使用的指令"),
    # presets and examples
    "preset": ("Presets", "预设"),
    "preset_authors": ("Defaults", "默认值"),
    "preset_draft": ("Draft", "草稿"),
    "preset_stronger": ("Stronger", "更强"),
    "preset_closer": ("Closer", "更贴近原图"),
    "examples": ("Examples", "示例"),
    "example_weather": ("Weather", "天气"),
    "example_style": ("Style", "风格"),
    "example_part": ("One thing", "局部"),
    "hint_weather": (
        "Changes all of the picture. Start with the authors' values; if too little happens, raise the guidance.",
        "改变整张图片。先用作者的默认值；变化太小就提高引导强度。",
    ),
    "hint_style": (
        "A style must win over the picture: higher guidance, lower image guidance.",
        "风格要压过原图：提高引导强度，降低图像引导强度。",
    ),
    "hint_part": (
        "The rest shall stay: higher image guidance. A mask keeps all outside it to the bit.",
        "其余部分保持不变：提高图像引导强度。使用蒙版可让蒙版外逐位不变。",
    ),
    "hint_style_alone": (
        "A style must win over the picture: higher guidance.",
        "风格要压过原图：提高引导强度。",
    ),
    "hint_part_alone": (
        "The rest shall stay: lower guidance. A mask keeps all outside it to the bit.",
        "其余部分保持不变：降低引导强度。使用蒙版可让蒙版外逐位不变。",
    ),
    "hint_style_full": (
        "For a style the model's authors advise an image guidance of 3 to 4.",
        "模型作者建议：改变风格时图像引导强度取 3 到 4。",
    ),
    "hint_part_full": (
        "For a local change the model's authors advise an image guidance of 2 to 3. A mask keeps all outside it.",
        "模型作者建议：局部修改时图像引导强度取 2 到 3。使用蒙版可保持蒙版外不变。",
    ),
    # the mask
    "masking": ("Mask: only a part may change", "蒙版：只改变一部分"),
    "brush": ("Brush", "画笔"),
    "eraser": ("Eraser", "橡皮"),
    "size": ("Size", "大小"),
    "wipe": ("Clear", "清除"),
    "left": ("Left, %", "左，%"),
    "top": ("Top, %", "上，%"),
    "right": ("Right, %", "右，%"),
    "bottom": ("Bottom, %", "下，%"),
    "mask": ("Or a picture of the same size: white may change", "或同样大小的图片：白色处可改变"),
    "clear_mask": ("Clear the mask", "清除蒙版"),
    # the form
    "refine": ("Reword the instruction", "改写指令"),
    "seed": ("Seed", "随机种子"),
    "seed_short": ("seed", "种子"),
    "seed_any": ("any: a new one for every edit", "任意：每次编辑重新抽取"),
    "dice": ("Roll", "随机"),
    "steps": ("Steps", "步数"),
    "guidance": ("Guidance", "引导强度"),
    "image_guidance": ("Image guidance", "图像引导强度"),
    "refine_strength": ("Refine strength", "精修强度"),
    "cfg_norm": ("Guidance rescale: no prediction grows", "引导重缩放：预测不放大"),
    "negative": ("Negative: what must not be in it", "反向提示：不希望出现的内容"),
    "loras": ("LoRAs", "LoRA"),
    "loras_add": ("Add to the model", "加到模型上"),
    "scale": ("Scale of {name}", "{name} 的权重"),
    "more": ("More", "更多"),
    "num_images": ("Pictures, each with the next seed", "图片数，种子依次加一"),
    "resolution": ("Resolution that the model sees", "模型看到的分辨率"),
    "fit": ("Resize mode for another shape", "形状不同时的缩放方式"),
    "facts": ("Device, memory and queue", "设备、内存与队列"),
    # the batch
    "uploads": ("Pictures: the instruction and settings go for all", "图片：指令和设置用于全部"),
    "edit_all": ("Edit all", "全部编辑"),
    "results": ("Results", "结果"),
    "packed": ("All of them as a ZIP", "全部打包为 ZIP"),
    # the tree
    "tree": ("Steps of this session", "本次会话的步骤"),
    "resume": ("Run the interrupted edits again", "重新运行中断的编辑"),
    "files": ("Files: the picture, and how to repeat it", "文件：图片及其复现记录"),
    "made": ("How it was made", "生成信息"),
    "reuse": ("Use these settings", "使用这些设置"),
    "choose": ("Choose a picture to see how it was made.", "选择一张图片查看生成信息。"),
    "brought": (
        "{name} says how it was made: the form has its settings now.",
        "{name} 带有生成记录：其设置已填入表单。",
    ),
    "brought_missing": ("Not on this page: {missing}.", "本页没有：{missing}。"),
    "unrefined": ("as you wrote it: {reason}", "保持原文：{reason}"),
    # errors
    "do": ("do", "处理"),
    "looked_at": ("looked at", "依据"),
    "it_failed": ("it failed.", "失败。"),
    # the model
    "is_ready": ("is ready", "已就绪"),
    "is_loading": ("is loading", "正在加载"),
    "simulated": ("simulated card", "模拟卡"),
    "simulated_short": ("simulated", "模拟"),
    "device": ("device", "设备"),
    "dtype": ("dtype", "数据类型"),
    "attention": ("attention", "注意力实现"),
    "attention_unknown": ("not known before the first edit", "首次编辑后才知道"),
    "memory_ladder": ("memory ladder", "内存档位"),
    "in_use": ("in use", "已用"),
    "in_use_of": ("{used} of {total}", "{used} / {total}"),
    "allocated": ("allocated", "已分配"),
    "reserved": ("reserved", "已保留"),
    "peak": ("peak", "峰值"),
    # the queue
    "queue": ("queue", "队列"),
    "one_runs": ("one runs", "一个正在运行"),
    "one_runs_step": ("one runs, step {step} of {of}", "一个正在运行，第 {step}/{of} 步"),
    "nothing_runs": ("nothing runs", "没有运行"),
    "waiting_count": ("{count} waiting", "{count} 个等待"),
    "done_count": ("{count} done", "{count} 个完成"),
    "failed_count": ("{count} failed", "{count} 个失败"),
    "cancelled_count": ("{count} cancelled", "{count} 个取消"),
    "yours": ("yours", "你的"),
    "of_page": ("another page", "其他页面"),
    "of_program": ("a program", "程序"),
    "pictures_count": ("{count} pictures", "{count} 张图片"),
    # states
    "source": ("source", "原图"),
    "waiting": ("waiting", "等待"),
    "running": ("running", "运行中"),
    "done": ("done", "完成"),
    "failed": ("failed", "失败"),
    "cancelled": ("cancelled", "已取消"),
    "interrupted": ("interrupted", "已中断"),
    # progress
    "waiting_ahead": ("waiting: {count} edits before this one", "等待：前面还有 {count} 个编辑"),
    "waiting_ahead_one": ("waiting: 1 edit before this one", "等待：前面还有 1 个编辑"),
    "waiting_next": ("waiting: next", "等待：下一个"),
    "cancelled_after": ("cancelled after step {step} of {of}", "在第 {step}/{of} 步后取消"),
    "done_in": ("done in {seconds:.1f} s", "完成，用时 {seconds:.1f} 秒"),
    "were_done": ("{done} of {of} pictures were done", "完成了 {done}/{of} 张"),
    "pictures_done": ("{done} of {of} pictures", "{done}/{of} 张"),
    "picture_of": ("picture {at} of {of}", "第 {at}/{of} 张"),
    "beginning": ("beginning", "开始"),
    "step_of": ("step {step} of {of}", "第 {step}/{of} 步"),
    "each_step": ("{seconds:.2g} s/step", "{seconds:.2g} 秒/步"),
    "left_over": ("{seconds:.0f} s left", "剩余 {seconds:.0f} 秒"),
    "seconds": ("{seconds:.0f} s", "{seconds:.0f} 秒"),
    "row_done": ("{name}, seed {seed}", "{name}，种子 {seed}"),
}
"""Each text of the page by its key: English, Chinese. Texts with {names} are formatted."""


@dataclass(frozen=True)
class Words:
    """The texts in one language.

    Attributes:
        language: one of `LANGUAGES`.
    """

    language: str = "en"

    def __call__(self, key: str, **values: Any) -> str:
        """A text by its key, with its values in their places."""
        return TEXTS[key][LANGUAGES.index(self.language)].format(**values)

    def message(self, text: str) -> str:
        """A sentence of the engine: an error, a notice, a stage."""
        return translated(text, self.language)

    @property
    def all(self) -> dict[str, str]:
        """All texts by their keys, not formatted."""
        return {key: each[LANGUAGES.index(self.language)] for key, each in TEXTS.items()}


ENGLISH = Words()


def words_for(accepts: str | None, chosen: str | None = None) -> Words:
    """The texts for a browser: in the first language that it asks for, English where that is none of ours.

    Args:
        accepts: the header Accept-Language.
        chosen: a language that the server was started with, which goes before.
    """
    wanted = chosen or (accepts or "").split(",")[0].partition(";")[0].strip().lower().partition("-")[0]
    return Words(wanted if wanted in LANGUAGES else "en")
