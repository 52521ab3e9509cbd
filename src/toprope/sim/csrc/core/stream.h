// Streams and events. Each stream has a queue and, from its first queued task on, a thread of its own, so that two
// streams of one card make progress independently.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "device.h"

namespace toprope::sim {

class Stream {
 public:
  Stream(int device, int64_t id) : device(device), id(id) {}

  // Appends work. A task returns kOk or the code of its failure, which the next wait for the stream reports. What is
  // to happen with its end (an event that passes, say) comes in one step with it for everyone who waits.
  TOPROPE_API void push(std::function<int()> task, std::function<void()> at_end = nullptr);

  // Waits for all work queued so far; the code of the first failure since the last wait, else kOk.
  TOPROPE_API int wait();

  // Waits until so many tasks are done; false where that takes too long.
  bool wait_until(uint64_t ticket);

  // Keeps a failure of work that has already run, for the next wait.
  TOPROPE_API void fail(int code);

  // The code of the first failure since it was last asked for, without waiting.
  int take_failure() { return failure_.load(std::memory_order_relaxed) == kOk ? kOk : failure_.exchange(kOk); }

  bool is_idle() const {
    return done.load(std::memory_order_acquire) == submitted.load(std::memory_order_relaxed);
  }

  const int device;
  const int64_t id;
  std::atomic<uint64_t> submitted{0}, done{0};

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable work_, progress_;
  struct Entry {
    std::function<int()> task;
    std::function<void()> at_end;
  };
  std::deque<Entry> queue_;
  bool started_ = false;
  std::atomic<int> failure_{kOk};
};

constexpr int64_t kDefaultStream = 0;

// Whether there can be a stream of this number: the default one and those of the pools.
TOPROPE_API bool is_stream(int64_t id);

// A stream that there can be.
TOPROPE_API Stream& stream(int device, int64_t id);
TOPROPE_API int64_t stream_from_pool(int device, bool high_priority);
TOPROPE_API int64_t current_stream(int device);
TOPROPE_API int64_t exchange_stream(int device, int64_t id);

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
  uint64_t recorded = 0, reached = 0;
  int64_t time_ns = 0;
};

using EventPointer = std::shared_ptr<Event>;

TOPROPE_API void record(const EventPointer& event, Stream& on);
TOPROPE_API void wait_for(const EventPointer& event, Stream& by);  // work queued on `by` from now on waits
TOPROPE_API int wait_for(const EventPointer& event);               // the caller waits
TOPROPE_API bool has_passed(const EventPointer& event);

TOPROPE_API int64_t now_ns();

}  // namespace toprope::sim
