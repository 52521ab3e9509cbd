// Line of the program that copies from the card or waits for it, or that a block of memory is taken for: asked of
// Python, while a report will be made. Which folders are not the program's own is said by ../../run_record.py.
//
// ../../rehearsal/facts.py knows the text kScalerOperation, ../../metrics/counters.py the names of places without a
// file. Tests: tests/sim/simulated/test_rehearsal.py and test_operators_on_host.py.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "glue.h"
#include "host_operators.h"

namespace toprope::glue {

namespace {

constexpr int kMaxFrames = 200;
constexpr size_t kMaxCodes = 4096;  // each is kept for good, so that its address stays its own

// The folders of packages whose frames are passed over. Written before operators run.
std::vector<std::string>& passed_folders() {
  static auto* all = new std::vector<std::string>();
  return *all;
}

std::atomic<bool> stopped{false};

// Python's functions, found where the process has them: this library is not linked with Python.
struct Interpreter {
  int (*is_initialised)();
  int (*holds_lock)();
  void* (*state_of_thread)();
  int (*take_lock)();
  void (*give_lock)(int);
  void* (*current_frame)();  // borrowed
  void* (*code_of)(void*);
  void* (*caller_of)(void*);
  int (*instruction_of)(void*);
  int (*line_of)(void*);
  void* (*attribute_of)(void*, const char*);
  const char* (*text_of)(void*);
  void (*keep)(void*);
  void (*drop)(void*);
  bool is_complete = true;

  Interpreter() {
    find(is_initialised, "Py_IsInitialized");
    find(holds_lock, "PyGILState_Check");
    find(state_of_thread, "PyGILState_GetThisThreadState");
    find(take_lock, "PyGILState_Ensure");
    find(give_lock, "PyGILState_Release");
    find(current_frame, "PyEval_GetFrame");
    find(code_of, "PyFrame_GetCode");
    find(caller_of, "PyFrame_GetBack");
    find(instruction_of, "PyFrame_GetLasti");
    find(line_of, "PyFrame_GetLineNumber");
    find(attribute_of, "PyObject_GetAttrString");
    find(text_of, "PyUnicode_AsUTF8");
    find(keep, "Py_IncRef");
    find(drop, "Py_DecRef");
  }

 private:
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
    is_complete &= function != nullptr;
  }
};

const Interpreter& interpreter() {
  static const Interpreter one;
  return one;
}

// How a code's frames are taken: as the program's, as a library's, or as those of torch's gradient scaler.
enum class Code { kProgram, kPassed, kScaler };

// The gradient scaler (torch's, or torch_npu's) asks the card for overflows in every step; a program that uses one
// cannot leave that out.
constexpr char kScalerFile[] = "/amp/grad_scaler.py";
constexpr char kScalerOperation[] = "the gradient scaler's look for overflows";

struct Instruction {
  const char* operation;  // by address: the texts are constants, or names of the counters; null for a line alone
  const void* code;
  int place;
  bool operator==(const Instruction&) const = default;
};

struct HashOfInstruction {
  size_t operator()(const Instruction& it) const {
    return (reinterpret_cast<size_t>(it.code) >> 4) * 31 + static_cast<size_t>(it.place) * 131 +
           reinterpret_cast<size_t>(it.operation);
  }
};

// Both are only touched with Python's lock, and Python is not called meanwhile.
std::unordered_map<const void*, Code>& known_codes() {
  static auto* all = new std::unordered_map<const void*, Code>();
  return *all;
}
// An entry of the counters, or the number of a line.
union Found {
  sim::Site* site;
  sim::HostSite* on_host;
  uint64_t line;
};

std::unordered_map<Instruction, Found, HashOfInstruction>& known_places() {
  static auto* all = new std::unordered_map<Instruction, Found, HashOfInstruction>();
  return *all;
}

// Gives the entry of an operation, a file and a line.
using Register = Found (*)(const char*, const char*, uint64_t);

Found register_event(const char* operation, const char* file, uint64_t line) {
  return {.site = sim::site(operation, file, line)};
}
Found register_on_host(const char* operation, const char* file, uint64_t line) {
  return {.on_host = sim::host_site(operation, file, line)};
}
Found register_line(const char*, const char* file, uint64_t line) { return {.line = sim::line_number(file, line)}; }

std::string file_of(const Interpreter& python, void* code) {
  void* name = python.attribute_of(code, "co_filename");
  if (name == nullptr) return "";
  const char* text = python.text_of(name);
  std::string file = text == nullptr ? "" : text;
  python.drop(name);
  return file;
}

Code code_kind(const Interpreter& python, void* code) {
  auto found = known_codes().find(code);
  if (found != known_codes().end()) [[likely]] return found->second;
  std::string file = file_of(python, code);
  bool passed = file.empty() || file.rfind("<frozen", 0) == 0;
  for (const std::string& folder : passed_folders()) passed |= file.rfind(folder, 0) == 0;
  Code kind = !passed ? Code::kProgram : file.ends_with(kScalerFile) ? Code::kScaler : Code::kPassed;
  if (known_codes().size() < kMaxCodes) {
    python.keep(code);
    known_codes().emplace(code, kind);
  }
  return kind;
}

Found place_of(const Interpreter& python, Register entry, const char* operation, void* frame, void* code) {
  Instruction instruction{operation, code, python.instruction_of(frame)};
  auto found = known_places().find(instruction);
  if (found != known_places().end()) [[likely]] return found->second;
  std::string file = file_of(python, code);
  Found place = entry(operation, file.c_str(), static_cast<uint64_t>(std::max(python.line_of(frame), 0)));
  // A code that is not kept may be followed by another at its address.
  if (known_codes().count(code) > 0) known_places().emplace(instruction, place);
  return place;
}

// The place in the innermost frame that is the program's; false where no frame is. With Python's lock.
bool place_in_python(const Interpreter& python, Register entry, const char* operation, Found& place) {
  void* frame = python.current_frame();
  if (frame == nullptr) return false;
  python.keep(frame);
  for (int depth = 0; frame != nullptr; depth++) {
    void* code = python.code_of(frame);
    void* caller = nullptr;
    Code kind = depth < kMaxFrames ? code_kind(python, code) : Code::kProgram;
    if (kind == Code::kScaler && entry == &register_event) operation = kScalerOperation;
    if (kind != Code::kProgram) caller = python.caller_of(frame);
    if (caller == nullptr) place = place_of(python, entry, operation, frame, code);
    python.drop(code);
    python.drop(frame);
    frame = caller;
  }
  return true;
}

Found find_place(Register entry, const char* operation) {
  const Interpreter& python = interpreter();
  if (python.is_complete && python.is_initialised() && python.state_of_thread() != nullptr) {
    // torch has given the lock back before it calls an operator.
    bool held = python.holds_lock();
    int state = held ? 0 : python.take_lock();
    Found place{};
    bool found = place_in_python(python, entry, operation, place);
    if (!held) python.give_lock(state);
    if (found) return place;
  }
  return entry(operation, is_backward_thread() ? "<backward>" : "<no Python>", 0);
}

thread_local bool busy = false;  // Python may collect garbage meanwhile, and run whatever that ends

}  // namespace

bool is_backward_thread() {
  static thread_local int known = -1;  // torch names its threads as they begin
  if (known < 0) {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    known = std::string_view(name).rfind("pt_autograd_", 0) == 0;
  }
  return known != 0;
}

// The place where the program is now; false while it may not be asked.
static bool now_at(Register entry, const char* operation, Found& place) {
  if (busy || stopped) return false;
  busy = true;
  place = find_place(entry, operation);
  busy = false;
  return true;
}

uint16_t line_here() {
  Found place{};
  return now_at(&register_line, nullptr, place) ? static_cast<uint16_t>(place.line) : sim::kSmallBlocks;
}

void count_site(const char* operation, bool back, bool waits, uint64_t weight) {
  Found place{};
  if (!now_at(&register_event, operation, place)) return;
  if (back) sim::add(place.site->back, weight);
  if (waits) sim::add(place.site->waits, weight);
  if (weight == 1) sim::note_step_of(place.site);
}

void count_on_host(const HostOperator& op, uint64_t bytes_to_host, uint64_t bytes_back) {
  if (!sim::wants_sites.load(std::memory_order_relaxed)) return;
  Found place{};
  if (!now_at(&register_on_host, op.name.c_str(), place)) return;
  sim::add(place.on_host->times);
  sim::add(place.on_host->bytes_to_host, bytes_to_host);
  sim::add(place.on_host->bytes_back, bytes_back);
}

}  // namespace toprope::glue

// Frames of Python files below this folder (which ends in a slash) are not taken for the program's.
extern "C" TOPROPE_API void tsg_pass_over(const char* folder) {
  toprope::glue::passed_folders().emplace_back(folder);
}

// Python is about to end, and must not be asked any more.
extern "C" TOPROPE_API void tsg_stop_sites() { toprope::glue::stopped = true; }
