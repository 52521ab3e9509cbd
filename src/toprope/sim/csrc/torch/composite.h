// An operator that is one kernel on the card and is computed by several operators here: recorded as one. Used by
// fallback.cpp and ops_nn.cpp; ../../composites.py does the same for operators that are written in Python.
//
// Tests: tests/sim/simulated/test_timing.py.
#pragma once
#include <memory>
#include <optional>

#include "call.h"

namespace toprope::glue {

class Composite {
 public:
  explicit Composite(const std::string& name) {
    if (!sim::watching(sim::kTracing)) [[likely]] return;
    kind_ = sim::kind(name.c_str());
    counts_ = !sim::is_part();
    signature_.emplace(sim::index_of(kind_));
    sim::in_composite++;
    began_ns_ = sim::now_ns();
  }
  ~Composite() {
    if (!signature_) [[likely]] return;
    sim::in_composite--;
    if (device_ < 0) return;
    sim::write_record({.begin_ns = began_ns_,
                       .end_ns = sim::now_ns(),
                       .address = sim::number_of(signature_->made()),
                       .stream = static_cast<int32_t>(sim::current_stream(device_)),
                       .kind = static_cast<uint16_t>(sim::index_of(kind_)),
                       .act = sim::Act::kComposite,
                       .device = static_cast<int8_t>(device_),
                       .other_device = sim::part_of()});
  }
  Composite(const Composite&) = delete;
  Composite& operator=(const Composite&) = delete;

  explicit operator bool() const { return signature_.has_value(); }  // whether anything is recorded

  void add(sim::Role role, const c10::IValue& value) {
    if (value.isTensor()) {
      add(role, value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) add(role, tensor);
    }
  }
  void add(sim::Role role, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != kNpu || !tensor.has_storage()) return;
    device_ = tensor.device().index();
    add_tensor(*signature_, role, tensor, counts_);
  }
  void computes(uint64_t operations) { signature_->set_operations(operations); }

 private:

  std::optional<sim::SignatureOf> signature_;
  sim::Kind* kind_ = nullptr;
  int device_ = -1;
  bool counts_ = false;  // whether its tensors count as touched: it is no part of another one
  int64_t began_ns_ = 0;
};

}  // namespace toprope::glue
