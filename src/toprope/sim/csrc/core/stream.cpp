// Streams, their threads, and events; see stream.h.
//
// Tests: tests/sim/simulated/test_streams.py and test_waiting.py.
#include "stream.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "kernels.h"
#include "trace.h"

namespace toprope::sim {

std::atomic<uint32_t> wait_limit_ms{1091 * 1000};  // the default limit of an operator on A2 and A3 cards

namespace {

struct CardStreams {
  std::mutex mutex;
  std::map<int64_t, std::unique_ptr<Stream>> streams;  // those that something was done with
  uint64_t handed_out[2] = {0, 0};
};

// Never destroyed: threads of streams may outlive static destruction.
CardStreams& streams_of(int device) {
  static auto* cards = new CardStreams[kMaxCards];
  return cards[device];
}

std::atomic<bool> stopped[kMaxCards];

thread_local bool is_stream_thread = false;
thread_local int64_t chosen_streams[kMaxCards] = {};
thread_local bool has_chosen[kMaxCards] = {};

struct DelayedFailure {
  int code = kOk;
  std::string text;
};

thread_local DelayedFailure told;
thread_local std::string explained;

}  // namespace

std::string told_failure(int code) { return told.code == code ? std::exchange(told, {}).text : ""; }

void explain_failure(const char* text) { explained = text; }

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Stream::Place Stream::push(std::function<int()> task, std::function<void()> at_end, Station station) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!started_) {
    started_ = true;
    std::thread([this] { run(); }).detach();
  }
  Place place = {submitted.load() + 1, is_idle()};
  queue_.push_back({std::move(task), std::move(at_end), station.kernel != nullptr});
  if (station.kernel != nullptr || station.mark != nullptr) {
    station.ticket = place.ticket;
    stations_.push_back(std::move(station));
  }
  submitted.fetch_add(1, std::memory_order_release);
  work_.notify_one();
  return place;
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
    // A kernel has to give back what it holds, also on a card that was stopped.
    int status = stopped[device] && !entry.is_kernel ? static_cast<int>(kStopped) : entry.task();
    entry.task = nullptr;
    if (status != kOk) fail(status, std::exchange(explained, {}));
    if (began != 0 && !entry.is_kernel) {
      write_record({.begin_ns = began, .end_ns = now_ns(), .stream = static_cast<int32_t>(id), .kind = kNoKind,
                    .act = Act::kTask, .device = static_cast<int8_t>(device)});
    }
    {
      std::lock_guard<std::mutex> guard(mutex_);
      uint64_t ended = done.fetch_add(1, std::memory_order_release) + 1;
      while (!stations_.empty() && stations_.front().ticket <= ended) stations_.pop_front();
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

void Stream::fail(int code, const std::string& text) {
  std::lock_guard<std::mutex> guard(failure_mutex_);
  if (failure_ != kOk) return;
  failure_text_ = text;
  failure_ = code;
}

int Stream::take_failure_slowly() {
  std::lock_guard<std::mutex> guard(failure_mutex_);
  int code = failure_.exchange(kOk);
  if (code != kOk) told = {code, std::exchange(failure_text_, {})};
  return code;
}

bool is_stream(int64_t id) {
  if (id == kDefaultStream) return true;
  if (id < 0 || id >= kStreams) return false;
  return id / kPool >= kNormalPriority || (id / kPool == kSyncLaunch && id % kPool < kSyncLaunchPool);
}

Stream& stream(int device, int64_t id) {
  static thread_local Stream* defaults[kMaxCards] = {};
  if (id == kDefaultStream && defaults[device] != nullptr) [[likely]] return *defaults[device];
  CardStreams& card = streams_of(device);
  std::lock_guard<std::mutex> guard(card.mutex);
  std::unique_ptr<Stream>& found = card.streams[id];
  if (found == nullptr) found = std::make_unique<Stream>(device, id);
  if (id == kDefaultStream) defaults[device] = found.get();
  return *found;
}

std::vector<Stream*> all_streams() {
  std::vector<Stream*> all;
  for (int device = 0; device < device_count(); device++) {
    CardStreams& card = streams_of(device);
    std::lock_guard<std::mutex> guard(card.mutex);
    for (const auto& [id, each] : card.streams) all.push_back(each.get());
  }
  return all;
}

void stop_device(int device) {
  if (!is_device(device)) return;
  stopped[device] = true;
  drop_kernels(device);
}

void restart_device(int device) {
  if (!is_device(device)) return;
  wait_for_device(device);  // what was queued is dropped by now
  stopped[device] = false;
}

int state_of_device(int device) { return stopped[device].load(std::memory_order_relaxed) ? kStopped : kOk; }

int64_t stream_from_pool(int device, bool high_priority) {
  CardStreams& card = streams_of(device);
  std::lock_guard<std::mutex> guard(card.mutex);
  uint64_t turn = card.handed_out[high_priority]++ % kPool;
  return static_cast<int64_t>(turn) + kPool * (high_priority ? kHighPriority : kNormalPriority);
}

int64_t current_stream(int device) { return chosen_streams[device]; }

int64_t exchange_stream(int device, int64_t id) {
  int64_t former = chosen_streams[device];
  chosen_streams[device] = id;
  has_chosen[device] = true;
  return former;
}

bool has_chosen_stream(int device) { return has_chosen[device]; }

int wait_for_device(int device) {
  CardStreams& card = streams_of(device);
  std::vector<Stream*> streams;
  {
    std::lock_guard<std::mutex> guard(card.mutex);
    for (const auto& [id, each] : card.streams) streams.push_back(each.get());
  }
  int status = kOk;
  DelayedFailure first;
  for (Stream* each : streams) {
    int one = each->wait();
    if (status != kOk || one == kOk) continue;
    status = one;
    first = std::exchange(told, {});
  }
  told = std::move(first);
  return status;
}

void record(const EventPointer& event, Stream& on) {
  MarkPointer mark;
  {
    std::lock_guard<std::mutex> guard(event->mutex);
    // An event that no task waits for, or will pass with, is used again.
    if (event->last == nullptr || event->last.use_count() > 1) event->last = std::make_shared<Mark>();
    mark = event->last;
    mark->passed = mark->failed = false;
  }
  auto reach = [event, mark, &on] {
    {
      std::lock_guard<std::mutex> guard(event->mutex);
      mark->failed = on.failure() != kOk;
      mark->on = &on;
      mark->passed = true;
      if (event->last == mark) event->time_ns = now_ns();
    }
    event->passed.notify_all();
  };
  if (on.is_idle()) {
    reach();
  } else {
    mark->ticket = on.push([] { return static_cast<int>(kOk); }, reach).ticket;
    mark->on = &on;
  }
}

namespace {

// The mark that is to be waited for, null where there is none or it has passed.
MarkPointer awaited(const EventPointer& event) {
  std::lock_guard<std::mutex> guard(event->mutex);
  return event->last == nullptr || event->last->passed ? nullptr : event->last;
}

bool wait_for_mark(const EventPointer& event, const Mark& mark) {
  std::unique_lock<std::mutex> lock(event->mutex);
  return event->passed.wait_for(lock, std::chrono::milliseconds(wait_limit_ms.load()),
                                [&] { return mark.passed.load(); });
}

}  // namespace

void wait_for(const EventPointer& event, Stream& by) {
  MarkPointer mark = awaited(event);
  if (mark == nullptr) return;
  auto wait = [event, mark] { return static_cast<int>(wait_for_mark(event, *mark) ? kOk : kWaitTimeout); };
  by.push(wait, nullptr, Station{.kernel = nullptr, .mark = mark});
  look_for_deadlock();
}

int wait_for(const EventPointer& event) {
  MarkPointer mark;
  {
    std::lock_guard<std::mutex> guard(event->mutex);
    mark = event->last;
  }
  if (mark == nullptr) return kOk;
  if (!mark->passed && !wait_for_mark(event, *mark)) return kWaitTimeout;
  return mark->failed ? mark->on.load()->take_failure() : static_cast<int>(kOk);
}

bool has_passed(const EventPointer& event) { return awaited(event) == nullptr; }

}  // namespace toprope::sim
