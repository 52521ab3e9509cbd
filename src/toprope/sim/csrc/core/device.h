// The simulated machine: its cards, those that the process sees, and the one that a thread has chosen; and the codes
// that the core's functions return. Used by all of core and torch.
//
// Tests: tests/sim/simulated/test_core.py (masks, forks, threads). A new code gets its text in ../../error_codes.toml.
#pragma once
#include <cstddef>
#include <cstdint>

#include "counters.h"

namespace toprope::sim {

// Codes of the vendor's runtime (aclError).
enum Status : int {
  kOk = 0,
  kInvalidParameter = 107000,
  kInvalidDevice = 107001,
  kInvalidStream = 107003,
  kWaitTimeout = 107019,
  kStopped = 107022,
  kOutOfMemory = 207001,
};

struct Machine {
  int cards = 0;             // cards of the machine, before the mask
  uint64_t capacity = 0;     // bytes of device memory of a card
  uint64_t padding = 0;      // bytes added to a request before it is rounded
};

// Describes the machine and reserves the addresses of its cards. A call after first use changes
// nothing and returns kInvalidParameter; kOutOfMemory where the host does not grant the addresses.
TOPROPE_API int configure(const Machine& machine);
TOPROPE_API const Machine& machine();

// Cards that the process sees: what ASCEND_RT_VISIBLE_DEVICES says, until a card is first used; from then on the
// answer never changes.
TOPROPE_API int device_count();
TOPROPE_API bool is_initialised();

// A card is about to be used.
TOPROPE_API void use_cards();

// Number of a card on the machine, -1 for one that is not there.
TOPROPE_API int physical_id(int device);

TOPROPE_API int current_device();
TOPROPE_API int set_device(int device);             // kOk or kInvalidDevice
TOPROPE_API int exchange_device(int device);        // the former device; a negative number changes nothing
inline bool is_device(int device) { return device >= 0 && device < device_count(); }

// Whether this process was forked from one that had already used a card: its streams' threads are gone.
TOPROPE_API bool forked_after_use();

}  // namespace toprope::sim
