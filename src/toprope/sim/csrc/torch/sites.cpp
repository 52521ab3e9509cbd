// Which line of the program copies from the card or waits for it: asked of Python, while a report will be made.
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

struct Instruction {
  const char* operation;  // by address: the texts are constants, or names of the counters
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
std::unordered_map<const void*, bool>& passed_codes() {
  static auto* all = new std::unordered_map<const void*, bool>();
  return *all;
}
template <class Entry>
std::unordered_map<Instruction, Entry*, HashOfInstruction>& known_sites() {
  static auto* all = new std::unordered_map<Instruction, Entry*, HashOfInstruction>();
  return *all;
}

std::string file_of(const Interpreter& python, void* code) {
  void* name = python.attribute_of(code, "co_filename");
  if (name == nullptr) return "";
  const char* text = python.text_of(name);
  std::string file = text == nullptr ? "" : text;
  python.drop(name);
  return file;
}

bool is_passed_over(const Interpreter& python, void* code) {
  auto found = passed_codes().find(code);
  if (found != passed_codes().end()) [[likely]] return found->second;
  std::string file = file_of(python, code);
  bool passed = file.empty() || file.rfind("<frozen", 0) == 0;
  for (const std::string& folder : passed_folders()) passed |= file.rfind(folder, 0) == 0;
  if (passed_codes().size() < kMaxCodes) {
    python.keep(code);
    passed_codes().emplace(code, passed);
  }
  return passed;
}

// The counters' entry of a place: `make` gives it for an operation, a file and a line.
template <class Entry>
using Make = Entry* (*)(const char*, const char*, uint64_t);

template <class Entry>
Entry* site_of(const Interpreter& python, Make<Entry> make, const char* operation, void* frame, void* code) {
  Instruction instruction{operation, code, python.instruction_of(frame)};
  auto found = known_sites<Entry>().find(instruction);
  if (found != known_sites<Entry>().end()) [[likely]] return found->second;
  std::string file = file_of(python, code);
  Entry* site = make(operation, file.c_str(), static_cast<uint64_t>(std::max(python.line_of(frame), 0)));
  // A code that is not kept may be followed by another at its address.
  if (passed_codes().count(code) > 0) known_sites<Entry>().emplace(instruction, site);
  return site;
}

// The place in the innermost frame that is the program's; null where no frame is. With Python's lock.
template <class Entry>
Entry* site_in_python(const Interpreter& python, Make<Entry> make, const char* operation) {
  void* frame = python.current_frame();
  if (frame == nullptr) return nullptr;
  python.keep(frame);
  Entry* site = nullptr;
  for (int depth = 0; frame != nullptr; depth++) {
    void* code = python.code_of(frame);
    void* caller = nullptr;
    if (depth < kMaxFrames && is_passed_over(python, code)) caller = python.caller_of(frame);
    if (caller == nullptr) site = site_of(python, make, operation, frame, code);
    python.drop(code);
    python.drop(frame);
    frame = caller;
  }
  return site;
}

bool is_backward_thread() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return std::string_view(name).rfind("pt_autograd_", 0) == 0;
}

template <class Entry>
Entry* find_site(Make<Entry> make, const char* operation) {
  const Interpreter& python = interpreter();
  if (python.is_complete && python.is_initialised() && python.state_of_thread() != nullptr) {
    // torch has given the lock back before it calls an operator.
    bool held = python.holds_lock();
    int state = held ? 0 : python.take_lock();
    Entry* site = site_in_python(python, make, operation);
    if (!held) python.give_lock(state);
    if (site != nullptr) return site;
  }
  return make(operation, is_backward_thread() ? "<backward>" : "<no Python>", 0);
}

}  // namespace

// The entry of the place where the program is now; null while it may not be asked.
template <class Entry>
Entry* site_now(Make<Entry> make, const char* operation) {
  static thread_local bool busy = false;  // Python may collect garbage meanwhile, and run whatever that ends
  if (busy || stopped) return nullptr;
  busy = true;
  Entry* site = find_site(make, operation);
  busy = false;
  return site;
}

void count_site(const char* operation, bool back, bool waits, uint64_t weight) {
  sim::Site* site = site_now(&sim::site, operation);
  if (site == nullptr) return;
  if (back) sim::add(site->back, weight);
  if (waits) sim::add(site->waits, weight);
}

void count_on_host(const HostOperator& op, uint64_t bytes_to_host, uint64_t bytes_back) {
  if (!sim::wants_sites.load(std::memory_order_relaxed)) return;
  sim::HostSite* site = site_now(&sim::host_site, op.name.c_str());
  if (site == nullptr) return;
  sim::add(site->times);
  sim::add(site->bytes_to_host, bytes_to_host);
  sim::add(site->bytes_back, bytes_back);
}

}  // namespace toprope::glue

// Frames of Python files below this folder (which ends in a slash) are not taken for the program's.
extern "C" TOPROPE_API void tsg_pass_over(const char* folder) {
  toprope::glue::passed_folders().emplace_back(folder);
}

// Python is about to end, and must not be asked any more.
extern "C" TOPROPE_API void tsg_stop_sites() { toprope::glue::stopped = true; }
