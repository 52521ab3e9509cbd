// State of the core scheduler, for kernels.cpp and deadlock.cpp: which kernel holds which cores, and which waits.
//
// Tests: tests/sim/simulated/test_kernels.py and test_kernels_alone.py.
#pragma once
#include <algorithm>
#include <climits>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels.h"
#include "stream.h"

namespace toprope::sim {

constexpr int kCubeTimeout = 507014;
constexpr int kVectorTimeout = 507034;

inline bool fits(const Cores& need, const Cores& idle) { return need[kCube] <= idle[kCube] && need[kVector] <= idle[kVector]; }

inline void add(Cores& to, const Cores& other, int times = 1) {
  for (int core = 0; core < kKindsOfCores; core++) to[core] += times * other[core];
}

struct Communicator;

// One collective: its members on the cards of a communicator.
struct Collective {
  std::shared_ptr<Communicator> of;
  uint64_t sequence = 0;
  std::map<int, std::shared_ptr<Kernel>> members;  // by card, those that were launched; null for one that has ended
  size_t ready = 0;   // members that have all of their cores
  size_t ended = 0;   // members whose work is done
  int code = kOk;     // why it can never end
  std::string text;
};

struct Communicator {
  std::string name;
  std::vector<int> cards;  // by rank
  std::map<int, uint64_t> launched;                              // members so far, by card
  std::map<uint64_t, std::shared_ptr<Collective>> under_way = {};  // by sequence

  int rank(int device) const {
    auto found = std::find(cards.begin(), cards.end(), device);
    return found == cards.end() ? -1 : static_cast<int>(found - cards.begin());
  }
};

enum class Stage { kQueued, kWaiting, kReady, kRunning, kFailed };  // in this order

struct Kernel {
  Launch launch;
  Stream* stream = nullptr;
  int device = 0;
  int blocks = 1;  // in all
  int needed = 1;  // at the same time
  Cores block;     // cores of one
  int held = 0;    // blocks
  Stage stage = Stage::kQueued;
  uint64_t ticket = 0;  // when it began to wait for cores
  int code = kOk;       // why it failed
  std::string text;
  std::shared_ptr<Collective> collective;
  std::condition_variable changed;

  Cores held_cores() const { return {{held * block[kCube], held * block[kVector]}}; }
  Cores lacking() const {
    int lacks = std::max(needed - held, 0);
    return {{lacks * block[kCube], lacks * block[kVector]}};
  }
  bool waits() const { return stage == Stage::kWaiting || stage == Stage::kReady; }
  int timeout() const { return launch.cores[kVector] > 0 ? kVectorTimeout : kCubeTimeout; }
};

using KernelPointer = std::shared_ptr<Kernel>;

struct Scheduler {
  std::mutex mutex;
  Discipline discipline = Discipline::kD0b;
  Cores held[kMaxCards];
  std::vector<KernelPointer> waiting[kMaxCards];  // for cores, by ticket
  std::map<uint64_t, KernelPointer> kernels;      // that have not ended, by launch
  std::map<int, std::shared_ptr<Communicator>> communicators;
  uint64_t launches = 0, tickets = 0;
  int made = 0;                                   // communicators so far
  std::atomic<int> waits{0};                      // kernels that wait, for cores or peers

  Cores idle(int device) const {
    Cores left = cores();
    add(left, held[device], -1);
    return left;
  }
};

Scheduler& scheduler();

// Ends the wait of a kernel and of its peers with a failure; the cores that they held are idle then. Lock held. The
// caller hands these cores out.
void fail(Kernel& kernel, int code, const std::string& text);

// Hands out the idle cores of all cards. With the lock held.
void hand_out();

// The kernel for a reader: "NonZero(0)" on card 0; with its stream where the name alone is not clear. Lock held.
std::string label(const Kernel& kernel);

// What a kernel that has not ended waits for, as a reader puts it; empty where it runs. With the lock held.
std::string waits_for(const Kernel& kernel);

// "16 of 48 vector cores", of what a kernel needs at the same time.
std::string holding(const Kernel& kernel);

// With the lock held: fails what can never go on, and says whether there was any.
bool end_deadlock();

}  // namespace toprope::sim
