// Streams and events. Each stream has a queue and, from its first queued task on, a thread of its own, so that two
// streams of one card make progress independently. Used by all of core and torch.
//
// Numbers of streams are known to ../../npu/_state.py too. Tests: tests/sim/simulated/test_streams.py and
// test_waiting.py; test_stream_kinds.py for the numbers.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"

namespace toprope::sim {

class Stream;
struct Kernel;

// One recording of an event: the place in a stream with which it passes.
struct Mark {
  std::atomic<bool> passed{false};
  std::atomic<Stream*> on{nullptr};   // null where it passed at once
  std::atomic<uint64_t> ticket{0};    // it passes with the end of this task
  std::atomic<bool> failed{false};    // a failure was not reported yet when it passed
};

using MarkPointer = std::shared_ptr<Mark>;

// A task that may have to wait for work of others, as deadlock.cpp sees it. Any other task is taken to come to an end.
struct Station {
  std::shared_ptr<Kernel> kernel;  // it waits for cores, and for its peers
  MarkPointer mark;                // or for an event
  uint64_t ticket = 0;             // its number in the stream
};

class Stream {
 public:
  Stream(int device, int64_t id) : device(device), id(id) {}

  struct Place {
    uint64_t ticket;  // tasks of the stream up to this one
    bool at_head;     // whether nothing is left before it
  };

  // Appends work. A task returns kOk or the code of its failure, which the next wait for the stream reports. `at_end`
  // (an event that passes, say) happens in one step with the task's end, for everyone who waits.
  TOPROPE_API Place push(std::function<int()> task, std::function<void()> at_end = nullptr, Station station = {});

  // Waits for all work queued so far; the code of the first failure since the last wait, else kOk.
  TOPROPE_API int wait();

  // Waits until the task with this ticket is done; false if that takes too long.
  bool wait_until(uint64_t ticket);

  // Keeps a failure of work that has already run, for the next wait; with what there is to say besides its code.
  TOPROPE_API void fail(int code, const std::string& text = "");

  // The code of the first failure since it was last asked for, without waiting. `told_failure` has its text then.
  int take_failure() {
    if (failure_.load(std::memory_order_relaxed) == kOk) [[likely]] return kOk;
    return take_failure_slowly();
  }

  // The code of a failure that was not reported yet, else kOk.
  int failure() const { return failure_.load(std::memory_order_acquire); }

  bool is_idle() const {
    return done.load(std::memory_order_acquire) == submitted.load(std::memory_order_relaxed);
  }

  // Stations that have not ended, in order. To be read with the lock held.
  std::mutex& mutex() { return mutex_; }
  const std::deque<Station>& stations() const { return stations_; }

  const int device;
  const int64_t id;
  std::atomic<uint64_t> submitted{0}, done{0};

 private:
  void run();
  TOPROPE_API int take_failure_slowly();

  std::mutex mutex_;
  std::condition_variable work_, progress_;
  struct Entry {
    std::function<int()> task;
    std::function<void()> at_end;
    bool is_kernel;
  };
  std::deque<Entry> queue_;
  std::deque<Station> stations_;
  bool started_ = false;
  std::mutex failure_mutex_;
  std::atomic<int> failure_{kOk};
  std::string failure_text_;
};

// Details of the last failure with this code that was reported to the calling thread; empty if there are none. The call
// clears them.
TOPROPE_API std::string told_failure(int code);

// Has a task say more of its failure than its code: the calling thread's task, which is about to end with one.
TOPROPE_API void explain_failure(const char* text);

// The number of a stream is made of its kind and its place among them (NPUStream.cpp of torch_npu).
constexpr int64_t kDefaultStream = 0;
constexpr int kPool = 32;            // streams of one priority that a card hands out in turn, as torch's other backends do
constexpr int kSyncLaunchPool = 4;
enum StreamKind { kSyncLaunch = 2, kNormalPriority = 3, kHighPriority = 4, kExternal = 5 };
constexpr int kStreams = (kExternal + 1) * kPool;  // more than the largest number

// Whether there can be a stream of this number: the default one, those of the pools, and those of other libraries.
TOPROPE_API bool is_stream(int64_t id);

// A stream that there can be.
TOPROPE_API Stream& stream(int device, int64_t id);
TOPROPE_API int64_t stream_from_pool(int device, bool high_priority);
TOPROPE_API int64_t current_stream(int device);
TOPROPE_API int64_t exchange_stream(int device, int64_t id);
bool has_chosen_stream(int device);  // whether the calling thread ever chose one

// Every stream that something was done with.
std::vector<Stream*> all_streams();

// Longest wait for a stream or an event, in milliseconds.
TOPROPE_API extern std::atomic<uint32_t> wait_limit_ms;

// Drops the work queued on a card; until it is restarted, everything on it fails with kStopped.
TOPROPE_API void stop_device(int device);
TOPROPE_API void restart_device(int device);
TOPROPE_API int state_of_device(int device);

// Waits for all streams of a card; the code of the first failure, else kOk.
TOPROPE_API int wait_for_device(int device);

struct Event {
  std::mutex mutex;
  std::condition_variable passed;
  MarkPointer last;     // null until it is recorded
  int64_t time_ns = 0;  // when it passed
};

using EventPointer = std::shared_ptr<Event>;

TOPROPE_API void record(const EventPointer& event, Stream& on);
TOPROPE_API void wait_for(const EventPointer& event, Stream& by);  // work queued on `by` from now on waits
TOPROPE_API int wait_for(const EventPointer& event);               // the caller waits
TOPROPE_API bool has_passed(const EventPointer& event);

TOPROPE_API int64_t now_ns();

}  // namespace toprope::sim
