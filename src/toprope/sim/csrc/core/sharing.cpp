// Device memory shared between processes; see sharing.h.
//
// Tests: tests/sim/simulated/test_sharing.py.
#include "sharing.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "heap.h"

namespace toprope::sim {

namespace {

// Behind the bytes of the piece the file holds a count of references for each step of the allocator.
size_t count_bytes(size_t piece) { return piece / kStep * sizeof(Counter); }

Counter* map_counts(int file, size_t piece) {
  void* place = mmap(nullptr, count_bytes(piece), PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(piece));
  return place == MAP_FAILED ? nullptr : static_cast<Counter*>(place);
}

struct Mapping {
  char* begin;
  size_t size;
  Counter* references;
  int users;
};

// Pieces of other processes, by device and by the number of their file.
std::mutex shares_mutex;
std::map<std::pair<int, ino_t>, Mapping> mappings;

}  // namespace

Heap::SharedPiece* Heap::shared_piece_of(const void* data) {
  auto after = shared_.upper_bound(const_cast<char*>(static_cast<const char*>(data)));
  if (after == shared_.begin()) return nullptr;
  SharedPiece& piece = std::prev(after)->second;
  return static_cast<const char*>(data) < piece.begin + piece.size ? &piece : nullptr;
}

Heap::SharedPiece* Heap::share(void* data) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (SharedPiece* known = shared_piece_of(data)) return known;
  Block* first = at(data);
  if (first == nullptr) return nullptr;
  Block* last = first;
  while (first->before != nullptr) first = first->before;
  while (last->after != nullptr) last = last->after;
  SharedPiece piece{first->data, static_cast<size_t>(last->data + last->size - first->data), -1, nullptr};
  piece.file = memfd_create("toprope-npu", MFD_CLOEXEC);
  if (piece.file < 0) return nullptr;
  // The bytes are written to the file, which then replaces the memory: for readers this is a single step.
  bool moved = ftruncate(piece.file, static_cast<off_t>(piece.size + count_bytes(piece.size))) == 0;
  for (size_t done = 0; moved && done < piece.size;) {
    ssize_t written = pwrite(piece.file, piece.begin + done, piece.size - done, static_cast<off_t>(done));
    moved = written > 0;
    done += moved ? static_cast<size_t>(written) : 0;
  }
  moved = moved && (piece.references = map_counts(piece.file, piece.size)) != nullptr &&
          mmap(piece.begin, piece.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, piece.file, 0) != MAP_FAILED;
  if (!moved) {
    int error = errno;
    close(piece.file);
    errno = error;
    return nullptr;
  }
  return &(shared_[piece.begin] = piece);
}

void Heap::forget_shared(char* data) {
  auto found = shared_.find(data);
  if (found == shared_.end()) return;
  munmap(found->second.references, count_bytes(found->second.size));
  close(found->second.file);
  shared_.erase(found);
}

int share(void* data, Share* share) {
  int device = device_of(data);
  if (device < 0) return EINVAL;
  errno = EINVAL;
  Heap::SharedPiece* piece = heap(device).share(data);
  if (piece == nullptr) return errno;
  *share = {piece->file, piece->size, static_cast<uint64_t>(static_cast<char*>(data) - piece->begin)};
  add(piece->references[share->offset / kStep]);
  return 0;
}

uint64_t references(const void* data) {
  int device = device_of(data);
  if (device < 0) return 0;
  Heap::SharedPiece* piece = heap(device).shared_piece_of(data);
  if (piece == nullptr) return 0;
  return piece->references[static_cast<size_t>(static_cast<const char*>(data) - piece->begin) / kStep];
}

void* map_share(int device, const Share& share) {
  if (!is_device(device)) {
    errno = ENODEV;
    return nullptr;
  }
  struct stat facts {};
  if (fstat(share.file, &facts) != 0) return nullptr;
  std::lock_guard<std::mutex> guard(shares_mutex);
  auto [place, is_new] = mappings.try_emplace({device, facts.st_ino});
  Mapping& mapping = place->second;
  if (is_new) {
    mapping.size = share.bytes;
    mapping.begin = heap(device).take_addresses(share.bytes);
    mapping.references = mapping.begin == nullptr ? nullptr : map_counts(share.file, share.bytes);
    bool mapped = mapping.references != nullptr &&
                  mmap(mapping.begin, share.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, share.file, 0) !=
                      MAP_FAILED;
    if (!mapped) {
      int error = errno;
      if (mapping.begin != nullptr) heap(device).give_back_addresses(mapping.begin, share.bytes);
      mappings.erase(place);
      errno = error;
      return nullptr;
    }
  }
  mapping.users++;
  return mapping.begin + share.offset;
}

void let_go(int device, void* data) {
  std::lock_guard<std::mutex> guard(shares_mutex);
  for (auto place = mappings.begin(); place != mappings.end(); ++place) {
    Mapping& mapping = place->second;
    auto offset = static_cast<size_t>(static_cast<char*>(data) - mapping.begin);
    if (place->first.first != device || offset >= mapping.size) continue;
    mapping.references[offset / kStep].fetch_sub(1);
    if (--mapping.users > 0) return;
    munmap(mapping.references, count_bytes(mapping.size));
    heap(device).give_back_addresses(mapping.begin, mapping.size);
    mappings.erase(place);
    return;
  }
}

}  // namespace toprope::sim
