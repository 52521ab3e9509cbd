// PYTORCH_NPU_ALLOC_CONF: torch reads the keys that all accelerators have, this file torch_npu's own
// (NPUAllocatorConfig.cpp of Ascend/pytorch, whose texts and limits it follows). Read once, before the first allocation
// (memory.cpp).
//
// Tests: tests/sim/simulated/test_allocator_settings.py.
#include <c10/core/AllocatorConfig.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <unordered_set>

#include "../core/memory_rules.h"
#include "glue.h"

namespace toprope::glue {

namespace {

using Settings = c10::CachingAllocator::AcceleratorAllocatorConfig;
using Tokens = c10::CachingAllocator::ConfigTokenizer;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kUsualPiece = 20 * kMiB;
constexpr const char* kInvalidValue = "ERR00003 PTA invalid value";

const std::unordered_set<std::string>& own_keys() {
  static const auto* keys = new std::unordered_set<std::string>{
      "base_addr_aligned_kb", "multi_stream_lazy_reclaim", "page_size", "per_process_memory_fraction",
      "pin_memory_expandable_segments", "pinned_mem_register", "pinned_reserve_segment_size_mb",
      "release_lock_on_npumalloc", "segment_size_mb", "throw_on_npumalloc_oom"};
  return *keys;
}

// What torch knows beyond these, torch_npu refuses.
bool is_common_key(const std::string& key) {
  static const std::unordered_set<std::string> keys = {
      "expandable_segments", "garbage_collection_threshold", "large_segment_size_mb", "max_non_split_rounding_mb",
      "max_split_size_mb", "pinned_max_cached_size_mb", "pinned_max_round_threshold_mb",
      "pinned_use_background_threads", "roundup_power2_divisions"};
  return keys.count(key) > 0;
}

void check_keys(const std::string& text) {
  Tokens tokens(text);
  for (size_t i = 0; i < tokens.size(); i++) {
    const std::string& key = tokens[i];
    if (own_keys().count(key) == 0 && !is_common_key(key)) {
      const char* reason = Settings::getKeys().count(key) > 0 ? "torch_npu not support key '" : "Unrecognized key '";
      TORCH_CHECK_VALUE(false, reason, key, "' in NPU allocator config, ", trailer("ERR01003 OPS invalid value"));
    }
    i = tokens.skipKey(i);
    if (i + 1 < tokens.size()) tokens.checkToken(++i, ",");
  }
}

double fraction_of(const Tokens& tokens, size_t i) {
  if (i >= tokens.size()) raise_coded("Error, expecting per_process_memory_fraction value", kInvalidValue);
  double value = tokens.toDouble(i);
  if (value < 0.0 || value > 1.0) {
    raise_coded("per_process_memory_fraction is invalid, set it in [0.0, 1.0]", kInvalidValue);
  }
  return value;
}

size_t segment_of(const Tokens& tokens, size_t i) {
  if (i >= tokens.size()) raise_coded("Error, expecting segment_size_mb value", kInvalidValue);
  size_t value = tokens.toSizeT(i);
  if (value < 20 || value > 512) {
    raise_coded("CachingAllocator option segment_size_mb error, must be [20, 512], dtype is int", kInvalidValue);
  }
  return value * kMiB;
}

// What torch has read by now, and our own keys of the text.
void apply(const std::string& text) {
  sim::MemoryRules rules;
  Tokens tokens(text);
  for (size_t i = 0; i < tokens.size(); i++) {
    const std::string key = tokens[i];
    if (key == "per_process_memory_fraction") {
      tokens.checkToken(++i, ":");
      double fraction = fraction_of(tokens, ++i);
      for (int device = 0; device < sim::device_count(); device++) sim::set_fraction(device, fraction);
    } else if (key == "segment_size_mb") {
      tokens.checkToken(++i, ":");
      rules.segment = segment_of(tokens, ++i);
    } else {
      i = tokens.skipKey(i);
    }
    if (i + 1 < tokens.size()) tokens.checkToken(++i, ",");
  }
  if (Settings::use_expandable_segments() && (Settings::max_split_size() != std::numeric_limits<size_t>::max() ||
                                              Settings::garbage_collection_threshold() != 0)) {
    raise_coded("`max_split_size_mb` or `garbage_collection_threshold`, cannot be enabled with `expandable_segments`, "
                "please set `expandable_segments` to `False`.",
                "ERR01001 OPS invalid parameter");
  }
  size_t large = Settings::large_segment_size();
  rules.medium_piece = large != kUsualPiece ? large : std::max(rules.segment, kUsualPiece);
  rules.max_split = Settings::max_split_size();
  rules.max_rounding = Settings::max_non_split_rounding_size();
  const std::vector<size_t>& divisions = Settings::roundup_power2_divisions();
  std::copy_n(divisions.begin(), std::min(divisions.size(), rules.divisions.size()), rules.divisions.begin());
  sim::memory_rules = rules;
}

// Registered before main begins, as torch's own backends do: from then on torch accepts these keys.
const c10::CachingAllocator::DeviceConfigParserHookRegistry registration(&apply, own_keys());

}  // namespace

void read_allocator_settings() {
  static std::once_flag once;
  std::call_once(once, [] {  // raises again where the text stays wrong
    const char* own = getenv("PYTORCH_NPU_ALLOC_CONF");
    const char* common = getenv("PYTORCH_ALLOC_CONF");
    if (own != nullptr && common != nullptr) {
      raise_coded("Both PYTORCH_NPU_ALLOC_CONF and PYTORCH_ALLOC_CONF have been set, please set only one of them.",
                  "ERR01003 OPS invalid value");
    }
    if (const char* text = own != nullptr ? own : common) {
      check_keys(text);
      c10::CachingAllocator::setAllocatorSettings(text);
    }
  });
}

}  // namespace toprope::glue
