// The caching allocator of one card: blocks, pools, and memory that streams still use. Used by memory.cpp, which finds
// the card of an address, by rehearsal.cpp and by sharing.cpp.
//
// Tests: tests/sim/simulated/test_core.py compares it, block by block, with torch_npu's rules as
// tests/helpers/core_library.py has them; test_stream_memory.py and test_out_of_memory.py there hold what a program
// sees.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "address_space.h"
#include "block.h"
#include "cards.h"
#include "faults.h"
#include "ledger.h"
#include "memory.h"
#include "stream.h"
#include "trace.h"

namespace toprope::sim {

class Heap {
 public:
  explicit Heap(int device)
      : physical_(physical_id(device)),
        begin_(address_space.base + device * address_space.stride),
        pieces_(begin_, address_space.stride),
        table_(address_space.blocks + static_cast<size_t>(device) * (address_space.stride / kStep)),
        ledger_(device) {}

  int allocate(int64_t stream, size_t bytes, void** data, Shortage* shortage, Context context = nullptr,
               Origin origin = {}) {
    size_t size = block_size(bytes);
    std::unique_lock<std::mutex> lock(mutex_);
    bool refused = watching(kFaults) && fault_of_allocation();
    Place place{open_.empty() ? 0 : open_pool_here(), stream, context};
    Block* block = refused ? nullptr : fitting_block(place, size);
    if (block == nullptr && !refused) block = new_piece(place, size);
    if (block == nullptr && !refused) block = last_resort(lock, place, size);
    if (block == nullptr) {
      ledger_.failed();
      note(Happened::kOutOfMemory, nullptr, size, place.pool, stream, context);
      *shortage = {machine().capacity, ledger_.allocated(), reserved_, taken_of_card(physical_),
                   piece_size(size), fraction < 1.0 ? limit() : 0};
      return kOutOfMemory;
    }
    hand_out(block, bytes, origin, std::move(context));
    *data = block->data;
    return kOk;
  }

  void release(void* data, Context context = nullptr) {
    std::lock_guard<std::mutex> guard(mutex_);
    Block* block = at(data);
    if (block == nullptr || !block->in_use) return;
    take_back(block, context);
  }

  void used_by(void* data, Stream& by) {
    std::lock_guard<std::mutex> guard(mutex_);
    Block* block = at(data);
    if (block == nullptr || block->stream == by.id) return;
    for (const Use& use : block->uses) {
      if (use.stream == &by) return;
    }
    block->uses.push_back({&by, 0});
  }

  void unused_by(void* data, const Stream& by, int64_t here) {
    std::lock_guard<std::mutex> guard(mutex_);
    Block* block = at(data);
    if (block == nullptr || block->stream != here) return;
    std::erase_if(block->uses, [&by](const Use& use) { return use.stream == &by; });
  }

  void mark_all_unsafe() {
    std::lock_guard<std::mutex> guard(mutex_);
    for (Block* block : firsts_) {
      for (; block != nullptr; block = block->after) block->unsafe = block->in_use;
    }
  }

  // What a host kernel kept for itself after its call no longer counts.
  void stop_counting(void* data, uint64_t life) {
    std::lock_guard<std::mutex> guard(mutex_);
    Block* block = at(data);
    if (block == nullptr || !block->in_use || !block->counted || block->life.load() != life) return;
    ledger_.discount(*block);
    block->counted = false;
    kept_ += block->size;
  }

  // Begins the counts of a new rehearsal with the blocks in use. Counts that were made before this, without the lock,
  // are dropped.
  void begin_rehearsal(int which) {
    std::lock_guard<std::mutex> guard(mutex_);
    Rehearsal* one = rehearsals[which];
    if (one == nullptr) return;
    CardMemory& card = one->cards[ledger_.device()];
    memset(static_cast<void*>(&card), 0, sizeof card);
    for (Block* block : firsts_) {
      for (; block != nullptr; block = block->after) {
        if (!block->in_use || !block->counted) continue;
        if (block->origin.kind == Held::kNotCounted) block->origin = {kBefore, Held::kOthers, block->origin.born};
        auto kind = static_cast<size_t>(block->origin.kind);
        card.live[block->origin.line][kind] += block->size;
        card.kinds[kind] += block->size;
        card.total += block->size;
      }
    }
    card.peak = card.total;
    card.peak_born = born_;
    card.is_rising = 1;
  }

  void mark_held(const void* data, Held kind, bool only_activation) {
    std::lock_guard<std::mutex> guard(mutex_);
    Block* block = at(data);
    if (block == nullptr || !block->in_use || !block->counted) return;
    if (block->origin.kind == Held::kNotCounted || block->origin.kind == kind) return;
    if (only_activation && block->origin.kind != Held::kActivations) return;
    move_line(ledger_.device(), block->size, block->origin, kind);
    block->origin.kind = kind;
  }

  void note_shortage(uint64_t wanted, uint16_t line) {
    std::lock_guard<std::mutex> guard(mutex_);
    keep_shortage(ledger_.device(), wanted, line);
  }

  void empty_cache() {
    std::unique_lock<std::mutex> lock(mutex_);
    wait_for_uses(lock);
    drop_free_pieces();
  }

  MemoryStats stats() {
    std::lock_guard<std::mutex> guard(mutex_);
    return ledger_.stats();
  }

  std::vector<int64_t> snapshot() {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<int64_t> numbers;
    for (const Block* first : firsts_) {
      numbers.insert(numbers.end(),
                     {reinterpret_cast<int64_t>(first->data), 0, first->stream, !first->small, first->pool, 0});
      size_t end = numbers.size();  // of this piece's own numbers
      for (const Block* block = first; block != nullptr; block = block->after) {
        int64_t state = block->in_use ? 1 : block->free_to_merge ? 0 : 2;
        numbers.insert(numbers.end(), {static_cast<int64_t>(block->size), static_cast<int64_t>(block->requested), state});
        numbers[end - 5] += static_cast<int64_t>(block->size);
        numbers[end - 1]++;
      }
    }
    return numbers;
  }

  void reset_peaks() {
    std::lock_guard<std::mutex> guard(mutex_);
    ledger_.reset_peaks();
  }

  void reset_totals() {
    std::lock_guard<std::mutex> guard(mutex_);
    ledger_.reset_totals();
  }

  // The file behind the piece that holds this block, made now where there is none; see sharing.cpp.
  struct SharedPiece {
    char* begin;
    size_t size;
    int file;
    Counter* references;
  };
  SharedPiece* share(void* data);
  SharedPiece* shared_piece_of(const void* data);

  // Addresses of the card for memory that is another process's.
  char* take_addresses(size_t size) {
    std::lock_guard<std::mutex> guard(mutex_);
    return pieces_.take((size + kGrain - 1) / kGrain * kGrain);
  }
  void give_back_addresses(char* data, size_t size) {
    std::lock_guard<std::mutex> guard(mutex_);
    pieces_.give_back(data, (size + kGrain - 1) / kGrain * kGrain);
  }

  void use_pool(int64_t pool) {
    std::lock_guard<std::mutex> guard(mutex_);
    users_[pool]++;
  }
  int pool_users(int64_t pool) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = users_.find(pool);
    return found == users_.end() ? 0 : found->second;
  }
  void set_pool(int64_t pool, bool used_when_full, bool unsplit) {
    std::lock_guard<std::mutex> guard(mutex_);
    set(used_when_full_, pool, used_when_full);
    set(unsplit_, pool, unsplit);
  }
  void open_pool(int64_t pool, bool every_thread) {
    std::lock_guard<std::mutex> guard(mutex_);
    users_[pool]++;
    open_.push_back({pool, every_thread ? std::thread::id() : std::this_thread::get_id()});
  }
  void close_pool(int64_t pool) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = std::find_if(open_.rbegin(), open_.rend(), [pool](const Open& each) { return each.pool == pool; });
    if (found != open_.rend()) open_.erase(std::next(found).base());
  }
  void release_pool(int64_t pool) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = users_.find(pool);
    if (found != users_.end() && --found->second == 0) users_.erase(found);
  }

  // How the pieces of a pool are cut now.
  PoolState pool_state(int64_t pool) {
    std::unique_lock<std::mutex> lock(mutex_);
    wait_for_uses(lock);
    PoolState state;
    for (const Block* block : firsts_) {
      if (block->pool != pool) continue;
      PoolState::Piece& piece = state.pieces.emplace_back(PoolState::Piece{block->data, {}});
      for (; block != nullptr; block = block->after) {
        piece.parts.push_back({block->size, block->requested, block->in_use, block->origin});
      }
    }
    return state;
  }

  // Cuts the pieces of a pool as they were; pieces that came later are free. False where a host kernel keeps memory in
  // the pool, which cannot be moved.
  bool restore_pool(int64_t pool, const PoolState& state, const Context& context) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::vector<Block*> used = used_blocks(pool);
    if (std::any_of(used.begin(), used.end(), [](const Block* block) { return !block->counted; })) return false;
    for (Block* block : used) take_back(block, context);
    wait_for_uses(lock);
    for (const PoolState::Piece& piece : state.pieces) {
      Block* block = at(piece.data);
      free_blocks(block->small).erase(block);
      block->free_to_merge = false;
      for (size_t i = 0; i < piece.parts.size(); i++) {
        const PoolState::Part& part = piece.parts[i];
        Block* rest = i + 1 < piece.parts.size() ? cut(block, part.size) : nullptr;
        if (part.in_use) {
          hand_out(block, part.requested, part.origin, context);
        } else {
          enter_free(block);
        }
        block = rest;
      }
    }
    return true;
  }

  // Whether these are all the blocks of a pool that are in use.
  bool uses_only(int64_t pool, const std::set<const void*>& data) {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<Block*> used = used_blocks(pool);
    return used.size() == data.size() &&
           std::all_of(used.begin(), used.end(), [&data](const Block* block) { return data.contains(block->data); });
  }

  void record_history(size_t room) {
    std::lock_guard<std::mutex> guard(mutex_);
    room_ = room;
    events_.clear();
  }
  std::vector<HistoryEvent> history() {
    std::lock_guard<std::mutex> guard(mutex_);
    return {events_.begin(), events_.end()};
  }

  Block* at(const void* data) const { return table_[(static_cast<const char*>(data) - begin_) / kStep]; }

  double fraction = 1.0;

 private:
  static void set(std::set<int64_t>& pools, int64_t pool, bool is) {
    if (is) {
      pools.insert(pool);
    } else {
      pools.erase(pool);
    }
  }

  size_t limit() const { return static_cast<size_t>(static_cast<double>(machine().capacity) * fraction); }

  FreeBlocks& free_blocks(bool small) { return small ? free_small_ : free_large_; }

  struct Place {
    int64_t pool, stream;
    const Context& context;
  };
  struct Open {
    int64_t pool;
    std::thread::id thread;  // none: for every thread
  };

  void hand_out(Block* block, size_t bytes, const Origin& origin, Context context) {
    block->in_use = true;
    block->counted = true;
    block->adopted = false;
    block->unsafe = false;
    block->requested = bytes;
    block->origin = origin;
    block->origin.born = ++born_;
    ledger_.handed_out(*block);
    if (room_ > 0) [[unlikely]] {
      note(Happened::kAlloc, block->data, block->size, block->pool, block->stream, context);
      block->context = std::move(context);
    }
  }

  void take_back(Block* block, const Context& context) {
    ledger_.freed(*block);
    if (room_ > 0 || block->context) [[unlikely]] {
      note(Happened::kFreeRequested, *block, context);
      if (block->uses.empty()) note(Happened::kFreeCompleted, *block, context);
      block->context = context;
    }
    block->in_use = false;
    block->life.fetch_add(1, std::memory_order_relaxed);
    if (block->counted) {
      ledger_.discount(*block);
    } else {
      kept_ -= block->size;
    }
    block->counted = true;
    if (!block->uses.empty()) {
      for (Use& use : block->uses) use.ticket = use.stream->submitted.load();
      waiting_.push_back(block);
    } else {
      ledger_.inactive(*block);
      merge(block);
    }
  }

  std::vector<Block*> used_blocks(int64_t pool) const {
    std::vector<Block*> used;
    for (Block* block : firsts_) {
      if (block->pool != pool) continue;
      for (; block != nullptr; block = block->after) {
        if (block->in_use) used.push_back(block);
      }
    }
    return used;
  }

  int64_t open_pool_here() const {
    for (auto each = open_.rbegin(); each != open_.rend(); ++each) {
      if (each->thread == std::thread::id() || each->thread == std::this_thread::get_id()) return each->pool;
    }
    return 0;
  }

  void note(Happened what, const void* data, size_t size, int64_t pool, int64_t stream, const Context& context) {
    if (room_ == 0) [[likely]] return;
    if (events_.size() >= room_) events_.pop_front();
    auto now = std::chrono::system_clock::now().time_since_epoch();
    events_.push_back({what, reinterpret_cast<int64_t>(data), static_cast<int64_t>(size), stream, pool,
                       std::chrono::duration_cast<std::chrono::microseconds>(now).count(), context});
  }
  void note(Happened what, const Block& block, const Context& context) {
    note(what, block.data, block.size, block.pool, block.stream, context);
  }

  // What streams no longer use is reused before the rest of a piece is cut.
  Block* fitting_block(const Place& place, size_t size) {
    if (!waiting_.empty()) take_back_waiting();
    return search(place, size);
  }

  Block* search(const Place& place, size_t size) {
    bool small = size <= kSmallBlock;
    FreeBlocks& blocks = free_blocks(small);
    Block key;
    key.pool = place.pool;
    key.stream = place.stream;
    key.size = size;
    auto found = blocks.lower_bound(&key);
    if (found == blocks.end() || (*found)->stream != place.stream || (*found)->pool != place.pool) return nullptr;
    Block* block = *found;
    bool whole = block->size >= memory_rules.max_split;  // such a block is not split
    if (whole && (size < memory_rules.max_split || block->size >= size + memory_rules.max_rounding)) return nullptr;
    blocks.erase(found);
    block->free_to_merge = false;
    ledger_.free_part(*block, false);
    split(block, size);
    return block;
  }

  Block* new_piece(const Place& where, size_t size) {
    size_t bytes = piece_size(size);
    char* data = take_piece(bytes);
    if (data == nullptr) return nullptr;
    reserved_ += bytes;
    bool small = size <= kSmallBlock;
    ledger_.reserved(small, bytes);
    Block* block = make_block(data, bytes, where.pool, where.stream, small);
    note(Happened::kSegmentAlloc, *block, where.context);
    place(block);
    firsts_.insert(block);
    split(block, size);
    return block;
  }

  // The card is full: waits for memory that other streams still use, gives back all that is free, and tries again.
  Block* last_resort(std::unique_lock<std::mutex>& lock, const Place& place, size_t size) {
    ledger_.retried();
    if (place.pool == 0) {
      for (int64_t pool : used_when_full_) {
        if (Block* block = search({pool, place.stream, place.context}, size)) return block;
      }
    }
    wait_for_uses(lock);
    drop_free_pieces();
    return new_piece(place, size);
  }

  // The lock is open while it waits: the streams' work may need it.
  void wait_for_uses(std::unique_lock<std::mutex>& lock) {
    std::vector<Use> uses;
    for (const Block* block : waiting_) uses.insert(uses.end(), block->uses.begin(), block->uses.end());
    if (!uses.empty()) {
      lock.unlock();
      for (const Use& use : uses) use.stream->wait_until(use.ticket);
      lock.lock();
    }
    take_back_waiting();
  }

  // A piece from the card, unless this process would exceed its part or all processes the capacity.
  char* take_piece(size_t bytes) {
    if (reserved_ + bytes > limit() + kept_) return nullptr;
    if (!take_from_card(physical_, bytes, machine().capacity + kept_)) return nullptr;
    char* data = pieces_.take(bytes);
    if (data == nullptr) give_back_to_card(physical_, bytes);
    return data;
  }

  // Blocks are reused, never deleted: `life` may be read while another thread gives the block up.
  Block* make_block(char* data, size_t size, int64_t pool, int64_t stream, bool small) {
    Block* block;
    if (spare_.empty()) {
      block = new Block();
    } else {
      block = spare_.back();
      spare_.pop_back();
    }
    block->data = data;
    block->size = size;
    block->pool = pool;
    block->stream = stream;
    block->small = small;
    block->before = block->after = nullptr;
    block->in_use = block->free_to_merge = false;
    block->context = nullptr;
    return block;
  }

  void forget_shared(char* data);

  Block*& slot(const char* data) { return table_[static_cast<size_t>(data - begin_) / kStep]; }
  void place(Block* block) { slot(block->data) = block; }

  // Cuts a block to size; the rest becomes a free block of its own where the vendor's rule finds it worth it.
  void split(Block* block, size_t size) {
    size_t rest = block->size - size;
    if (!unsplit_.empty() && unsplit_.contains(block->pool)) return;
    if (block->small ? rest < kStep : rest <= kSmallBlock || size >= memory_rules.max_split) return;
    enter_free(cut(block, size));
  }

  // Cuts the end off a block; returns it, in no list.
  Block* cut(Block* block, size_t size) {
    Block* rest = make_block(block->data + size, block->size - size, block->pool, block->stream, block->small);
    rest->before = block;
    rest->after = block->after;
    if (block->after != nullptr) block->after->before = rest;
    block->after = rest;
    block->size = size;
    place(rest);
    return rest;
  }

  void enter_free(Block* block) {
    block->free_to_merge = true;
    free_blocks(block->small).insert(block);
    ledger_.free_part(*block, true);
  }

  void merge(Block* block) {
    for (Block* other : {block->before, block->after}) {
      if (other == nullptr || !other->free_to_merge) continue;
      free_blocks(other->small).erase(other);
      ledger_.free_part(*other, false);
      slot(other->data) = nullptr;
      if (other == block->before) {
        block->data = other->data;
        block->before = other->before;
        if (other->before != nullptr) other->before->after = block;
        slot(other->data + other->size) = nullptr;
        if (firsts_.erase(other) > 0) firsts_.insert(block);
      } else {
        block->after = other->after;
        if (other->after != nullptr) other->after->before = block;
      }
      block->size += other->size;
      spare_.push_back(other);
    }
    place(block);
    enter_free(block);
  }

  // Frees blocks whose other streams have done the work that was queued when they were marked.
  void take_back_waiting() {
    auto is_done = [](const Block* block) {
      return std::all_of(block->uses.begin(), block->uses.end(),
                         [](const Use& use) { return use.stream->done.load() >= use.ticket; });
    };
    std::erase_if(waiting_, [&](Block* block) {
      if (!is_done(block)) return false;
      block->uses.clear();
      note(Happened::kFreeCompleted, *block, block->context);
      ledger_.inactive(*block);
      merge(block);
      return true;
    });
  }

  void drop_free_pieces() {
    for (FreeBlocks* blocks : {&free_small_, &free_large_}) {
      std::erase_if(*blocks, [&](Block* block) {
        if (block->before != nullptr || block->after != nullptr || users_.contains(block->pool)) return false;
        note(Happened::kSegmentFree, *block, nullptr);
        slot(block->data) = nullptr;
        firsts_.erase(block);
        forget_shared(block->data);
        pieces_.give_back(block->data, block->size);
        give_back_to_card(physical_, block->size);
        reserved_ -= block->size;
        ledger_.given_back(block->small, block->size);
        spare_.push_back(block);
        return true;
      });
    }
  }

  const int physical_;
  char* const begin_;
  Pieces pieces_;
  Block** const table_;
  std::mutex mutex_;
  std::map<char*, SharedPiece> shared_;  // by the piece's address
  FreeBlocks free_small_, free_large_;
  std::set<Block*> firsts_;  // of the pieces
  std::vector<Block*> spare_;
  std::vector<Block*> waiting_;  // freed, but another stream still uses them
  std::map<int64_t, int> users_;  // of the private pools
  std::set<int64_t> used_when_full_, unsplit_;
  std::vector<Open> open_;        // pools that memory is taken from now, the last one first
  std::deque<HistoryEvent> events_;
  size_t room_ = 0;  // for events; 0 while none are recorded
  size_t reserved_ = 0;
  uint64_t born_ = 0;  // allocations
  size_t kept_ = 0;  // bytes that host kernels kept for themselves
  Ledger ledger_;
};

Heap& heap(int device);

}  // namespace toprope::sim
