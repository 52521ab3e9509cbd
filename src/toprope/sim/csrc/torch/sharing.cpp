// Tensors over device memory of another process, for ../../sharing.py and the edges of toprope.flow; and a fact of
// reductions between processes that Python cannot read, for ../../distributed/kernels.py.
//
// Tests: tests/sim/simulated/test_sharing.py, tests/sim/test_distributed.py.
#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cerrno>
#include <cstring>

#include "../core/sharing.h"
#include "glue.h"

namespace toprope::glue {

namespace {

struct Foreign {
  int device;
  void* data;
};

void let_go(void* context) {
  auto* foreign = static_cast<Foreign*>(context);
  sim::let_go(foreign->device, foreign->data);
  delete foreign;
}

// All bytes of one block, as a flat tensor; the caller makes the tensor of the sender from its storage.
at::Tensor map_share(int64_t device, int64_t file, int64_t piece_bytes, int64_t offset, int64_t bytes) {
  int index = device_index(npu(static_cast<int>(device)));
  sim::Share share{static_cast<int>(file), static_cast<uint64_t>(piece_bytes), static_cast<uint64_t>(offset)};
  void* data = sim::map_share(index, share);
  TORCH_CHECK(data != nullptr, "Device memory of another process cannot be mapped: ", strerror(errno));
  c10::DataPtr held(data, new Foreign{index, data}, &let_go, npu(index));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      make_storage(std::move(held), static_cast<size_t>(bytes)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(c10::ScalarType::Byte));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({bytes});
  return tensor;
}

}  // namespace

// What PREMUL_SUM multiplies by: a number, or a tensor where it is made with one.
std::tuple<double, std::optional<at::Tensor>> premul_factor(const c10::intrusive_ptr<c10d::ReduceOp>& operation) {
  auto* known = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(operation->supplement_.get());
  TORCH_CHECK(known != nullptr, "this ReduceOp has no factor");
  return {known->double_factor, known->tensor_factor.defined() ? std::optional(known->tensor_factor) : std::nullopt};
}

TORCH_LIBRARY_FRAGMENT(toprope_sim, m) {
  m.def("premul_factor(__torch__.torch.classes.c10d.ReduceOp operation) -> (float, Tensor?)", &premul_factor);
  m.def("map_share(int device, int file, int piece_bytes, int offset, int bytes) -> Tensor", &map_share);
}

}  // namespace toprope::glue
