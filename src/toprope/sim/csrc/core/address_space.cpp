// The range of addresses that is reserved for the cards, and its usable pieces; see address_space.h.
//
// Tests: tests/sim/simulated/test_core.py.
#include "address_space.h"

#include <sys/mman.h>

#include <algorithm>

#include "block.h"
#include "memory.h"

namespace toprope::sim {

AddressSpace address_space;

namespace {

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

}  // namespace

namespace {

// Places for the blocks of all cards; memory is only taken for those that are used.
size_t table_bytes(size_t stride, int cards) { return stride / kStep * static_cast<size_t>(cards) * sizeof(Block*); }

bool reserve(size_t stride, int cards) {
  size_t bytes = stride * static_cast<size_t>(cards) + kGrain;
  void* place = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return false;
  void* table = mmap(nullptr, table_bytes(stride, cards), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) {
    munmap(place, bytes);
    return false;
  }
  address_space.base = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(place), kGrain));
  address_space.blocks = static_cast<Block**>(table);
  address_space.stride = stride;
  address_space.cards = cards;
  return true;
}

}  // namespace

bool reserve_address_space(int cards, uint64_t capacity) {
  if (address_space.cards > 0) {  // of an earlier description that was never used
    munmap(address_space.base, address_space.stride * static_cast<size_t>(address_space.cards));
    munmap(address_space.blocks, table_bytes(address_space.stride, address_space.cards));
    address_space = {};
  }
  // Twice the capacity leaves room for holes between pieces; a host that grants less gets the bare minimum.
  for (size_t wanted : {2 * capacity, capacity + capacity / 8}) {
    if (reserve(round_up(wanted, kGrain) + 32 * kGrain, cards)) return true;
  }
  return false;
}

Pieces::Pieces(char* begin, size_t size) : begin_(begin) { holes_[0] = size; }

char* Pieces::take(size_t size) {
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    if (hole->second < size) continue;
    auto [offset, length] = *hole;
    char* data = begin_ + offset;
    if (mprotect(data, size, PROT_READ | PROT_WRITE) != 0) return nullptr;
    madvise(data, size, MADV_HUGEPAGE);  // spares most page faults; where the kernel has none it does no harm
    holes_.erase(hole);
    if (length > size) holes_[offset + size] = length - size;
    return data;
  }
  return nullptr;
}

void Pieces::give_back(char* data, size_t size) {
  mmap(data, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  auto hole = holes_.emplace(static_cast<size_t>(data - begin_), size).first;
  if (auto next = std::next(hole); next != holes_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    holes_.erase(next);
  }
  if (hole != holes_.begin()) {
    auto before = std::prev(hole);
    if (before->first + before->second == hole->first) {
      before->second += hole->second;
      holes_.erase(hole);
    }
  }
}

}  // namespace toprope::sim
