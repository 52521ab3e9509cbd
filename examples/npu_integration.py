"""Six steps through apt_model's device calls: each does real work and checks what comes out.

    toprope run --chip 910B3 examples/npu_integration.py
    toprope run --device cpu examples/npu_integration.py

It prints one line for each step that passed, and why where one did not; the exit status is then 1.
"""

import sys
import traceback

import apt_model.optimization.vb_global as vb
import torch
from apt_model.core.system import get_device, get_device_info, get_memory_info, memory_cleanup, set_seed
from apt_model.optimization.npu_backend import (
    DeviceBackend,
    get_accelerator_type,
    get_device_manager,
    get_unified_backend,
    is_cuda_available,
    is_npu_available,
)
from apt_model.optimization.vgpu_stack import VGPUStack, VGPUStackLinear, create_vgpu_stack
from torch import nn

MIB = 2**20


class StepError(Exception):
    """What a step found is not what it must be."""


def check(holds, what):
    if not holds:
        raise StepError(what)


def detect_devices():
    """NPU设备检测"""
    device, info = get_device(), get_device_info()
    check(info["device_type"] == device.type == get_accelerator_type(), f"{info} does not fit {device}")
    check((info["npu_available"], info["cuda_available"]) == (is_npu_available(), is_cuda_available()), str(info))
    check(get_device(force_cpu=True).type == "cpu", "force_cpu does not give the CPU")
    wanted = "npu" if is_npu_available() else device.type
    check(get_device(prefer_npu=True).type == wanted, f"prefer_npu does not give {wanted}")
    draws = []
    for _ in range(2):
        set_seed(42)
        draws.append(torch.randn(1000, device=device).cpu())
    check(torch.equal(*draws), "the same seed gives other numbers")
    return f"{info['device_name']}, {device}"


def use_the_backend():
    """NPU后端适配器"""
    backend, device = get_unified_backend(), get_device()
    check(backend.device == device, f"the backend is for {backend.device}")
    check(backend.is_available() and backend.device_count() >= 1, "the backend says there is no device")
    check(backend.get_device_properties()["total_memory"] > 0, "the device has no memory")
    before, original = backend.memory_allocated(), torch.randn(MIB)
    moved = DeviceBackend(device).to_device(original)
    backend.synchronize()
    check(moved.device.type == device.type and torch.equal(moved.cpu(), original), "to_device changes a tensor")
    if device.type != "cpu":
        grown = backend.memory_allocated() - before
        check(grown >= moved.nbytes, f"a tensor of {moved.nbytes} bytes shows as {grown}")
    used = backend.memory_allocated()  # first: on the CPU the whole process counts, and may grow in between
    check(backend.max_memory_allocated() >= used, "the peak is below the present use")
    summary = backend.get_memory_summary()
    backend.empty_cache()
    return f"{summary['allocated_mb']:.1f} MiB in use"


def ask_the_manager():
    """统一设备管理器"""
    manager, device = get_device_manager(), get_device()
    devices = manager.get_all_devices()
    check(device in devices and devices[-1].type == "cpu", f"{device} or the CPU is missing among {devices}")
    check(manager.get_best_device() == device, f"the best device is {manager.get_best_device()}")
    check(manager.get_backend(device) is manager.get_backend(str(device)), "one device has two backends")
    summary = manager.get_device_summary()
    npus = [each for each in devices if each.type == "npu"]
    counted = (summary["total_devices"], summary["npu_devices"])
    check(counted == (len(devices), len(npus)), f"{counted} counted of {devices}")
    if len(npus) > 1:
        model, batch = nn.Linear(8, 4).to(npus[0]), torch.randn(6, 8, device=npus[0])
        shared = nn.DataParallel(model, device_ids=[each.index for each in npus])(batch)
        check(torch.allclose(shared, model(batch)), "the cards together compute something else than one")
    manager.cleanup_all()
    return f"devices: {len(devices)}, NPUs: {len(npus)}"


def move_between_levels():
    """VGPU Stack NPU支持"""
    device, stack = get_device(), create_vgpu_stack()
    check(torch.device(stack.get_all_stats()[0]["device"]) == device, f"level 0 is not {device}")
    kept = torch.randn(100, 100, device=device)
    check(stack.put("kept", kept) and stack.get("kept") is kept, "a tensor on level 0 is not kept as it is")
    check(stack.get_all_stats()[0]["used_mb"] * MIB == kept.nbytes, "its bytes are not counted")

    levels = [{"capacity_mb": 2, "device": str(device)}, {"capacity_mb": 16, "device": "cpu"}]
    small, originals = VGPUStack({"levels": levels}), [torch.randn(MIB // 8) for _ in range(16)]
    for number, original in enumerate(originals):
        small.put(str(number), original)
    check([each["used_mb"] for each in small.get_all_stats()] == [2, 6], f"{small}: 2 and 6 MiB belong there")
    lower = small.levels[1].get("0")
    check(lower is not None and lower.device.type == "cpu", "the first tensor is not on the CPU")
    for number, original in enumerate(originals):
        found = small.get(str(number))
        check(found is not None, f"tensor {number} is lost")
        check(found.device == device and torch.equal(found.cpu(), original), f"tensor {number} came back changed")
    stats = small.get_stats()
    return f"{stats['demotions']} tensors moved down, {stats['promotions']} up, none lost"


def enable_virtual_blackwell():
    """Virtual Blackwell NPU优化"""
    vb.enable_balanced_mode()
    check(vb.is_enabled() and vb.get_stack() is not None, "it is not enabled")
    config = vb.get_config()
    check(not config["use_fp4"], "FP4 is on in the balanced mode")
    vb.get_stack().put("x", torch.ones(10))
    check(vb.get_stats()["total_tensors"] == 1, "its stack does not count a tensor")
    vb.disable()
    check(not vb.is_enabled() and vb.get_stats() == {}, "it is still enabled")
    return f"active was {', '.join(name for name, on in config.items() if on and name != 'verbose') or 'the stack'}"


def train_a_model():
    """简单模型训练"""
    set_seed(42)
    device = get_device()
    levels = [{"capacity_mb": 0.1, "device": str(device)}, {"capacity_mb": 16, "device": "cpu"}]
    stack = VGPUStack({"levels": levels})
    # the second layer's weights do not fit on level 0: they live on the host, and train there
    model = nn.Sequential(
        nn.Linear(128, 256), nn.ReLU(), VGPUStackLinear(256, 128, stack), nn.ReLU(), nn.Linear(128, 10)
    )
    model.to(device)
    check(model[2].weight.device.type == "cpu", "the second layer is not on the host")
    before = [each.detach().clone() for each in model.parameters()]
    optimiser, criterion = torch.optim.Adam(model.parameters(), lr=1e-3), nn.CrossEntropyLoss()
    x, y = torch.randn(32, 128, device=device), torch.randint(0, 10, (32,), device=device)
    losses = []
    for step in range(5):
        loss = criterion(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        print(f"  Step {step + 1}/5: Loss = {losses[-1]:.4f}")
    check(losses == sorted(losses, reverse=True) and losses[-1] < losses[0], f"the loss does not fall: {losses}")
    changed = [not torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True)]
    check(all(changed), f"weights that do not train: {changed}")
    memory_cleanup()
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {get_memory_info()['ram']['available_gb']:.1f} GiB of RAM left"


STEPS = (
    detect_devices,
    use_the_backend,
    ask_the_manager,
    move_between_levels,
    enable_virtual_blackwell,
    train_a_model,
)


def main():
    passed = 0
    for number, step in enumerate(STEPS, 1):
        try:
            found = step()
        except Exception as error:
            if not isinstance(error, StepError):
                traceback.print_exc()
            print(f"{number}. {step.__doc__}: failed, {type(error).__name__}: {error}")
        else:
            passed += 1
            print(f"{number}. {step.__doc__}: passed, {found}")
    print(f"{passed} of {len(STEPS)} passed")
    return 0 if passed == len(STEPS) else 1


if __name__ == "__main__":
    sys.exit(main())
