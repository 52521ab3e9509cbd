// Counts of what the cards did, in memory that may be mapped from a file of the run. Counted into by all of core and
// torch; read by ../../metrics/counters.py.
//
// After a change of a structure: python scripts/layouts.py, and another last byte of the magic where files of older
// runs would be misread; what is to survive a fork is copied in counters.cpp. Tests:
// tests/sim/simulated/test_counters_file.py, tests/sim/test_counters.py, tests/sim/test_layouts.py.
#pragma once
#include <atomic>
#include <cstdint>

#define TOPROPE_API __attribute__((visibility("default")))

namespace toprope::sim {

constexpr int kMaxCards = 16;
constexpr int kMaxKinds = 2048;
constexpr int kMaxSites = 256;
constexpr int kMaxAssumed = 512;
constexpr int kMaxLacks = 32;
constexpr int kMaxHostSites = 128;

using Counter = std::atomic<uint64_t>;

struct CardCounters {
  Counter physical, capacity, allocated, peak_allocated, reserved, peak_reserved, allocations, oom_retries, ooms,
      kernels;
};

struct Kind {
  char name[48];
  Counter undocumented;  // dtypes it ran with that no document of the vendor mentions; bits are c10::ScalarType
  Counter calls;
};

// A place of the program that copies from the card or waits for it.
struct Site {
  char operation[48];
  char file[144];  // the end of a longer path; see ../torch/sites.cpp for places that are no file
  uint64_t line;
  Counter back, waits;
};

// A place of the program where an operator leaves the card: it runs on the host, also on a real one.
struct HostSite {
  char operation[80];
  char file[144];  // as in Site
  uint64_t line;
  Counter times, bytes_to_host, bytes_back;
};

// A dtype that an operator ran with, of which no document says anything.
struct Assumed {
  uint32_t kind;     // index of the operator
  int16_t position;  // of the first argument that had it; -1 where the documents do not mention the operator
  int16_t dtype;     // c10::ScalarType
};

// Why an operator, or a name of the vendor's API, ended in an error.
enum class Lack : uint32_t {
  kKernel = 1,   // torch has no kernel for the CPU
  kDtype,        // the kernel for the CPU lacks the dtype
  kLayout,       // sparse, nested or quantized tensors
  kRefused,      // the vendor's kernel refuses the dtype
  kByTest,       // a refusal that a test asked for
  kFormat,       // torch_npu refuses an argument that is no dtype: a memory format, a layout ...
  kIndex,        // an index that no element has: the kernel of a card goes wrong
  kName,         // the simulated card, or a facade, does not have the name
  kDimensions,   // the vendor's kernel refuses a tensor with more dimensions than it takes
};

// An error that was raised because of a lack, and may have been caught.
struct LackRecord {
  char name[64];
  Lack lack;
  int32_t dtype;  // c10::ScalarType; -1 where there is none
  Counter times;
  Counter last_ns;  // wall clock
  char text[424];   // of the last such error, from its beginning
};

struct Counters {
  char magic[8];
  uint64_t pid;
  char chip[32];
  char torch_version[32];
  uint64_t flags;  // bit 0: the capacity was set by the user; bit 1: ASCEND_RT_VISIBLE_DEVICES was set; upper 32 bits: exact_events
  char mask[64];   // its value
  uint64_t card_count;
  Counter copies_to_card, bytes_to_card, copies_from_card, bytes_from_card, copies_between, bytes_between;
  Counter synchronisations, operators;
  CardCounters cards[kMaxCards];
  Counter kind_count;
  Kind kinds[kMaxKinds];
  Counter site_events;  // copies from the card and waits; see weight_of
  Counter site_count, assumed_count, lack_count;
  Site sites[kMaxSites];
  Assumed assumed[kMaxAssumed];
  LackRecord lacks[kMaxLacks];
  char torch_npu[64];  // the release of torch_npu that the card stands for
  Counter host_site_count;
  HostSite host_sites[kMaxHostSites];
};

static_assert(sizeof(CardCounters) == 80 && sizeof(Kind) == 64 && sizeof(Site) == 216 && sizeof(Assumed) == 8 &&
              sizeof(LackRecord) == 512 && sizeof(HostSite) == 256);

// Where all figures of this process are kept. Never null.
TOPROPE_API extern Counters* counters;

// Moves the counters to a file. Returns 0 or an errno. A process that is forked later counts for itself, and keeps a
// file of its own in the same folder from its first use of a card on.
TOPROPE_API int keep_counters_in(const char* path);
void count_for_this_process();

// The slot that counts operators of this name; the last slot once all are taken.
TOPROPE_API Kind* kind(const char* name);

// Whether a file behind the counters will be read, so that places of the program are worth looking up.
TOPROPE_API extern std::atomic<bool> wants_sites;

// Has the places of `more` further events looked up before samples are taken. Returns the former `exact_events`.
TOPROPE_API uint64_t look_up(uint64_t more);
// Takes that back with the number that it returned: places are looked up where a file is kept.
TOPROPE_API void look_up_as_before(uint64_t events);

// The entry that counts this place; the last entry once all are taken.
TOPROPE_API Site* site(const char* operation, const char* file, uint64_t line);

// The same for an operator that runs on the host.
TOPROPE_API HostSite* host_site(const char* operation, const char* file, uint64_t line);

TOPROPE_API void note_assumed(const Kind* kind, int position, int dtype);

// Keeps an error that is about to be raised; the oldest entry gives way.
TOPROPE_API void note_lack(Lack lack, const char* name, int dtype, const char* text);

// Looking up the line of the program takes as long as a small operator, so it is done for all of the first events, then
// for one of each 16, which counts as 16. Which one changes from block to block, so that no loop is in step with it.
constexpr uint64_t kEventsOfSample = 16;
TOPROPE_API extern std::atomic<uint64_t> exact_events;  // 256, or more in a rehearsal; the upper half of `flags`
inline uint64_t weight_of(uint64_t event) {
  if (event < exact_events.load(std::memory_order_relaxed)) return 1;
  uint32_t chosen = static_cast<uint32_t>(event / kEventsOfSample) * 2654435769u >> 28;
  return event % kEventsOfSample == chosen ? kEventsOfSample : 0;
}

inline void add(Counter& counter, uint64_t amount = 1) { counter.fetch_add(amount, std::memory_order_relaxed); }

inline void raise_to(Counter& peak, uint64_t value) {
  uint64_t seen = peak.load(std::memory_order_relaxed);
  while (value > seen && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace toprope::sim
