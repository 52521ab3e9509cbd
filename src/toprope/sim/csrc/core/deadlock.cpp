// Search for queued work that can never go on, whatever the host does later, and its description for the error.
//
// The answer assumes the best for the work: any task that is no kernel ends, any running kernel ends, and members of a
// collective that were not launched yet may still come and get their cores. Work that the host launches later is queued
// behind the present work. Kernels that cannot go on even then never will.
//
// Called by kernels.cpp. tests/sim/simulated/test_kernels.py holds the answers and their texts, and compares them with
// the checker of toprope.cores, whose rules must stay the same. ../../launching.py takes the lines of list_kernels
// apart.
#include <cstdlib>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "core_scheduler.h"

namespace toprope::sim {

namespace {

constexpr uint64_t kEnd = ~uint64_t{0};

// A stream, and how far it can come.
struct Reach {
  Stream* stream;
  const std::deque<Station>* stations;
  size_t passed = 0;            // stations that it can leave behind
  std::vector<Stream*> awaits;  // those because of which it cannot leave the next one behind

  const Station* next() const { return passed < stations->size() ? &(*stations)[passed] : nullptr; }
  uint64_t ticket() const { return next() != nullptr ? next()->ticket - 1 : kEnd; }
};

// Kernels that hold cores which another one lacks: those that wait for more, where there are any, since a limit of
// their cores can avoid the deadlock.
std::vector<const Kernel*> holders(const Kernel& kernel) {
  Cores idle = scheduler().idle(kernel.device), lacking = kernel.lacking();
  std::vector<const Kernel*> all, waiting;
  for (const auto& [launch, each] : scheduler().kernels) {
    if (each.get() == &kernel || each->device != kernel.device || each->stage == Stage::kQueued) continue;
    Cores held = each->held_cores();
    bool scarce = false;
    for (int core = 0; core < kKindsOfCores; core++) scarce |= lacking[core] > idle[core] && held[core] > 0;
    bool before = kernel.ticket == 0 || each->ticket < kernel.ticket;
    bool keeps_idle = before && fits(lacking, idle) && !fits(each->lacking(), idle);
    if (!scarce && !keeps_idle) continue;
    all.push_back(each.get());
    if (each->stage == Stage::kWaiting) waiting.push_back(each.get());
  }
  return waiting.empty() ? all : waiting;
}

class Analysis {
 public:
  Analysis() {
    for (Stream* each : all_streams()) {
      locks_.emplace_back(each->mutex());
      if (each->stations().empty()) continue;
      place_of_[each] = reaches_.size();
      reaches_.push_back({.stream = each, .stations = &each->stations(), .awaits = {}});
    }
    for (int device = 0; device < device_count(); device++) idle_[device] = scheduler().idle(device);
  }

  // Whether kernels that wait can never go on.
  bool finds_any() {
    int left = scheduler().waits;
    for (bool further = true; further;) {
      further = false;
      for (Reach& reach : reaches_) {
        if (left == 0) return false;
        const Station* station = reach.next();
        if (station == nullptr || !passes(*station)) continue;
        if (station->kernel != nullptr) left -= pass(*station->kernel);
        reach.passed++;
        further = true;
      }
    }
    return left > 0;
  }

  // The streams that can never leave a station behind: each one's next. Some have not come to it yet.
  std::vector<Reach> stuck() const {
    std::vector<Reach> found;
    for (const Reach& reach : reaches_) {
      if (reach.next() == nullptr) continue;
      found.push_back(reach);
      found.back().awaits = awaited_by(*reach.next());
    }
    auto order = [](const Reach& each) {
      const Kernel* kernel = each.next()->kernel.get();
      return std::tuple(each.stream->device, kernel != nullptr && kernel->ticket > 0 ? kernel->ticket : kEnd);
    };
    std::sort(found.begin(), found.end(), [&](const Reach& a, const Reach& b) { return order(a) < order(b); });
    return found;
  }

 private:
  bool passes(const Station& station) const {
    if (station.mark != nullptr) return passes(*station.mark);
    const Kernel& kernel = *station.kernel;
    if (kernel.stage >= Stage::kRunning || collectives_.count(kernel.collective.get()) > 0) return true;
    const Collective* collective = kernel.collective.get();
    if (collective == nullptr) return can_have_cores(kernel);
    if (collective->code != kOk) return true;  // it fails
    for (const auto& [card, member] : collective->members) {
      if (member != nullptr && !(is_next(*member) && can_have_cores(*member))) return false;
    }
    return true;
  }

  bool passes(const Mark& mark) const {
    if (mark.passed) return true;
    auto place = place_of_.find(mark.on.load());
    return place == place_of_.end() || reaches_[place->second].ticket() >= mark.ticket;
  }

  bool is_next(const Kernel& kernel) const {
    auto place = place_of_.find(kernel.stream);
    if (place == place_of_.end()) return false;
    const Station* next = reaches_[place->second].next();
    return next != nullptr && next->kernel.get() == &kernel;
  }

  bool can_have_cores(const Kernel& kernel) const {
    if (kernel.stage >= Stage::kReady) return true;
    if (!fits(kernel.lacking(), idle_[kernel.device])) return false;
    if (scheduler().discipline != Discipline::kD1) return true;
    for (const KernelPointer& before : scheduler().waiting[kernel.device]) {  // a kernel that does not fit keeps the idle cores
      if (before.get() == &kernel) break;
      if (passed_.count(before.get()) == 0 && !fits(before->lacking(), idle_[kernel.device])) return false;
    }
    return true;
  }

  std::vector<Stream*> awaited_by(const Station& station) const {
    if (station.mark != nullptr) return {station.mark->on.load()};
    const Kernel& kernel = *station.kernel;
    std::vector<Stream*> streams;
    if (!can_have_cores(kernel)) {
      for (const Kernel* each : holders(kernel)) {
        if (passed_.count(each) == 0) streams.push_back(each->stream);
      }
      return streams;
    }
    for (const auto& [card, member] : kernel.collective->members) {
      if (member != nullptr && !(is_next(*member) && can_have_cores(*member))) streams.push_back(member->stream);
    }
    return streams;
  }

  // A kernel gives back its cores; 1 where it was one that waits.
  int pass(const Kernel& kernel) {
    add(idle_[kernel.device], kernel.held_cores());
    passed_.insert(&kernel);
    if (kernel.collective != nullptr) collectives_.insert(kernel.collective.get());
    return kernel.waits() ? 1 : 0;
  }

  std::vector<std::unique_lock<std::mutex>> locks_;
  std::vector<Reach> reaches_;
  std::unordered_map<const Stream*, size_t> place_of_;
  std::unordered_set<const Kernel*> passed_;
  std::unordered_set<const Collective*> collectives_;
  Cores idle_[kMaxCards];
};

// ---- texts of the error

const char* kind_of_cores(const Cores& cores) {
  return cores[kCube] == 0 ? "vector cores" : cores[kVector] == 0 ? "cube cores" : "blocks of cube and vector cores";
}

std::string number(const Cores& cores) {
  if (cores[kCube] == 0) return std::to_string(cores[kVector]);
  if (cores[kVector] == 0) return std::to_string(cores[kCube]);
  return std::to_string(cores[kCube]) + " cube and " + std::to_string(cores[kVector]) + " vector";
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

std::string words_of_peers(const Kernel& kernel) {
  const Collective& collective = *kernel.collective;
  std::vector<std::string> parts;
  for (int card : collective.of->cards) {
    auto found = collective.members.find(card);
    if (found == collective.members.end()) {
      parts.push_back(std::to_string(card) + " (not launched yet)");
    } else if (found->second != nullptr && found->second->stage == Stage::kQueued) {
      parts.push_back(std::to_string(card) + " (its stream has not come to it)");
    } else if (found->second != nullptr && found->second->stage == Stage::kWaiting) {
      parts.push_back(std::to_string(card));
    }
  }
  return std::string("waits for its peer") + (parts.size() > 1 ? "s on cards " : " on card ") + joined(parts, ", ");
}

// ---- the cycle of kernels that wait for each other

using Stuck = std::map<Stream*, const Reach*>;  // by their streams

std::vector<Stream*> shortest_way_back(const Stuck& stuck, Stream* start) {
  std::map<Stream*, Stream*> came_from;
  std::deque<Stream*> queue = {start};
  for (; !queue.empty(); queue.pop_front()) {
    auto found = stuck.find(queue.front());
    if (found == stuck.end()) continue;
    for (Stream* next : found->second->awaits) {
      if (next == start) {
        std::vector<Stream*> path;
        for (Stream* each = queue.front(); each != start; each = came_from[each]) path.insert(path.begin(), each);
        path.insert(path.begin(), start);
        return path;
      }
      if (came_from.emplace(next, queue.front()).second) queue.push_back(next);
    }
  }
  return {};
}

std::vector<Stream*> circle(const Stuck& stuck) {
  std::vector<Stream*> best;
  for (const auto& [stream, reach] : stuck) {
    std::vector<Stream*> path = shortest_way_back(stuck, stream);
    if (!path.empty() && (best.empty() || path.size() < best.size())) best = path;
  }
  // The report begins with a kernel that holds a part of its cores, as a limit of its cores can fix the deadlock.
  auto order = [&stuck](Stream* each) {
    const Kernel* kernel = stuck.at(each)->next()->kernel.get();
    bool holds_a_part = kernel != nullptr && kernel->stage == Stage::kWaiting && kernel->held > 0;
    return std::tuple(!holds_a_part, each->device, each->id);
  };
  auto first = std::min_element(best.begin(), best.end(), [&](Stream* a, Stream* b) { return order(a) < order(b); });
  std::rotate(best.begin(), first, best.end());
  return best;
}

std::string name_of(const Stream& stream, const Station& station) {
  if (station.kernel != nullptr) return label(*station.kernel);
  return "a wait for an event on stream " + std::to_string(stream.id) + "(" + std::to_string(stream.device) + ")";
}

std::string line_of(const Stream& stream, const Station& station) {
  std::string name = "  " + name_of(stream, station);
  if (const Kernel* kernel = station.kernel.get()) {
    if (kernel->waits()) return name + " holds " + holding(*kernel) + ", " + waits_for(*kernel);
    return name + " has not begun, and cannot end, on stream " + std::to_string(stream.id);
  }
  const Stream& on = *station.mark->on.load();
  return name + ", which stream " + std::to_string(on.id) + " of card " + std::to_string(on.device) + " never records";
}

std::string seconds_of(bool collectives) {
  std::string own = std::to_string(wait_limit_ms / 1000) + " s, the longest time of an operator";
  if (!collectives) return own;
  const char* set = getenv("HCCL_EXEC_TIMEOUT");
  long seconds = set == nullptr ? 1091 : strtol(set, nullptr, 10);
  if (seconds <= 0 || seconds > 1091) seconds = 1091;  // the most in AIV mode
  return own + ", or " + std::to_string(seconds) + " s (HCCL_EXEC_TIMEOUT), the limit of a collective on vector cores";
}

std::string words(const std::vector<Reach>& reaches) {
  bool collectives = false;
  Stuck stuck;
  std::vector<std::string> lines, names;
  for (const Reach& reach : reaches) {
    const Station& station = *reach.next();
    stuck[reach.stream] = &reach;
    lines.push_back(line_of(*reach.stream, station));
    collectives |= station.kernel != nullptr && station.kernel->collective != nullptr;
  }
  for (Stream* each : circle(stuck)) names.push_back(name_of(*each, *stuck[each]->next()));
  if (!names.empty()) names.push_back(names.front());
  return "Deadlock: these wait for each other and can never end. It is reported at once; a card would report it after " +
         seconds_of(collectives) + ".\n" + joined(lines, "\n") + "\n  " + joined(names, " -> ") +
         "\nA limit of the cores of one of them can fix it (torch.npu.set_stream_limit): toprope explain limits";
}

}  // namespace

std::string label(const Kernel& kernel) {
  bool unclear = false;
  for (const auto& [launch, each] : scheduler().kernels) {
    unclear |= each.get() != &kernel && each->device == kernel.device && each->launch.name == kernel.launch.name;
  }
  std::string stream = unclear ? "[stream " + std::to_string(kernel.stream->id) + "]" : "";
  return kernel.launch.name + stream + "(" + std::to_string(kernel.device) + ")";
}

std::string holding(const Kernel& kernel) {
  Cores needed = {{kernel.needed * kernel.block[kCube], kernel.needed * kernel.block[kVector]}};
  bool mixed = needed[kCube] > 0 && needed[kVector] > 0;
  std::string held = mixed ? std::to_string(kernel.held) : number(kernel.held_cores());
  std::string of = mixed ? std::to_string(kernel.needed) : number(needed);
  return held + " of " + of + " " + kind_of_cores(needed);
}

std::string waits_for(const Kernel& kernel) {
  if (kernel.stage == Stage::kReady) return words_of_peers(kernel);
  if (kernel.stage == Stage::kQueued) return "waits for its turn on stream " + std::to_string(kernel.stream->id);
  if (kernel.stage != Stage::kWaiting) return "";
  std::vector<std::string> parts;
  for (const Kernel* each : holders(kernel)) parts.push_back(label(*each));
  return "waits for " + number(kernel.lacking()) + " more" + (parts.empty() ? "" : " from " + joined(parts, ", "));
}

std::string list_kernels() {
  static const char* const stages[] = {"queued", "waits for cores", "waits for peers", "runs", "failed"};
  std::lock_guard<std::mutex> guard(scheduler().mutex);
  std::string list;
  for (const auto& [launch, kernel] : scheduler().kernels) {
    Cores held = kernel->held_cores();
    const Cores& wanted = kernel->launch.cores;
    for (int each : {kernel->device, static_cast<int>(kernel->stream->id)}) list += std::to_string(each) + "\t";
    list += kernel->launch.name + "\t";
    for (int each : {wanted[kCube], wanted[kVector], held[kCube], held[kVector]}) list += std::to_string(each) + "\t";
    list += std::string(stages[static_cast<int>(kernel->stage)]) + "\t" + waits_for(*kernel) + "\n";
  }
  return list;
}

bool end_deadlock() {
  if (scheduler().waits == 0) return false;
  int code = kCubeTimeout;
  std::string text;
  std::vector<KernelPointer> kernels;
  {
    Analysis analysis;
    if (!analysis.finds_any()) return false;
    std::vector<Reach> stuck = analysis.stuck();
    text = words(stuck);
    for (const Reach& reach : stuck) {
      if (KernelPointer kernel = reach.next()->kernel) {
        if (kernel->waits()) kernels.push_back(kernel);
        code = std::max(code, kernel->timeout());
      }
    }
    for (const Reach& reach : stuck) reach.stream->fail(code, text);
  }
  for (const KernelPointer& kernel : kernels) fail(*kernel, code, text);
  hand_out();
  return true;
}

}  // namespace toprope::sim
