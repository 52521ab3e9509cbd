#include "address_space.h"

#include <sys/mman.h>

#include <algorithm>

#include "memory.h"

namespace toprope::sim {

AddressSpace address_space;

namespace {

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

}  // namespace

bool reserve_address_space(int cards, uint64_t capacity) {
  if (cards == 0) return true;
  // Twice the capacity leaves room for holes between pieces; a host that grants less gets the bare minimum.
  for (size_t stride : {2 * capacity, capacity + capacity / 8}) {
    stride = round_up(stride, kGrain) + 32 * kGrain;
    void* place = mmap(nullptr, stride * cards + kGrain, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) continue;
    address_space.base = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(place), kGrain));
    address_space.stride = stride;
    address_space.cards = cards;
    return true;
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
