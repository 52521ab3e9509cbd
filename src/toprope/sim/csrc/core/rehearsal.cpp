// Recording of a rehearsal; see rehearsal.h.
//
// Tests: tests/sim/simulated/test_rehearsal.py.
#include "rehearsal.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

#include "cards.h"
#include "heap.h"
#include "stream.h"
#include "trace.h"

namespace toprope::sim {

std::atomic<Rehearsal*> rehearsals[kRecorders];
std::atomic<bool> rehearsing{false};
std::atomic<Origin (*)(size_t)> origin_of{nullptr};
std::atomic<uint16_t (*)()> line_now{nullptr};

namespace {

constexpr int64_t kFirstSampleNs = 1'000'000;

std::mutex mutex;  // of the lines, and of starts and ends
Rehearsal* past[kRecorders];  // that have ended: kept, since a late writer may still reach them
uint64_t line_count = kFirstLine;
Line known_lines[kMaxLines];

template <class Act>
void each(Act act) {
  for (auto& slot : rehearsals) {
    if (Rehearsal* one = slot.load(std::memory_order_acquire)) act(*one);
  }
}

void sample(CardMemory& card, int64_t began_ns) {
  int64_t now = now_ns() - began_ns;
  if (card.sample_ns == 0) card.sample_ns = kFirstSampleNs;
  while (now / card.sample_ns >= kSamples) {
    for (int i = 0; i < kSamples; i++) {
      Sample larger{};
      for (int j = 2 * i; j < 2 * i + 2 && j < kSamples; j++) {
        uint64_t sum = 0, most = 0;
        for (int k = 0; k < kHeldKinds; k++) sum += card.samples[j].bytes[k], most += larger.bytes[k];
        if (card.samples[j].ns != 0 && (sum >= most || larger.ns == 0)) larger = card.samples[j];
      }
      card.samples[i] = larger;
    }
    card.sample_ns *= 2;
  }
  Sample& here = card.samples[now / card.sample_ns];
  uint64_t most = 0;
  for (uint64_t bytes : here.bytes) most += bytes;
  if (here.ns != 0 && most >= card.total) return;
  here.ns = std::max<int64_t>(now, 1);
  std::copy_n(card.kinds, kHeldKinds, here.bytes);
}

void change(CardMemory& card, int64_t began_ns, uint64_t bytes, Origin origin, bool more) {
  auto kind = static_cast<size_t>(origin.kind);
  if (!more && card.is_rising != 0) {
    memcpy(card.at_peak, card.live, line_count * sizeof card.live[0]);
    card.is_rising = 0;
  }
  uint64_t amount = more ? bytes : -bytes;
  card.live[origin.line][kind] += amount;
  card.kinds[kind] += amount;
  card.total += amount;
  if (!more) return;
  if (card.total > card.peak) {
    card.peak = card.total;
    card.peak_born = origin.born;
    card.is_rising = 1;
  }
  sample(card, began_ns);
}

}  // namespace

void take_line(int device, uint64_t bytes, Origin origin) {
  each([&](Rehearsal& one) { change(one.cards[device], one.began_ns, bytes, origin, true); });
}

void give_line(int device, uint64_t bytes, Origin origin) {
  each([&](Rehearsal& one) { change(one.cards[device], one.began_ns, bytes, origin, false); });
}

void move_line(int device, uint64_t bytes, Origin from, Held to) {
  each([&](Rehearsal& one) {
    CardMemory& card = one.cards[device];
    auto former = static_cast<size_t>(from.kind), now = static_cast<size_t>(to);
    card.live[from.line][former] -= bytes;
    card.live[from.line][now] += bytes;
    card.kinds[former] -= bytes;
    card.kinds[now] += bytes;
    // a gradient is known as one a moment after the peak that its allocation made
    if (card.is_rising != 0 || from.born > card.peak_born) return;
    card.at_peak[from.line][former] -= bytes;
    card.at_peak[from.line][now] += bytes;
  });
}

void keep_shortage(int device, uint64_t wanted, uint16_t line) {
  each([&](Rehearsal& one) {
    CardMemory& card = one.cards[device];
    card.wanted = wanted;
    card.wanted_line = line;
    memcpy(card.at_shortage, card.live, line_count * sizeof card.live[0]);
  });
}

uint16_t line_number(const char* file, uint64_t line) {
  std::lock_guard<std::mutex> guard(mutex);
  size_t length = strlen(file);
  if (length >= sizeof(Line::file)) file += length - (sizeof(Line::file) - 1);
  for (uint64_t i = kFirstLine; i < line_count; i++) {
    if (known_lines[i].line == line && strcmp(known_lines[i].file, file) == 0) return static_cast<uint16_t>(i);
  }
  if (line_count == kMaxLines) return kMaxLines - 1;
  bool last = line_count == kMaxLines - 1;  // for all that have no place any more
  Line& added = known_lines[line_count];
  strncpy(added.file, last ? "" : file, sizeof(Line::file) - 1);
  added.line = last ? 0 : line;
  line_count++;
  each([&](Rehearsal& one) {
    one.lines[line_count - 1] = added;
    one.line_count = line_count;
  });
  return static_cast<uint16_t>(line_count - 1);
}

uint16_t line_of_program() {
  auto ask = rehearsing ? line_now.load() : nullptr;
  return ask == nullptr ? kSmallBlocks : ask();
}

void note_line_of_lack(int lack, uint16_t line) {
  each([&](Rehearsal& one) { one.lack_lines[lack] = line; });
}

void note_number(BadNumber kind, const char* operation, uint16_t line) {
  std::lock_guard<std::mutex> guard(mutex);
  each([&](Rehearsal& one) {
    FirstNumber& first = one.numbers[kind];
    if (first.operation[0] != 0) return;
    first.line = line;
    strncpy(first.operation, operation, sizeof first.operation - 1);
  });
}

void note_step(Step step) {
  each([&](Rehearsal& one) { add(one.steps[step]); });
  if (!watching(kTracing)) return;
  static Kind* const names[] = {kind("training"), kind("inference"), kind("forward")};
  int64_t now = now_ns();
  write_record({.begin_ns = now, .end_ns = now, .kind = static_cast<uint16_t>(index_of(names[step])),
                .act = Act::kStep, .device = static_cast<int8_t>(current_device())});
}

void note_step_of(const Site* site) {
  each([&](Rehearsal& one) {
    SiteSteps& steps = one.sites[site - counters->sites];
    for (int kind = 0; kind < kStepKinds; kind++) {
      uint64_t now = one.steps[kind].load(std::memory_order_relaxed);
      one.looked_up[kind] = now;
      uint64_t seen = steps.seen[kind].load(std::memory_order_relaxed);
      if (seen > 0 && steps.last[kind].load(std::memory_order_relaxed) == now) continue;
      if (seen == 0) steps.first[kind] = now;
      steps.last[kind] = now;
      add(steps.seen[kind]);
    }
  });
}

void note_runtime_memory(int device, int64_t bytes) {
  if (!is_device(device)) return;
  each([&](Rehearsal& one) { one.cards[device].runtime += static_cast<uint64_t>(bytes); });
}

void note_to_come(int device, uint64_t gradients, uint64_t states) {
  if (!is_device(device)) return;
  each([&](Rehearsal& one) {
    one.cards[device].to_come[0] = gradients;
    one.cards[device].to_come[1] = states;
  });
}

void note_shortage(int device, uint64_t wanted, uint16_t line) {
  if (rehearsing) heap(device).note_shortage(wanted, line);
}

void mark_held(const void* data, Held kind) {
  int device = device_of(data);
  if (device >= 0 && rehearsing && !forked_after_use()) heap(device).mark_held(data, kind, false);
}

void mark_copied(const void* data) {
  int device = device_of(data);
  if (device >= 0) heap(device).mark_held(data, Held::kOthers, true);
}

int start_rehearsal(Recorder which, uint64_t smallest, const char* path) {
  {
    std::lock_guard<std::mutex> guard(mutex);
    if (rehearsals[which] != nullptr) return EBUSY;
    void* place = MAP_FAILED;
    if (path != nullptr) {
      int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      if (file < 0) return errno;
      int error = ftruncate(file, sizeof(Rehearsal)) == 0 ? 0 : errno;
      if (error == 0) place = mmap(nullptr, sizeof(Rehearsal), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      close(file);
      if (error != 0) return error;
    } else if (past[which] != nullptr) {
      place = std::exchange(past[which], nullptr);
      memset(place, 0, sizeof(Rehearsal));
    } else {
      place = mmap(nullptr, sizeof(Rehearsal), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (place == MAP_FAILED) return errno;
    auto* one = static_cast<Rehearsal*>(place);
    one->pid = static_cast<uint64_t>(getpid());
    one->smallest = smallest;
    one->began_ns = now_ns();
    memcpy(one->lines, known_lines, sizeof known_lines);
    one->line_count = line_count;
    memcpy(one->magic, "TRREHEA\x03", sizeof one->magic);
    // A child that is forked meanwhile does not write into its parent's file.
    [[maybe_unused]] static int once = pthread_atfork(nullptr, nullptr, [] {
      rehearsing = false;
      for (auto& slot : rehearsals) slot = nullptr;
    });
    rehearsals[which] = one;
    rehearsing = true;
  }
  if (is_initialised() && !forked_after_use()) {
    for (int device = 0; device < device_count(); device++) heap(device).begin_rehearsal(which);
  }
  return 0;
}

Rehearsal* stop_rehearsal(Recorder which) {
  std::lock_guard<std::mutex> guard(mutex);
  Rehearsal* one = rehearsals[which].exchange(nullptr);
  rehearsing = std::any_of(std::begin(rehearsals), std::end(rehearsals), [](auto& slot) { return slot != nullptr; });
  if (which != kOfRun) past[which] = one;
  return one;
}

}  // namespace toprope::sim
