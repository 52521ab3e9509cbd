// Marks on autograd's nodes that record the gradient of a composite operator as one; see composite_gradient.h.
//
// Tests: tests/sim/simulated/test_timing.py.
#include "composite_gradient.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <unordered_set>

#include "../core/stream.h"
#include "../core/trace.h"
#include "glue.h"

namespace toprope::glue {

namespace {

using torch::autograd::Node;

// What all nodes of one gradient share.
class Gradient {
 public:
  Gradient(sim::Kind* kind, int device, const sim::Signature& signature)
      : kind_(kind), device_(device), signature_(signature) {}

  // Records it at its first node in a backward pass.
  void begin() {
    const int pass = torch::autograd::get_current_graph_task_id();
    if (recorded_in_.exchange(pass) == pass || !sim::watching(sim::kTracing)) return;
    const int64_t now = sim::now_ns();
    sim::write_record({.begin_ns = now,
                       .end_ns = now,
                       .address = sim::number_of(signature_),
                       .stream = static_cast<int32_t>(sim::current_stream(device_)),
                       .kind = static_cast<uint16_t>(sim::index_of(kind_)),
                       .act = sim::Act::kComposite,
                       .device = static_cast<int8_t>(device_),
                       .other_device = sim::part_of()});
  }

 private:
  sim::Kind* kind_;
  int device_;
  sim::Signature signature_;
  std::atomic<int> recorded_in_{-1};
};

thread_local bool is_beginning = false;

// Marks a node as a part of a gradient.
struct Part : torch::autograd::FunctionPreHook {
  explicit Part(std::shared_ptr<Gradient> of) : of(std::move(of)) {}
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& grads) override {
    is_beginning = true;  // the record itself is no part
    of->begin();
    is_beginning = false;
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}  // a compiled pass has no parts
  std::shared_ptr<Gradient> of;
};

bool in_part() {
  if (is_beginning) return false;
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return false;
  for (const auto& hook : node->pre_hooks()) {
    if (dynamic_cast<const Part*>(hook.get()) != nullptr) return true;
  }
  return false;
}

[[maybe_unused]] const bool asked = [] {
  sim::in_part_of_gradient = &in_part;
  return true;
}();

// An operator of Python, which gives its tensors as `ts_end_composite` takes them.
void record_gradient_of(const std::vector<at::Tensor>& results, int64_t first, std::string name, int64_t device,
                        int64_t operations, const std::vector<int64_t>& tensors) {
  sim::SignatureOf made(sim::index_of(sim::kind(name.c_str())));
  made.set_operations(static_cast<uint64_t>(operations));
  for (size_t i = 0; i + 4 < tensors.size(); i += 5 + tensors[i + 4]) {
    made.add(static_cast<sim::Role>(tensors[i]), static_cast<int>(tensors[i + 1]), static_cast<uint8_t>(tensors[i + 2]),
             static_cast<uint64_t>(tensors[i + 3]), tensors.data() + i + 5, tensors[i + 4]);
  }
  record_gradient(results, static_cast<uint64_t>(first), name, static_cast<int>(device), made.made());
}

}  // namespace

void record_gradient(const std::vector<at::Tensor>& results, uint64_t first, const std::string& name, int device,
                     const sim::Signature& signature) {
  auto gradient = std::make_shared<Gradient>(sim::kind(name.c_str()), device, signature);
  const uint64_t thread = at::RecordFunction::currentThreadId();
  std::unordered_set<Node*> seen;
  std::vector<Node*> left;
  for (const at::Tensor& each : results) {
    if (each.defined() && each.grad_fn()) left.push_back(each.grad_fn().get());
  }
  while (!left.empty()) {
    Node* node = left.back();
    left.pop_back();
    // Numbers are counted for each thread; the node of a leaf has the highest.
    const bool is_own = node->sequence_nr() >= first && node->sequence_nr() != UINT64_MAX && node->thread_id() == thread;
    if (!is_own || !seen.insert(node).second) continue;
    node->add_pre_hook(std::make_unique<Part>(gradient));
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.function != nullptr) left.push_back(edge.function.get());
    }
  }
}

}  // namespace toprope::glue

TORCH_LIBRARY_FRAGMENT(toprope_sim, m) {
  m.def("record_gradient(Tensor[] results, int first, str name, int device, int operations, int[] tensors) -> ()",
        &toprope::glue::record_gradient_of);
}
