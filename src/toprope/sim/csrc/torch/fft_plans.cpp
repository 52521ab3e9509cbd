// Plans of Fourier transforms: a card keeps the last used ones (FFTMixCache of op-plugin's FFTCommonOpApi.cpp). Here
// they hold no matrices; only their number shows, in torch.npu.backends.fft_plan_cache (../../npu/_fft_plan_cache.py).
//
// Tests: tests/sim/simulated/test_complex_and_linalg.py.
#include <torch/library.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <tuple>

#include "call.h"

namespace toprope::glue {

namespace {

enum class Mode { kComplex, kFromReal, kFromRealBothSides, kToReal };

using Plan = std::tuple<int64_t, bool, Mode, c10::ScalarType>;  // size, whether forward, mode, dtype of the real part

class Plans {
 public:
  void use(const Plan& plan) {
    std::lock_guard<std::mutex> guard(mutex_);
    plans_.remove(plan);
    plans_.push_back(plan);
    shrink();
  }
  void set_capacity(size_t capacity) {
    std::lock_guard<std::mutex> guard(mutex_);
    capacity_ = capacity;
    shrink();
  }
  size_t capacity() {
    std::lock_guard<std::mutex> guard(mutex_);
    return capacity_;
  }
  size_t size() {
    std::lock_guard<std::mutex> guard(mutex_);
    return plans_.size();
  }
  void clear() {
    std::lock_guard<std::mutex> guard(mutex_);
    plans_.clear();
  }

 private:
  void shrink() {
    while (plans_.size() > capacity_) plans_.pop_front();
  }

  std::mutex mutex_;
  std::list<Plan> plans_;  // in the order of their last use
  size_t capacity_ = 10;   // fftCache(10)
};

Plans plans;

// One plan for each axis of more than one element (FFTc2cKernelNpuOpApi.cpp, "get plan").
void note_plans(const std::string& name, const at::Tensor& self, c10::IntArrayRef axes, int64_t last) {
  const bool from_real = name == "aten::_fft_r2c", to_real = name == "aten::_fft_c2r";
  const bool forward = from_real || (!to_real && last != 0);
  for (size_t i = 0; i < axes.size(); i++) {
    const bool is_last = i + 1 == axes.size();
    Mode mode = Mode::kComplex;
    int64_t size = self.size(axes[i]);
    if (is_last && from_real) mode = last != 0 ? Mode::kFromReal : Mode::kFromRealBothSides;
    if (is_last && to_real) mode = Mode::kToReal, size = last;
    if (self.size(axes[i]) != 1) plans.use({size, forward, mode, c10::toRealValueType(self.scalar_type())});
  }
}

// The last argument is what the operator says of the last axis: one-sided, the size of the result, or forward.
void transform(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = handle.schema();
  const size_t begin = stack->size() - schema.arguments().size();
  const at::Tensor self = (*stack)[begin].toTensor();
  const std::vector<int64_t> axes = (*stack)[begin + 1].toIntVector();
  const c10::IValue& told = (*stack)[begin + 3];
  const int64_t last = told.isBool() ? static_cast<int64_t>(told.toBool()) : told.toInt();
  fallback(handle, keys, stack);
  note_plans(schema.name(), self, axes, last);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"_fft_r2c", "_fft_r2c.out", "_fft_c2r", "_fft_c2r.out", "_fft_c2c", "_fft_c2c.out"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&transform>());
  }
}

}  // namespace

}  // namespace toprope::glue

extern "C" TOPROPE_API int64_t tsg_fft_plans() { return static_cast<int64_t>(toprope::glue::plans.size()); }
extern "C" TOPROPE_API int64_t tsg_most_fft_plans() { return static_cast<int64_t>(toprope::glue::plans.capacity()); }
extern "C" TOPROPE_API void tsg_set_most_fft_plans(int64_t count) { toprope::glue::plans.set_capacity(static_cast<size_t>(count)); }
extern "C" TOPROPE_API void tsg_forget_fft_plans() { toprope::glue::plans.clear(); }
