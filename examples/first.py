import torch
import torch_npu  # noqa: F401  makes the device "npu" known

torch.manual_seed(0)
inputs, labels = torch.randn(256, 512).npu(), torch.randint(10, (256,)).npu()
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 10)).npu()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() < 0.1:
        print(f"loss {loss.item():.2f} after {step + 1} steps")
        break
