"""Time a matrix product with events, on the stream that it runs on."""

import torch
import torch_npu

device = torch.device("npu:0")
torch_npu.npu.set_device(device)
a = torch.randn(512, 512, device=device, dtype=torch.float16)
b = torch.randn(512, 512, device=device, dtype=torch.float16)

for _ in range(3):  # the first calls are slower
    a @ b

start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
stream = torch.npu.Stream()
stream.wait_stream(torch.npu.current_stream())
with torch.npu.stream(stream):
    start.record()
    for _ in range(10):
        c = a @ b
    end.record()
end.synchronize()
print(f"10 products: {start.elapsed_time(end) > 0}")
print(f"largest element is finite: {bool(torch.isfinite(c).all())}")
