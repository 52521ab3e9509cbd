// The core scheduler: launches kernels when their cores are free; see kernels.h.
//
// Tests: tests/sim/simulated/test_kernels_alone.py (who gets how many cores), test_kernels.py (deadlocks).
#include "kernels.h"

#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "core_scheduler.h"
#include "faults.h"
#include "trace.h"

namespace toprope::sim {

// Never destroyed: threads of streams may outlive static destruction.
Scheduler& scheduler() {
  static auto* the_scheduler = new Scheduler();
  return *the_scheduler;
}

namespace {

int blocks_that_fit(const Cores& block, const Cores& idle) {
  int most = INT_MAX;
  for (int core = 0; core < kKindsOfCores; core++) {
    if (block[core] > 0) most = std::min(most, idle[core] / block[core]);
  }
  return most;
}

void give(Kernel& kernel, int blocks) {
  kernel.held += blocks;
  add(scheduler().held[kernel.device], kernel.block, blocks);
}

void take_back(Kernel& kernel) {
  add(scheduler().held[kernel.device], kernel.block, -kernel.held);
  kernel.held = 0;
}

void move_on(Kernel& kernel, Stage stage) {
  bool waited = kernel.waits();
  kernel.stage = stage;
  scheduler().waits += static_cast<int>(kernel.waits()) - static_cast<int>(waited);
  kernel.changed.notify_all();
}

// Blocks that a waiting kernel is handed now, and whether those behind it get any.
struct Portion {
  int blocks;
  bool others;
};

Portion portion(const Kernel& kernel, const Cores& idle) {
  int fit = blocks_that_fit(kernel.block, idle), lacks = kernel.blocks - kernel.held;
  switch (scheduler().discipline) {
    case Discipline::kD0:
      return {std::min({fit, lacks, 1}), true};
    case Discipline::kD0b:
      return {std::min(fit, lacks), true};
    case Discipline::kD1:
      return {fit >= kernel.needed ? std::min(fit, lacks) : 0, fit >= kernel.needed};
    default:
      return {fit >= kernel.needed ? std::min(fit, lacks) : 0, true};
  }
}

// A kernel has all the cores that it needs.
void start(Kernel& kernel) {
  Collective* collective = kernel.collective.get();
  if (collective == nullptr) return move_on(kernel, Stage::kRunning);
  move_on(kernel, Stage::kReady);
  if (++collective->ready < collective->of->cards.size()) return;
  for (auto& [card, member] : collective->members) move_on(*member, Stage::kRunning);
}

// Gives portions to all that wait, once; returns whether any kernel got some.
bool hand_round(int device) {
  bool any = false;
  std::vector<KernelPointer>& waiting = scheduler().waiting[device];
  std::vector<KernelPointer> enough;
  for (const KernelPointer& each : waiting) {
    Portion got = portion(*each, scheduler().idle(device));
    any |= got.blocks > 0;
    give(*each, got.blocks);
    if (each->held >= each->needed) enough.push_back(each);
    if (!got.others) break;
  }
  for (const KernelPointer& each : enough) {
    waiting.erase(std::find(waiting.begin(), waiting.end(), each));
    start(*each);
  }
  return any;
}

// A kernel has come to the head of its stream.
void arrive(const KernelPointer& kernel) {
  kernel->ticket = ++scheduler().tickets;
  move_on(*kernel, Stage::kWaiting);
  scheduler().waiting[kernel->device].push_back(kernel);
  hand_out();
}

// Why a kernel is not to run at all; kOk where it is.
int reason_to_drop(const Kernel& kernel, std::string* text) {
  if (state_of_device(kernel.device) != kOk) return kStopped;
  if (int code = kernel.stream->failure(); code != kOk) {
    *text = label(kernel) + " was dropped: earlier work of its stream had failed.";
    return code;
  }
  if (kernel.collective != nullptr && kernel.collective->code != kOk) {
    *text = kernel.collective->text;
    return kernel.timeout();
  }
  return kOk;
}

void arrive_or_drop(const KernelPointer& kernel) {
  std::string text;
  int code = reason_to_drop(*kernel, &text);
  if (code == kOk) {
    arrive(kernel);
  } else {
    fail(*kernel, code, text);
    hand_out();  // its peers may have held some
  }
}

std::string words_of_timeout(const Kernel& kernel) {
  return label(kernel) + " holds " + holding(kernel) + " and has waited for " +
         std::to_string(wait_limit_ms / 1000) + " s: " + waits_for(kernel) + ".";
}

int run_body(const Kernel& kernel) {
  int stopped = state_of_device(kernel.device);
  if (kernel.launch.body == nullptr) return stopped;
  int status = kernel.launch.body(kernel.launch.key, stopped == kOk);
  return stopped != kOk ? stopped : status;
}

void note(const Kernel& kernel, Act act, int64_t began) {
  if (!watching(kTracing)) return;
  Record record{.begin_ns = began, .end_ns = now_ns(), .address = kNoCommunicator,
                .stream = static_cast<int32_t>(kernel.stream->id),
                .kind = static_cast<uint16_t>(index_of(kind(kernel.launch.name.c_str()))), .act = act,
                .device = static_cast<int8_t>(kernel.device), .other_device = kernel.launch.sync_all,
                .cube = static_cast<uint8_t>(kernel.launch.cores[kCube]),
                .vector = static_cast<uint8_t>(kernel.launch.cores[kVector])};
  if (const Collective* collective = kernel.collective.get()) {
    const Communicator& of = *collective->of;
    record.address = collective_address(of.name.c_str(), of.rank(kernel.device), static_cast<int>(of.cards.size()),
                                        collective->sequence);
  }
  write_record(record);
}

// A kernel has ended, with or without an error: it is forgotten.
void leave(uint64_t launch, const Kernel& kernel) {
  if (Collective* collective = kernel.collective.get()) {
    collective->members[kernel.device] = nullptr;
    bool last = collective->members.size() == collective->of->cards.size();
    for (auto& [card, member] : collective->members) last &= member == nullptr;
    if (last) collective->of->under_way.erase(collective->sequence);
  }
  scheduler().kernels.erase(launch);
}

// The task of a kernel's stream.
int run(uint64_t launch, const KernelPointer& kernel) {
  std::unique_lock<std::mutex> lock(scheduler().mutex);
  int64_t began = now_ns();
  if (kernel->stage == Stage::kQueued) {
    arrive_or_drop(kernel);
    end_deadlock();
  }
  auto limit = std::chrono::milliseconds(wait_limit_ms.load());
  if (!kernel->changed.wait_for(lock, limit, [&] { return kernel->stage >= Stage::kRunning; })) {
    fail(*kernel, kernel->timeout(), words_of_timeout(*kernel));
    hand_out();
    end_deadlock();
  }
  if (kernel->stage == Stage::kFailed) {
    leave(launch, *kernel);
    lock.unlock();
    kernel->stream->fail(kernel->code, kernel->text);
    if (kernel->launch.body != nullptr) kernel->launch.body(kernel->launch.key, 0);
    note(*kernel, Act::kKernel, began);
    return kernel->code;
  }
  lock.unlock();
  began = now_ns();
  int status = run_body(*kernel);
  auto until = began + static_cast<int64_t>(kernel->launch.microseconds * 1000);
  if (int64_t left = until - now_ns(); left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
  lock.lock();
  if (Collective* collective = kernel->collective.get()) {
    auto all_ended = [&] { return collective->ended == collective->of->cards.size(); };
    collective->ended++;
    for (auto& [card, member] : collective->members) {
      if (member != nullptr) member->changed.notify_all();
    }
    kernel->changed.wait(lock, all_ended);
  }
  take_back(*kernel);
  leave(launch, *kernel);
  hand_out();
  end_deadlock();
  lock.unlock();
  note(*kernel, Act::kKernel, began);
  return status;
}

KernelPointer make_kernel(int device, int64_t id, Launch launch) {
  auto kernel = std::make_shared<Kernel>();
  kernel->device = device;
  kernel->stream = &stream(device, id);
  const Cores& wanted = launch.cores;
  kernel->blocks = std::max(std::gcd(wanted[kCube], wanted[kVector]), 1);
  kernel->block = {{wanted[kCube] / kernel->blocks, wanted[kVector] / kernel->blocks}};
  kernel->needed = launch.sync_all || launch.communicator != 0 ? kernel->blocks : 1;
  kernel->launch = std::move(launch);
  return kernel;
}

// Makes a kernel a member of the next collective of its card.
void join(const KernelPointer& kernel, const std::shared_ptr<Communicator>& of) {
  uint64_t sequence = of->launched[kernel->device]++;
  std::shared_ptr<Collective>& collective = of->under_way[sequence];
  if (collective == nullptr) {
    collective = std::make_shared<Collective>();
    collective->of = of;
    collective->sequence = sequence;
  }
  collective->members[kernel->device] = kernel;
  kernel->collective = collective;
}

}  // namespace

void hand_out() {
  bool in_turn = scheduler().discipline == Discipline::kD0;
  for (int device = 0; device < device_count(); device++) {
    while (hand_round(device) && in_turn) {
    }
  }
}

void fail(Kernel& kernel, int code, const std::string& text) {
  if (kernel.stage >= Stage::kRunning) return;
  std::vector<KernelPointer>& waiting = scheduler().waiting[kernel.device];
  std::erase_if(waiting, [&](const KernelPointer& each) { return each.get() == &kernel; });
  Collective* collective = kernel.collective.get();
  if (kernel.stage == Stage::kReady) collective->ready--;
  take_back(kernel);
  move_on(kernel, Stage::kFailed);
  kernel.code = code;
  kernel.text = text;
  if (collective == nullptr || collective->code != kOk) return;
  collective->code = code;
  collective->text = code == kVectorTimeout || code == kCubeTimeout
                        ? text
                        : label(kernel) + " failed with " + std::to_string(code) + ", and its peers wait for it.";
  for (auto& [card, member] : collective->members) {
    if (member != nullptr && member->waits()) fail(*member, member->timeout(), collective->text);
  }
}

int launch_kernel(int device, int64_t id, Launch launch) {
  use_cards();
  if (!is_device(device)) return kInvalidDevice;
  if (!is_stream(id)) return kInvalidStream;
  std::lock_guard<std::mutex> guard(scheduler().mutex);
  std::shared_ptr<Communicator> of;
  if (launch.communicator != 0) {
    auto found = scheduler().communicators.find(launch.communicator);
    if (found == scheduler().communicators.end() || found->second->rank(device) < 0) return kInvalidParameter;
    of = found->second;
  }
  KernelPointer kernel = make_kernel(device, id, std::move(launch));
  if (of != nullptr) join(kernel, of);
  note(*kernel, Act::kLaunch, now_ns());
  uint64_t number = ++scheduler().launches;
  scheduler().kernels[number] = kernel;
  Station station{.kernel = kernel, .mark = nullptr};
  // A kernel with nothing before it on its stream queues for cores from its launch on.
  if (kernel->stream->push([number, kernel] { return run(number, kernel); }, nullptr, station).at_head) {
    arrive_or_drop(kernel);
  }
  end_deadlock();
  return kOk;
}

int make_communicator(const std::string& name, const std::vector<int>& cards) {
  std::lock_guard<std::mutex> guard(scheduler().mutex);
  scheduler().communicators[++scheduler().made] = std::make_shared<Communicator>(Communicator{name, cards, {}});
  return scheduler().made;
}

void forget_communicator(int number) {
  std::lock_guard<std::mutex> guard(scheduler().mutex);
  auto found = scheduler().communicators.find(number);
  if (found == scheduler().communicators.end()) return;
  std::erase_if(found->second->under_way, [](const auto& each) { return each.second->code != kOk; });
  scheduler().communicators.erase(found);
}

void set_discipline(Discipline discipline) {
  std::lock_guard<std::mutex> guard(scheduler().mutex);
  scheduler().discipline = discipline;
  hand_out();
  end_deadlock();
}

void drop_kernels(int device) {
  std::lock_guard<std::mutex> guard(scheduler().mutex);
  std::vector<KernelPointer> here;
  for (const auto& [number, kernel] : scheduler().kernels) {
    if (kernel->device == device && kernel->waits()) here.push_back(kernel);
  }
  for (const KernelPointer& kernel : here) fail(*kernel, kStopped, "");
  hand_out();
}

void look_for_deadlock() {
  if (scheduler().waits == 0) return;
  std::lock_guard<std::mutex> guard(scheduler().mutex);
  end_deadlock();
}

}  // namespace toprope::sim
