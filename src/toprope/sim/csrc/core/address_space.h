// The addresses of the cards: one reserved range, cut into equal parts, of which pieces are made usable on demand. Used
// by the allocator (memory.cpp, heap.h).
//
// Tests: tests/sim/simulated/test_core.py (holes between pieces, sixteen cards of the largest size, memory that goes
// back to the host).
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>

#include "device.h"

namespace toprope::sim {

constexpr size_t kGrain = size_t{2} << 20;  // pieces are multiples of this, and begin at one

struct Block;

struct AddressSpace {
  char* base = nullptr;
  Block** blocks = nullptr;  // by address, a place for each step of the allocator; cards one after the other
  size_t stride = 0;  // bytes of addresses of one card
  int cards = 0;

  int card_of(const void* data) const {
    size_t offset = static_cast<size_t>(static_cast<const char*>(data) - base);
    return offset < stride * static_cast<size_t>(cards) ? static_cast<int>(offset / stride) : kNoCard;
  }

  static constexpr int kNoCard = -1;
};

extern AddressSpace address_space;

// The usable pieces of one card's addresses.
class Pieces {
 public:
  Pieces(char* begin, size_t size);
  char* take(size_t size);  // null when no hole is large enough, or the host has no memory left
  void give_back(char* data, size_t size);

 private:
  char* begin_;
  std::map<size_t, size_t> holes_;  // offset -> bytes
};

}  // namespace toprope::sim
