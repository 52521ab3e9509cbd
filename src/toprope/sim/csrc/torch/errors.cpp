// Errors of the core as the exceptions that torch_npu raises, with the vendor's texts. Called by all of this folder.
//
// Texts of codes come from ../../error_codes.toml. toprope.codes finds these texts in logs: after a change of one, its
// family there must still match. Tests: tests/sim/simulated/test_out_of_memory.py, test_refused_dtypes.py and
// test_argument_checks.py.
#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <string>

#include "glue.h"

namespace toprope::glue {

namespace {

std::mutex mutex;

std::map<int, std::string>& texts() {
  static auto* all = new std::map<int, std::string>();
  return *all;
}

std::map<std::pair<const sim::Kind*, int>, std::string>& refusals() {
  static auto* all = new std::map<std::pair<const sim::Kind*, int>, std::string>();
  return *all;
}

std::string text_of(int status) {
  std::lock_guard<std::mutex> guard(mutex);
  auto found = texts().find(status);
  return found == texts().end() ? "Unknown error." : found->second;
}

std::string date(bool with_microseconds = false) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  localtime_r(&now.tv_sec, &parts);
  char text[48];
  size_t length = strftime(text, sizeof text, "%Y-%m-%d-%H:%M:%S", &parts);
  if (with_microseconds) {
    long micro = now.tv_nsec / 1000;
    snprintf(text + length, sizeof text - length, ".%03ld.%03ld", micro / 1000, micro % 1000);
  }
  return text;
}

std::string binary_size(uint64_t bytes) {
  char text[48];
  if (bytes >= (uint64_t{1} << 30)) {
    snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  } else if (bytes >= (1 << 20)) {
    snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  } else if (bytes >= (1 << 10)) {
    snprintf(text, sizeof text, "%.2f KiB", static_cast<double>(bytes) / (1 << 10));
  } else {
    snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
  }
  return text;
}

}  // namespace

// "[ERROR] 2025-04-10-11:26:58 (PID:1828121, Device:0, RankID:-1) ERR00100 PTA call acl api failed", as torch_npu
// ends its messages.
std::string trailer(const char* code) {
  const char* rank = getenv("RANK");
  return c10::str("\n[ERROR] ", date(), " (PID:", getpid(), ", Device:", sim::current_device(),
                  ", RankID:", rank != nullptr ? rank : "-1", ") ", code);
}

void raise_status(int status, const char* function, const char* call) {
  std::string more = sim::told_failure(status);
  TORCH_CHECK(false, function, ": NPU function error: ", call, ", error code is ", status,
              trailer("ERR00100 PTA call acl api failed"), "\n[Error]: ", text_of(status), more.empty() ? "" : "\n",
              more);
}

void raise_out_of_memory(int device, size_t bytes, const sim::Shortage& shortage) {
  note_shortage(device, bytes);
  uint64_t free = shortage.capacity - std::min(shortage.capacity, shortage.taken);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", binary_size(std::max<uint64_t>(bytes, shortage.wanted)), " (NPU ",
                   device, "; ", binary_size(shortage.capacity), " total capacity; ", binary_size(shortage.allocated),
                   " already allocated; ", binary_size(shortage.allocated), " current active; ", binary_size(free),
                   " free; ",
                   shortage.allowed > 0 ? binary_size(shortage.allowed) + " allowed; " : "", binary_size(shortage.reserved),
                   " reserved in total by PyTorch) If reserved memory is >> allocated memory try setting"
                   " max_split_size_mb to avoid fragmentation.");
}

void raise_host_out_of_memory(int device, size_t bytes, size_t left) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", binary_size(bytes), " (NPU ", device,
                   "; the host that simulates it has ", binary_size(left), " left).");
}

namespace {

[[noreturn]] void raise_by_kernel(sim::Lack lack, const sim::Kind* kind, const sim::Rules& rules, int dtype,
                                  const std::string& sentence) {
  std::string function = kind->name;
  if (size_t place = function.find("::"); place != std::string::npos) function.erase(0, place + 2);
  std::string text = c10::str(function, ": NPU function error: call ", rules.kernel, " failed, error code is 161002",
                              trailer("ERR00100 PTA call acl api failed."), "\n[PID: ", getpid(), "] ", date(true),
                              " AclNN_Parameter_Error(EZ1001): ", sentence);
  sim::note_lack(lack, kind->name, dtype, text.c_str());
  TORCH_CHECK(false, text);
}

}  // namespace

void raise_undocumented(const sim::Kind* kind, const sim::Rules& rules, int position, int dtype) {
  std::string sentence = rules.sentence[position];
  if (size_t place = sentence.find('\x01'); place != std::string::npos) {
    sentence.replace(place, 1, sim::vendor_dtype(dtype));
  }
  raise_by_kernel(sim::Lack::kRefused, kind, rules, dtype, sentence);
}

void raise_too_many_dimensions(const sim::Kind* kind, const sim::Rules& rules, int position) {
  raise_by_kernel(sim::Lack::kDimensions, kind, rules, -1, rules.larger[position]);
}

void raise_lack(sim::Lack lack, const std::string& name, int dtype, const std::string& text) {
  sim::note_lack(lack, name.c_str(), dtype, text.c_str());
  TORCH_CHECK_NOT_IMPLEMENTED(false, text);
}

void raise_refused(const sim::Kind* kind, int dtype) {
  std::string text;
  {
    std::lock_guard<std::mutex> guard(mutex);
    text = refusals()[{kind, dtype}];
  }
  sim::note_lack(sim::Lack::kByTest, kind->name, dtype, text.c_str());
  TORCH_CHECK(false, text, trailer("ERR01100 OPS call acl api failed"));
}

void raise_coded(const std::string& text, const char* code) { TORCH_CHECK(false, text, trailer(code)); }

bool warn(const char* text, const char* function) {
  for (const char* name : {"TORCH_NPU_WARNING_DISABLE", "TORCH_NPU_DISABLED_WARNING"}) {
    if (const char* off = getenv(name); off != nullptr && strtol(off, nullptr, 10) == 1) return false;
  }
  if (const char* rank = getenv("RANK"); rank != nullptr && strtol(rank, nullptr, 10) > 0) return false;
  c10::WarningHandler().process(c10::Warning(c10::UserWarning(), {function, "torch_npu", 0}, text, false));
  return true;
}

void raise_unsupported(const std::string& name, const std::string& text) {
  sim::note_lack(sim::Lack::kFormat, name.c_str(), -1, text.c_str());
  raise_coded(text, "ERR01007 OPS feature not supported");
}

void raise_forked() {
  TORCH_CHECK(false,
              "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the"
              " 'spawn' start method");
}

}  // namespace toprope::glue

extern "C" TOPROPE_API void tsg_set_error_text(int status, const char* text) {
  std::lock_guard<std::mutex> guard(toprope::glue::mutex);
  toprope::glue::texts()[status] = text;
}

// The text with which the chip refuses an operator for a dtype (a c10::ScalarType).
extern "C" TOPROPE_API void tsg_set_refusal(const char* name, int dtype, const char* text) {
  const toprope::sim::Kind* kind = toprope::sim::kind(name);
  std::lock_guard<std::mutex> guard(toprope::glue::mutex);
  toprope::glue::refusals()[{kind, dtype}] = text;
}
