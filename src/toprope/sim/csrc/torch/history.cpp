// The history of the allocator with the places in the program, for torch.npu.memory._snapshot(). ../../npu/history.py
// reads the JSON that is written here.
//
// Tests: tests/sim/simulated/test_memory_history.py.
#include <torch/csrc/profiler/combined_traceback.h>

#include <sstream>
#include <unordered_map>

#include "../core/cards.h"
#include "../core/memory.h"
#include "glue.h"

namespace toprope::glue {

namespace {

bool with_cpp = false;

sim::Context gather() { return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, with_cpp); }

void write_text(std::ostream& out, const std::string& text) {
  out << '"';
  for (char letter : text) {
    if (letter == '"' || letter == '\\') {
      out << '\\' << letter;
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      out << ' ';
    } else {
      out << letter;
    }
  }
  out << '"';
}

// Tracebacks by number, each of them symbolised once.
class Tracebacks {
 public:
  int64_t number(const sim::Context& context) {
    if (!context) return -1;
    auto* traceback = static_cast<torch::CapturedTraceback*>(context.get());
    auto [found, is_new] = numbers_.try_emplace(traceback, static_cast<int64_t>(kept_.size()));
    if (is_new) {
      kept_.push_back(context);
      all_.push_back(traceback);
    }
    return found->second;
  }
  void write(std::ostream& out) {
    torch::SymbolizedTracebacks found = torch::symbolize(all_);
    out << "\"frames\":[";
    for (size_t i = 0; i < found.all_frames.size(); i++) {
      const auto& frame = found.all_frames[i];
      out << (i ? "," : "") << '[';
      write_text(out, frame.filename);
      out << ',' << frame.lineno << ',';
      write_text(out, frame.funcname);
      out << ']';
    }
    out << "],\"tracebacks\":[";
    for (size_t i = 0; i < found.tracebacks.size(); i++) {
      out << (i ? ",[" : "[");
      for (size_t j = 0; j < found.tracebacks[i].size(); j++) out << (j ? "," : "") << found.tracebacks[i][j];
      out << ']';
    }
    out << ']';
  }

 private:
  std::unordered_map<torch::CapturedTraceback*, int64_t> numbers_;
  std::vector<sim::Context> kept_;
  std::vector<torch::CapturedTraceback*> all_;
};

}  // namespace
}  // namespace toprope::glue

// Records up to `room` events of every card; none with 0. Places: 0 none, 1 Python's frames, 2 those of C++ too.
extern "C" TOPROPE_API void tsg_record_history(uint64_t room, int places) {
  using namespace toprope;
  glue::with_cpp = places > 1;
  sim::record_history(room, places > 0 ? &glue::gather : nullptr);
}

// JSON: the events of every card ([what, address, size, stream, pool, microseconds, traceback]), the traceback of the
// blocks at these addresses, tracebacks as lists of numbers of frames, frames as [file, line, function]. It is valid
// until the next call of the same thread.
extern "C" TOPROPE_API const char* tsg_history(const int64_t* blocks, uint64_t count) {
  using namespace toprope;
  static thread_local std::string text;
  std::ostringstream out;
  glue::Tracebacks tracebacks;
  out << "{\"events\":[";
  for (int device = 0; device < sim::device_count(); device++) {
    out << (device ? ",[" : "[");
    bool first = true;
    for (const sim::HistoryEvent& event : sim::history(device)) {
      out << (first ? "[" : ",[") << static_cast<int64_t>(event.what) << ',' << event.address << ',' << event.size << ','
          << event.stream << ',' << event.pool << ',' << event.time_us << ',' << tracebacks.number(event.context) << ']';
      first = false;
    }
    out << ']';
  }
  out << "],\"blocks\":[";
  for (uint64_t i = 0; i < count; i++) {
    out << (i ? "," : "") << tracebacks.number(sim::context_of(reinterpret_cast<const void*>(blocks[i])));
  }
  out << "],";
  tracebacks.write(out);
  out << '}';
  text = out.str();
  return text.c_str();
}
