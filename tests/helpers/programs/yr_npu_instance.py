# The program of the mission in small: an instance that asks for one NPU of any model, and a tensor on it.
import torch
import torch_npu  # noqa: F401
import yr


@yr.instance
class OnNPU:
    def run(self):
        if not torch.npu.is_available():
            return "NPU is not available"
        tensor = torch.randn(3, 3).to(torch.device("npu:0"))
        return f"Tensor device: {tensor.device}, result: \n {tensor}"


if __name__ == "__main__":
    yr.init()
    options = yr.InvokeOptions()
    options.custom_resources = {"NPU/.+/count": 1}
    instance = OnNPU.options(options).invoke()
    print(yr.get(instance.run.invoke()))
    yr.finalize()
