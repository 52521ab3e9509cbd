// The signatures' memory and look-up, and the rule for what the level-2 cache still holds; see signatures.h.
//
// toprope/estimate/record/recorder.py has the same rule of the cache for models on paper: change both. Tests:
// tests/sim/simulated/test_timing.py.
#include "signatures.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace toprope::sim {

namespace {

std::mutex signatures_mutex;
std::atomic<Signatures*> current_signatures{nullptr};
std::unordered_multimap<size_t, uint64_t>* numbers = nullptr;  // by hash

// The bytes that differ between signatures: those of its head and of the shapes it has.
std::string_view bytes_of(const Signature& one) {
  return {reinterpret_cast<const char*>(&one), sizeof one - sizeof one.shapes + one.tensors * sizeof one.shapes[0]};
}

}  // namespace

void SignatureOf::add(Role role, int dtype, uint8_t form, uint64_t bytes, const int64_t* sizes, int64_t dimensions) {
  if (made_.tensors == kMaxTensors) {
    (role == Role::kRead ? made_.more_read : made_.more_written) += bytes;
    return;
  }
  TensorShape& shape = made_.shapes[made_.tensors++];
  shape.dtype = static_cast<int8_t>(dtype);
  shape.role = role;
  shape.form = form;
  shape.bytes = bytes;
  int64_t joined = dimensions > kMaxDimensions ? dimensions - kMaxDimensions : 0;  // into the first
  shape.dimensions = static_cast<uint8_t>(dimensions - joined);
  for (int64_t i = 0; i < shape.dimensions; i++) shape.sizes[i] = sizes[i + joined];
  for (int64_t i = 0; i < joined; i++) shape.sizes[0] *= sizes[i];
}

thread_local int in_composite = 0, in_graph = 0;
bool (*in_part_of_gradient)() = [] { return false; };

namespace {

constexpr size_t kMaxBlocks = 1 << 16;
std::atomic<uint64_t> cache_bytes{0};
std::mutex touched_mutex;

// What operators of one card touched: bytes in all, and how many there were when a block was touched last.
struct Touched {
  uint64_t bytes = 0;
  std::unordered_map<const void*, uint64_t> blocks;
};

std::unordered_map<int, Touched>& touched() {
  static auto* all = new std::unordered_map<int, Touched>();
  return *all;
}

}  // namespace

bool touch(int device, const void* block, uint64_t bytes) {
  const uint64_t fits = cache_bytes.load(std::memory_order_relaxed);
  if (fits == 0) return false;
  std::lock_guard<std::mutex> guard(touched_mutex);
  Touched& here = touched()[device];
  if (here.blocks.size() >= kMaxBlocks) {
    std::erase_if(here.blocks, [&](const auto& one) { return here.bytes - one.second > fits; });
    if (here.blocks.size() >= kMaxBlocks) here.blocks.clear();
  }
  auto [place, is_new] = here.blocks.try_emplace(block, 0);
  const bool is_cold = is_new || here.bytes - place->second > fits;
  here.bytes += bytes;
  place->second = here.bytes;
  return is_cold;
}

void forget_touched() {
  std::lock_guard<std::mutex> guard(touched_mutex);
  touched().clear();
}

void set_cache(uint64_t bytes) { cache_bytes = bytes; }

uint64_t number_of(const Signature& signature) {
  if (is_part()) return 0;
  const std::string_view bytes = bytes_of(signature);
  const size_t hash = std::hash<std::string_view>{}(bytes);
  std::lock_guard<std::mutex> guard(signatures_mutex);
  Signatures* all = current_signatures.load(std::memory_order_relaxed);
  if (all == nullptr) return 0;
  auto [place, end] = numbers->equal_range(hash);
  for (; place != end; ++place) {
    if (bytes_of(all->signatures[place->second]) != bytes) continue;
    add(all->calls[place->second]);
    return place->second + 1;
  }
  const uint64_t number = all->count.load(std::memory_order_relaxed);
  if (number == kMaxSignatures) return 0;
  all->signatures[number] = signature;
  add(all->calls[number]);
  numbers->emplace(hash, number);
  all->count.store(number + 1, std::memory_order_release);
  return number + 1;
}

int keep_signatures(const char* path) {
  std::lock_guard<std::mutex> guard(signatures_mutex);
  if (current_signatures != nullptr && path == nullptr) return 0;
  int file = -1;
  if (path != nullptr) {
    file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return errno;
    if (ftruncate(file, sizeof(Signatures)) != 0) {
      int error = errno;
      close(file);
      return error;
    }
  }
  void* place = mmap(nullptr, sizeof(Signatures), PROT_READ | PROT_WRITE,
                     file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (place == MAP_FAILED) return errno;
  auto* all = static_cast<Signatures*>(place);
  memcpy(all->magic, "TRSIGNA\x01", sizeof all->magic);
  if (numbers == nullptr) numbers = new std::unordered_multimap<size_t, uint64_t>();
  numbers->clear();
  current_signatures = all;
  // A child that is forked meanwhile does not write into its parent's file.
  [[maybe_unused]] static int once = pthread_atfork(
      [] { signatures_mutex.lock(), touched_mutex.lock(); }, [] { touched_mutex.unlock(), signatures_mutex.unlock(); },
      [] {
        current_signatures = nullptr;
        touched_mutex.unlock(), signatures_mutex.unlock();
      });
  return 0;
}

const Signatures* all_signatures() { return current_signatures; }

}  // namespace toprope::sim
