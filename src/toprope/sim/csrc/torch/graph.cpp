// torch.accelerator.Graph on the card: each call goes to a torch.npu.NPUGraph, which is Python. ../../npu/graphs.py
// answers the methods by the names used here.
//
// Tests: tests/sim/simulated/test_graphs.py.
#include <ATen/core/GraphImplInterface.h>

#include <atomic>
#include <string>

#include "glue.h"

namespace toprope::glue {

std::atomic<bool> capturing{false};

namespace {

// Calls a method of the graph of this number; `out` receives the pool. Not 0: it raised, and `graph_error` has the text.
using CallGraph = int (*)(int64_t graph, const char* method, int64_t first, int64_t second, const char* text, int64_t* out);

std::atomic<CallGraph> call_graph{nullptr};
std::atomic<int64_t> graphs_made{0};
thread_local std::string graph_error;

class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs& arguments) : number_(++graphs_made) { keep_graph_ = arguments.keep_graph; }
  ~Graph() override {
    if (CallGraph call = call_graph.load()) call(number_, "drop", 0, 0, "", nullptr);
  }
  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode mode) override {
    constexpr const char* kModes[] = {"global", "global", "thread_local", "relaxed"};
    call("capture_begin", static_cast<int64_t>(pool.first), static_cast<int64_t>(pool.second), kModes[static_cast<int>(mode)]);
  }
  void capture_end() override { call("capture_end"); }
  void instantiate() override {}
  void replay() override { call("replay"); }
  void reset() override { call("reset"); }
  at::MempoolId_t pool() const override {
    int64_t id[2] = {0, 0};
    call("pool", 0, 0, "", id);
    return {static_cast<c10::CaptureId_t>(id[0]), static_cast<c10::CaptureId_t>(id[1])};
  }
  void enable_debug_mode() override { call("enable_debug_mode"); }
  void debug_dump(const std::string& path) override { call("debug_dump", 0, 0, path.c_str()); }

 private:
  void call(const char* method, int64_t first = 0, int64_t second = 0, const char* text = "", int64_t* out = nullptr) const {
    CallGraph call = call_graph.load();
    TORCH_CHECK(call != nullptr, "The simulated card's graphs need Python, which has ended.");
    TORCH_CHECK(call(number_, method, first, second, text, out) == 0, graph_error);
  }
  int64_t number_;
  bool keep_graph_ = false;
};

}  // namespace
}  // namespace toprope::glue

namespace at {
REGISTER_GRAPH_IMPL(NPU, toprope::glue::Graph);
}

extern "C" TOPROPE_API void tsg_set_graph_calls(toprope::glue::CallGraph call) { toprope::glue::call_graph = call; }
extern "C" TOPROPE_API void tsg_set_capturing(int on) { toprope::glue::capturing = on != 0; }
extern "C" TOPROPE_API void tsg_graph_error(const char* text) { toprope::glue::graph_error = text; }
