"""Translations of the engine's errors, notices and stages for the page: sentences are translated, facts stay.

The engine writes English, and so do records and logs. The page looks up a sentence's template in this table and shows
it in its language; it shows a sentence without a template in English.

Called by `Words.message` of `web.texts`. The keys are fixed by the sources of the engine, which a test reads: it fails
where an error or a notice has no translation here. The Chinese is free, but for its names in braces. Tests:
tests/images/test_images_messages.py.
"""

from __future__ import annotations

import re
import string
from functools import cache

__all__ = ["CHINESE", "translated"]

CHINESE: dict[str, str] = {
    # what is asked for
    "there is no picture.": "没有图片。",
    "drop one on the page, or choose a file": "把图片拖到页面上，或选择一个文件",
    "there is no instruction.": "没有指令。",
    'say what to do with the picture, such as "make it snow"': "写明要怎样修改图片，例如 “make it snow”",
    "{text} is not a seed.": "{text} 不是随机种子。",
    "give a whole number from 0 to 2**64 - 1, or nothing, for any": "填 0 到 2**64 - 1 的整数；留空表示任意",
    'give a whole number from 0 to 2**64 - 1, or "random", which draws one': (
        "填 0 到 2**64 - 1 的整数，或填 random 随机抽取"
    ),
    "the rectangle has no inside.": "矩形里没有任何区域。",
    "give left below right and top below bottom, from 0 to 100": "左要小于右，上要小于下，取值 0 到 100",
    "there is no LoRA {name}.": "没有名为 {name} 的 LoRA。",
    "pick another": "请选另一个",
    "{name} is {value}, and must be {wanted}.": "{name} 的值是 {value}，应为{wanted}。",
    "give {wanted}": "填{wanted}",
    "a whole number from {least} to {most}": " {least} 到 {most} 的整数",
    "a number from {least} to {most}": " {least} 到 {most} 的数",
    "a text that says what to do": "说明要做什么的文字",
    "a text": "文字",
    "true or false": " true 或 false",
    "a path or a picture": "路径或图片",
    "one of {names}": "以下之一：{names}",
    "{name} has {length} characters, and the most is {most}.": "{name} 有 {length} 个字符，最多 {most} 个。",
    "write a shorter one: models read a few hundred words": "写短一些：模型只读几百个词",
    "like is {value}, which decides {names} too.": "like 为 {value} 时，{names} 也由它决定。",
    "leave out {names}, or like": "不要填 {names}，或不要填 like",
    "mask_feather blends a mask's edge, and there is no mask.": "mask_feather 用于柔化蒙版边缘，但没有蒙版。",
    "give one, or leave it out": "给出一个，或不要填",
    "an edit has no {name}; {near} is meant?": "编辑没有 {name} 这一项，是否指 {near}？",
    "an edit has no {name}.": "编辑没有 {name} 这一项。",
    "write {name}": "写 {name}",
    "leave it out": "不要填",
    "an edit without {name}.": "编辑缺少 {name}。",
    "name it": "请写明",
    "refine is on, and the engine has no refiner.": "打开了指令改写，但引擎没有改写模型。",
    "open the engine with refiner=...": "用 refiner=... 打开引擎",
    "models of the family {family} have no {name}.": "{family} 系列的模型没有 {name}。",
    "leave it out, or give one of these": "不要填，或填其中之一",
    # the picture
    "a picture is a path or one of Pillow's, not {kind}.": "图片应是路径或 Pillow 的图片，而不是 {kind}。",
    "give one of them": "给出其中之一",
    "there is no picture {name}.": "没有图片 {name}。",
    "check the path": "检查路径",
    "{name} cannot be read as a picture: {reason}.": "无法把 {name} 作为图片读取：{reason}。",
    "check that it opens elsewhere, and save it as PNG": "确认它能用别的程序打开，再存为 PNG",
    "{name} is a HEIC picture, which cannot be read here.": "{name} 是 HEIC 图片，这里无法读取。",
    "save it as JPEG or PNG; iPhones take JPEG with Settings, Camera, Formats, Most Compatible": (
        "存为 JPEG 或 PNG；iPhone 可在“设置 - 相机 - 格式”中选“兼容性最佳”以拍摄 JPEG"
    ),
    "{name} has no pixels.": "{name} 没有像素。",
    "give another picture": "换一张图片",
    "{name} is too large: it is not decoded.": "{name} 太大，未解码。",
    "make it smaller first": "先缩小图片",
    "{name} has pixel values of an unknown range.": "{name} 的数值范围不明，无法确定黑与白。",
    "save it with 8 or 16 bits a channel": "存为每通道 8 位或 16 位",
    "a result cannot be saved as {kind}.": "结果不能存为 {kind}。",
    "give it one of the endings {kinds}": "扩展名用 {kinds}",
    "pictures need Pillow, which cannot be imported.": "处理图片需要 Pillow，但无法导入。",
    "{path} is no longer in the folder with results.": "{path} 已不在结果文件夹中。",
    "choose another picture": "请选另一张图片",
    "that picture is not kept here.": "这里没有保存那张图片。",
    "drop the file on the page": "把文件拖到页面上",
    "{path} is no record of a picture.": "{path} 不是图片的记录。",
    "the first of {count} frames": "共 {count} 帧，取第一帧",
    "turned upright": "已按 EXIF 转正",
    "16 bits made 8": "16 位已转为 8 位",
    "laid on white": "透明处已填白",
    "laid on the background": "透明处已填背景色",
    "converted from {profile} to sRGB": "已从 {profile} 转换为 sRGB",
    "its colour profile is ignored: this Pillow has no LittleCMS": "忽略其颜色配置文件：此 Pillow 没有 LittleCMS",
    "its colour profile cannot be used, its colours are taken as sRGB: {reason}": (
        "其颜色配置文件无法使用，颜色按 sRGB 处理：{reason}"
    ),
    "its profile {profile} is for {space}, it is {mode}: the profile is ignored": (
        "其配置文件 {profile} 用于 {space}，而图片是 {mode}：已忽略配置文件"
    ),
    "CMYK without a profile: its colours are approximate": "CMYK 且没有配置文件：颜色为近似值",
    "its EXIF says Adobe RGB, and it has no profile: its colours are taken as sRGB": (
        "EXIF 标明 Adobe RGB，但没有配置文件：颜色按 sRGB 处理"
    ),
    "it was written for a gamma of {gamma}: its colours are taken as sRGB": "按 gamma {gamma} 写成：颜色按 sRGB 处理",
    "it has primaries that are not sRGB's, and no profile: its colours are taken as sRGB": (
        "三基色与 sRGB 不同，且没有配置文件：颜色按 sRGB 处理"
    ),
    # the mask
    "the mask {name} has another size than the picture.": "蒙版 {name} 与图片大小不同。",
    "save the mask in the picture's size": "按图片的大小保存蒙版",
    "the mask {name} is black everywhere: nothing may change.": "蒙版 {name} 全黑：没有可以改变的地方。",
    "paint white what may change": "把可以改变的地方涂白",
    "the painted mask is no PNG of a canvas.": "画出的蒙版不是画布的 PNG。",
    "the painted mask cannot be read.": "无法读取画出的蒙版。",
    "the mask was painted on a picture of another shape.": "蒙版是在另一种形状的图片上画的。",
    "clear the mask and paint it again": "清除蒙版后重画",
    "there are {kinds}.": "同时给出了{kinds}。",
    "a rectangle": "矩形",
    "a painted mask": "画出的蒙版",
    "a mask": "蒙版图片",
    "clear all but one of them": "只保留其中一个",
    "a batch has no mask: its pictures differ.": "批量编辑没有蒙版：各图片不同。",
    "clear the mask, or edit one picture at a time": "清除蒙版，或逐张编辑",
    # the session and the queue
    "the edit was cancelled.": "编辑已取消。",
    "the edit was cancelled after {count} step.": "编辑在 {count} 步后取消。",
    "the edit was cancelled after {count} steps.": "编辑在 {count} 步后取消。",
    "there is nothing left to do.": "没有剩下的工作。",
    "the server is stopping.": "服务器正在停止。",
    "start it again": "重新启动它",
    "{count} of your edits wait or run already.": "你已有 {count} 个编辑在等待或运行。",
    "wait for one of them, or cancel them": "等其中一个完成，或取消它们",
    "the queue is full.": "队列已满。",
    "try again in a while": "稍后再试",
    "{count} pictures are too many for one batch.": "一批 {count} 张图片太多。",
    "give fewer at once, or use toprope edit --jobs": "一次少给一些，或使用 toprope edit --jobs",
    "that is no session.": "这不是有效的会话。",
    "this session has no such step.": "此会话没有这一步。",
    "reload the page": "重新加载页面",
    "that step has no picture to edit.": "这一步没有可编辑的图片。",
    "that step has no picture.": "这一步没有图片。",
    "choose another": "请选另一步",
    "the session has {count} steps, which is the most.": "会话已有 {count} 步，达到上限。",
    "begin a new one with New session": "用“新会话”开始新的会话",
    "see the terminal in which the server runs: it has the traceback": "见服务器所在的终端，那里有完整的出错信息",
    # the model
    "starting": "正在启动",
    "waiting for the model to be loaded": "等待模型加载",
    "rewording the instruction": "正在改写指令",
    "loading {folder} in {dtype} for {device}": "正在以 {dtype} 为 {device} 加载 {folder}",
    "the model is not there.": "没有模型。",
    "the model could not be loaded: {reason}": "模型无法加载：{reason}",
    "the engine is closed.": "引擎已关闭。",
    "open another": "打开另一个",
    "attention is {value}, and must be one of {names}.": "attention 的值是 {value}，应为以下之一：{names}。",
    "the model could not be loaded again after an error.": "出错后模型无法重新加载。",
    "open another engine": "打开另一个引擎",
    "{value} is no dtype for a model.": "{value} 不是模型可用的数据类型。",
    "give auto, bf16, fp16 or fp32": "填 auto、bf16、fp16 或 fp32",
    "{device} does not compute in {dtype}.": "{device} 不支持 {dtype} 计算。",
    "use {dtypes}, or auto": "使用 {dtypes} 或 auto",
    "editing pictures needs {package}, which cannot be imported.": "编辑图片需要 {package}，但无法导入。",
    "the installed diffusers has no {name}.": "已安装的 diffusers 没有 {name}。",
    "pip install -U diffusers": "运行 pip install -U diffusers",
    "the model in {folder} needs a package that cannot be imported: {reason}.": (
        "{folder} 中的模型需要一个无法导入的包：{reason}。"
    ),
    "{advice}, and install what the error names": "{advice}，并安装错误中提到的包",
    "the model in {folder} cannot be loaded: {reason}": "{folder} 中的模型无法加载：{reason}",
    "check that it was downloaded whole": "检查是否下载完整",
    "there is no family of models {name}.": "没有名为 {name} 的模型系列。",
    "name one of them": "请写其中之一",
    "{folder} holds a pipeline of the kind {kind}, which is none that edits pictures here.": (
        "{folder} 中是 {kind} 流水线，这里不能用它编辑图片。"
    ),
    "give the folder of one of these": "给出其中一种的文件夹",
    "{folder} is no folder of a model: it has no model_index.json.": "{folder} 不是模型文件夹：没有 model_index.json。",
    "give the folder that a pipeline was saved or downloaded to; `toprope images tiny DIR --family ip2p` writes "
    "one to try": "给出保存或下载流水线的文件夹；`toprope images tiny DIR --family ip2p` 可写出一个试用模型",
    "{file} has no names of parts.": "{file} 中没有各部分的名称。",
    "download the model again": "重新下载模型",
    "{file} cannot be read: {reason}.": "无法读取 {file}：{reason}。",
    "the defaults in {file} cannot be used: {reason}": "{file} 中的默认值无法使用：{reason}",
    "write knobs of the family with their values, or remove the file": "写该系列的参数及其值，或删除此文件",
    # memory and numbers
    "memory ran out with {count} pictures at once, going on with {less}": (
        "同时处理 {count} 张图片时内存不足，改为 {less} 张"
    ),
    "memory ran out on the rung {rung}, going on with {lower}: {reason}": (
        "内存档位 {rung} 内存不足，改用 {lower}：{reason}"
    ),
    "{device} has not the memory for this, on the rung {rung} of the memory ladder, the lowest.": (
        "{device} 内存不足，已是最低的内存档位 {rung}。"
    ),
    "{device} has not the memory for this, on the rung {rung} of the memory ladder.": (
        "{device} 内存不足，内存档位为 {rung}。"
    ),
    "let the model see fewer pixels (max_pixels, --max-pixels), or fewer pictures at once (at_once, --at-once), "
    "end other programs on the device, or use one with more memory": (
        "减少模型看到的像素（max_pixels、--max-pixels）或同时处理的图片（at_once、--at-once），"
        "结束设备上的其他程序，或换内存更大的设备"
    ),
    "give memory 'auto' (--memory auto) or a lower rung such as {rung}, let the model see fewer pixels "
    "(max_pixels, --max-pixels), or fewer pictures at once (at_once, --at-once)": (
        "内存档位用 auto（--memory auto）或更低的 {rung}，"
        "减少模型看到的像素（max_pixels、--max-pixels）或同时处理的图片（at_once、--at-once）"
    ),
    "let the model see fewer pixels (max_pixels, --max-pixels), or fewer pictures at once (at_once, --at-once)": (
        "减少模型看到的像素（max_pixels、--max-pixels）或同时处理的图片（at_once、--at-once）"
    ),
    "there is no rung {name} of the memory ladder.": "没有名为 {name} 的内存档位。",
    "give one of them, or auto": "填其中之一，或 auto",
    "the model gave {what}, in {dtypes}.": "模型输出了{what}，数据类型为 {dtypes}。",
    "the model gave {what} in {dtype}; it goes on in {safer}, and stays so": (
        "模型以 {dtype} 输出了{what}；改用 {safer} 继续，此后保持不变"
    ),
    "numbers that are not finite ({where})": "非有限数值（{where}）",
    "a black picture from one that is not ({where})": "黑色图片，而原图不是黑色（{where}）",
    "the latents after step {number} of {of}": "第 {number}/{of} 步后的潜变量",
    "picture {number} of {of}": "第 {number}/{of} 张图片",
    "numbers that are not finite": "非有限数值",
    "a black picture from one that is not": "黑色图片，而原图不是黑色",
    "try another seed, less guidance, or without a LoRA": "换一个随机种子、降低引导强度，或不用 LoRA",
    # texts
    "the {what} is too long for {reader}, which reads {tokens} tokens. Not read: {text}": (
        "{what} 对 {reader} 太长，它只读 {tokens} 个词元。未读部分：{text}"
    ),
    "the instruction is used as it was given: {reason}": "按原文使用指令：{reason}",
    "E1-Full was trained with 'Editing Instruction: ... Target Image Description: ...', and the instruction has"
    " no description: write one, or have --refiner write it": (
        "E1-Full 的训练文本是 “Editing Instruction: ... Target Image Description: ...”，"
        "而指令没有描述：请写上，或用 --refiner 来写"
    ),
    "refine_strength is {value}, and this model has no base to refine with.": (
        "refine_strength 的值是 {value}，而此模型没有用于精修的基础模型。"
    ),
    "give refine_strength 0, or download HiDream-ai/HiDream-I1-Full next to the model's folder": (
        "refine_strength 填 0，或把 HiDream-ai/HiDream-I1-Full 下载到模型文件夹旁边"
    ),
    "{operator} is refused by {device} and runs on the host: {reason}": (
        "{device} 不支持 {operator}，改在主机上运行：{reason}"
    ),
    # the refiner
    "{reason}, {count} times": "{reason}，共 {count} 次",
    "the model was given back": "模型已释放",
    "the model failed: {reason}": "模型出错：{reason}",
    "the server lists no model, name one: openai:URL?model=NAME": (
        "服务器没有列出模型，请写明：openai:URL?model=NAME"
    ),
    "the server said HTTP {status}": "服务器返回 HTTP {status}",
    "the server did not answer within {seconds} s": "服务器在 {seconds} 秒内没有回答",
    "the server cannot be reached: {reason}": "无法连接服务器：{reason}",
    "what the server sent is no JSON": "服务器返回的不是 JSON",
    "the server sent more than {most} bytes": "服务器返回的数据超过 {most} 字节",
    "what the server sent has no message of a model": "服务器返回的数据中没有模型的消息",
    "it has a description of the result already": "指令已含有结果的描述",
    "the answer was empty": "回答为空",
    "the {what} in the answer has {count} characters": "回答中的{what}有 {count} 个字符",
    "the answer was no JSON with an instruction, and {lines} instead of three": (
        "回答不是含有指令的 JSON，行数为 {lines}，应为三行"
    ),
    "the second line of the answer, which is the instruction, was empty": "回答的第二行是指令，但为空",
    # LoRAs
    "{value} is no scale of a LoRA.": "{value} 不是 LoRA 的权重。",
    "give a number such as 0.8": "填一个数，例如 0.8",
    "a scale of {value} is too large for a LoRA.": "权重 {value} 超出任何 LoRA 可用的范围。",
    "give at most {most}": "最多填 {most}",
    "{name} does not fit the model; none of its weights was touched.": "{name} 与模型不符；模型的权重没有改动。",
    "use a LoRA that was trained on this model": "使用在此模型上训练的 LoRA",
    "{path} is not there.": "{path} 不存在。",
    "name a file ({suffix}): PATH or PATH:SCALE": "写文件名（{suffix}）：PATH 或 PATH:SCALE",
    "{path} has {count} LoRA.": "{path} 中有 {count} 个 LoRA。",
    "{path} has {count} LoRAs.": "{path} 中有 {count} 个 LoRA。",
    "{path} has no LoRA.": "{path} 中没有 LoRA。",
    "name the file": "请写明文件",
    "{name} is no {suffix} file; others can run code when they are read.": (
        "{name} 不是 {suffix} 文件；其他格式在读取时可能运行代码。"
    ),
    "convert it to {suffix}, or download it so": "转换为 {suffix}，或下载该格式",
    "models of the family {family} take no LoRA.": "{family} 系列的模型不能使用 LoRA。",
    "{name} cannot be read.": "无法读取 {name}。",
    "download it again": "重新下载",
    "{name} has keys that are none of a LoRA for {pipeline}.": "{name} 中的键不属于 {pipeline} 的 LoRA。",
    "no LoRA {name} is on the model.": "模型上没有名为 {name} 的 LoRA。",
    "load it first": "先加载它",
    "a LoRA cannot be fused into this model: its edit and refine stages share weights.": (
        "LoRA 不能融合进此模型：用于编辑的权重也用于精修。"
    ),
    "leave it as it is: the pictures are the same": "保持不变即可：图片相同",
    "LoRAs need peft, which cannot be imported.": "LoRA 需要 peft，但无法导入。",
    "{name} cannot be loaded; the model is as it was.": "无法加载 {name}；模型保持原样。",
    # how a picture was made
    "source": "原图",
    "instruction": "指令",
    "instruction as written": "原始指令",
    "reworded": "是否改写",
    "yes": "是",
    "no: {reason}": "否：{reason}",
    "negative": "反向提示",
    "seed": "随机种子",
    "steps": "步数",
    "guidance": "引导强度",
    "image guidance": "图像引导强度",
    "image_guidance": "图像引导强度",
    "refine strength": "精修强度",
    "refine_strength": "精修强度",
    "cfg norm": "引导重缩放",
    "cfg_norm": "引导重缩放",
    "size": "分辨率",
    "fit": "缩放方式",
    "loras": "LoRA",
    "device": "设备",
    "device name": "设备名称",
    "dtype": "数据类型",
    "attention": "注意力实现",
    "notices": "提示",
    "seconds": "秒",
}  # fmt: skip
"""Chinese by the English template. Names in braces are facts; a fact that is a template itself is translated too."""


def translated(text: str, language: str) -> str:
    """A sentence of the engine in a language of the page; the sentence itself if there is no translation.

    Args:
        text: in English.
        language: one of `texts.LANGUAGES`.
    """
    if language == "en":
        return text
    found = _chinese(text)
    if found is None:
        name, colon, note = text.partition(": ")  # a note with the name of its picture
        found = f"{name}：{after}" if colon and (after := _chinese(note)) is not None else text
    return found


def _chinese(text: str) -> str | None:
    """The Chinese sentence for an English one, with its facts; None if there is none."""
    if text in CHINESE:
        return CHINESE[text]
    for pattern, template in _patterns():
        found = pattern.fullmatch(text)
        if found:
            return template.format(**{name: _fact(value) for name, value in found.groupdict().items()})
    return None


def _fact(text: str) -> str:
    """A fact for a sentence, translated if it consists of known phrases."""
    phrases = [_chinese(each) for each in text.split(" and ")]
    return "和".join(each for each in phrases if each is not None) if None not in phrases else text


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Patterns of the templates with facts, and their translations; templates with the most fixed letters first."""
    found = []
    for english, chinese in CHINESE.items():
        pieces = list(string.Formatter().parse(english))
        if any(name for _, name, _, _ in pieces):
            pattern = "".join(re.escape(said) + (f"(?P<{name}>.+?)" if name else "") for said, name, _, _ in pieces)
            found.append((sum(len(said) for said, *_ in pieces), re.compile(pattern, re.DOTALL), chinese))
    return tuple((pattern, chinese) for _, pattern, chinese in sorted(found, key=lambda each: -each[0]))
