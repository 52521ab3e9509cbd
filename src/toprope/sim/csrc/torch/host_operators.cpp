// Reading of the operators that run on the host, and torch_npu's warnings about them; see host_operators.h.
//
// Tests: tests/sim/simulated/test_operators_on_host.py.
#include "host_operators.h"

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "glue.h"

namespace toprope::glue {

namespace {

std::mutex host_operators_mutex;
bool refuses = false;  // TORCH_NPU_FALLBACK_CPU_DISABLE=1, in a release that knows it

std::unordered_map<std::string, HostOperator*>& host_operators() {
  static auto* all = new std::unordered_map<std::string, HostOperator*>();
  return *all;
}

// Namespaces whose operators torch_npu, torch or toprope brings for the card itself.
bool is_for_card(const std::string& space) {
  static const std::unordered_set<std::string> known = {"aten", "npu",      "atb",   "c10d",     "_c10d_functional",
                                                        "prim", "prims",    "air",   "toprope",  "torchair",
                                                        "debugprims", "profiler", "higher_order", "inductor"};
  return known.count(space) > 0;
}

}  // namespace

HostOperator* host_operator(const std::string& full) {
  std::lock_guard<std::mutex> guard(host_operators_mutex);
  auto& all = host_operators();
  if (auto found = all.find(full); found != all.end()) return found->second;
  if (all.empty() || is_for_card(full.substr(0, full.find("::")))) return nullptr;
  auto* added = new HostOperator();
  added->name = full;
  return all[full] = added;
}

namespace {

void refuse_where_asked(const std::string& name, const char* through) {
  if (!refuses) return;
  raise_unsupported(name, c10::str("The operator '", name, "' would execute its main computation on CPU through ", through,
                                   ", but CPU fallback is disabled by TORCH_NPU_FALLBACK_CPU_DISABLE=1."));
}

}  // namespace

void announce_host_operator(HostOperator& op) {
  refuse_where_asked(op.name, op.registered ? "explicit CPU kernel"
                                            : "dispatcher backend fallback because no kernel is registered for the NPU "
                                              "PrivateUse1 backend");
  if (op.registered || op.warned.exchange(true, std::memory_order_relaxed)) return;
  warn(c10::str("CAUTION: The operator '", op.name,
                "' is not currently supported on the NPU backend and will fall back to run on the CPU. This may have "
                "performance implications.")
           .c_str(),
       "npu_cpu_fallback");
}

void announce_compressed_on_host(const std::string& full) {
  static std::unordered_set<std::string> warned;
  refuse_where_asked(full, "explicit CPU kernel because torch_npu currently provides only a CPU implementation for this "
                           "Sparse CSR reduction");
  {
    std::lock_guard<std::mutex> guard(host_operators_mutex);
    if (!warned.insert(full).second) return;
  }
  warn(c10::str("CPU fallback is allowed because TORCH_NPU_FALLBACK_CPU_DISABLE=0. Since the NPU interface does not support "
                "operator '",
                full, "', the operator will fall back to CPU.")
           .c_str(),
       "npu_cpu_fallback");
}

}  // namespace toprope::glue

// Reads the operators that run on the host; `refuse` says whether they are refused. Returns 0 or an errno. Only before
// operators run.
extern "C" TOPROPE_API int tsg_load_host_operators(const char* path, int refuse) {
  using namespace toprope::glue;
  std::ifstream file(path);
  if (!file) return errno != 0 ? errno : ENOENT;
  refuses = refuse != 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string full, dtypes, registered;
    auto op = std::make_unique<HostOperator>();
    std::getline(line, full, '\t');
    std::getline(line, op->name, '\t');
    std::getline(line, dtypes, '\t');
    std::getline(line, registered, '\t');
    op->dtypes = strtoull(dtypes.c_str(), nullptr, 16);
    op->registered = registered == "1";
    host_operators()[full] = op.release();
  }
  return 0;
}
