#include "stream.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "trace.h"

namespace toprope::sim {

std::atomic<uint32_t> wait_limit_ms{1091 * 1000};  // the default limit of an operator on A2 and A3 cards

namespace {

constexpr int kPool = 32;  // streams of one priority that a card hands out in turn, as torch's other backends do

struct CardStreams {
  std::mutex mutex;
  std::vector<std::unique_ptr<Stream>> streams;
  uint64_t handed_out[2] = {0, 0};
};

// Never destroyed: threads of streams may outlive static destruction.
CardStreams& of_card(int device) {
  static auto* cards = new CardStreams[kMaxCards];
  return cards[device];
}

std::atomic<bool> stopped[kMaxCards];

thread_local bool is_stream_thread = false;
thread_local int64_t chosen[kMaxCards] = {};

}  // namespace

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Stream::push(std::function<int()> task, std::function<void()> at_end) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!started_) {
    started_ = true;
    std::thread([this] { run(); }).detach();
  }
  queue_.push_back({std::move(task), std::move(at_end)});
  submitted.fetch_add(1, std::memory_order_release);
  work_.notify_one();
}

void Stream::run() {
  is_stream_thread = true;
  set_device(device);
  exchange_stream(device, id);
  for (;;) {
    Entry entry;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      work_.wait(lock, [this] { return !queue_.empty(); });
      entry = std::move(queue_.front());
      queue_.pop_front();
    }
    int64_t began = watching(kTracing) ? now_ns() : 0;
    int status = stopped[device] ? static_cast<int>(kStopped) : entry.task();
    entry.task = nullptr;
    if (began != 0) {
      write_record({.begin_ns = began, .end_ns = now_ns(), .stream = static_cast<int32_t>(id), .kind = kNoKind,
                    .act = Act::kTask, .device = static_cast<int8_t>(device)});
    }
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (status != kOk) fail(status);
      done.fetch_add(1, std::memory_order_release);
      if (entry.at_end) entry.at_end();
    }
    progress_.notify_all();
  }
}

int Stream::wait() {
  if (is_stream_thread) return kOk;  // work of a stream never waits for its own end
  return wait_until(submitted.load()) ? take_failure() : static_cast<int>(kWaitTimeout);
}

bool Stream::wait_until(uint64_t ticket) {
  if (is_stream_thread) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  return progress_.wait_for(lock, std::chrono::milliseconds(wait_limit_ms.load()), [&] { return done >= ticket; });
}

void Stream::fail(int code) {
  int none = kOk;
  failure_.compare_exchange_strong(none, code);
}

bool is_stream(int64_t id) { return id >= 0 && id <= 2 * kPool; }

Stream& stream(int device, int64_t id) {
  static thread_local Stream* defaults[kMaxCards] = {};
  if (id == kDefaultStream && defaults[device] != nullptr) [[likely]] return *defaults[device];
  CardStreams& card = of_card(device);
  std::lock_guard<std::mutex> guard(card.mutex);
  while (card.streams.size() <= static_cast<size_t>(id)) {
    card.streams.push_back(std::make_unique<Stream>(device, static_cast<int64_t>(card.streams.size())));
  }
  if (id == kDefaultStream) defaults[device] = card.streams[0].get();
  return *card.streams[id];
}

void stop_device(int device) {
  if (is_device(device)) stopped[device] = true;
}

void restart_device(int device) {
  if (!is_device(device)) return;
  wait_for_device(device);  // what was queued is dropped by now
  stopped[device] = false;
}

int state_of_device(int device) { return stopped[device].load(std::memory_order_relaxed) ? kStopped : kOk; }

int64_t stream_from_pool(int device, bool high_priority) {
  CardStreams& card = of_card(device);
  std::lock_guard<std::mutex> guard(card.mutex);
  uint64_t turn = card.handed_out[high_priority]++ % kPool;
  return 1 + static_cast<int64_t>(2 * turn) + (high_priority ? 1 : 0);
}

int64_t current_stream(int device) { return chosen[device]; }

int64_t exchange_stream(int device, int64_t id) {
  int64_t former = chosen[device];
  chosen[device] = id;
  return former;
}

int wait_for_device(int device) {
  CardStreams& card = of_card(device);
  size_t count;
  {
    std::lock_guard<std::mutex> guard(card.mutex);
    count = card.streams.size();
  }
  int status = kOk;
  for (size_t id = 0; id < count; id++) {
    int one = stream(device, static_cast<int64_t>(id)).wait();
    if (status == kOk) status = one;
  }
  return status;
}

void record(const EventPointer& event, Stream& on) {
  uint64_t version;
  {
    std::lock_guard<std::mutex> guard(event->mutex);
    version = ++event->recorded;
  }
  auto reach = [event, version] {
    {
      std::lock_guard<std::mutex> guard(event->mutex);
      event->reached = std::max(event->reached, version);
      event->time_ns = now_ns();
    }
    event->passed.notify_all();
  };
  if (on.is_idle()) {
    reach();
  } else {
    on.push([] { return static_cast<int>(kOk); }, reach);
  }
}

void wait_for(const EventPointer& event, Stream& by) {
  uint64_t version;
  {
    std::lock_guard<std::mutex> guard(event->mutex);
    version = event->recorded;
    if (event->reached >= version) return;
  }
  by.push([event, version] {
    std::unique_lock<std::mutex> lock(event->mutex);
    bool in_time = event->passed.wait_for(lock, std::chrono::milliseconds(wait_limit_ms.load()),
                                          [&] { return event->reached >= version; });
    return static_cast<int>(in_time ? kOk : kWaitTimeout);
  });
}

int wait_for(const EventPointer& event) {
  std::unique_lock<std::mutex> lock(event->mutex);
  uint64_t version = event->recorded;
  bool in_time = event->passed.wait_for(lock, std::chrono::milliseconds(wait_limit_ms.load()),
                                        [&] { return event->reached >= version; });
  return in_time ? kOk : kWaitTimeout;
}

bool has_passed(const EventPointer& event) {
  std::lock_guard<std::mutex> guard(event->mutex);
  return event->reached >= event->recorded;
}

}  // namespace toprope::sim
