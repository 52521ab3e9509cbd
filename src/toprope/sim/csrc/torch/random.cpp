// Generators of the card; see random.h.
//
// Tests: tests/sim/simulated/test_random.py. ../../npu/graph_capture.py knows kDrawn as `_DRAW`.
#include "random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>
#include <torch/library.h>

#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "glue.h"

namespace toprope::glue {

namespace {

// A draw adds this to the offset, as nearly all of torch_npu's operators do: 10 (op-plugin's PHILOX_DEFAULT_NUM), rounded
// up to a multiple of 4.
constexpr uint64_t kDrawn = 12;
constexpr size_t kSeedBytes = sizeof(uint64_t), kStateBytes = 2 * sizeof(uint64_t);

// SplitMix64: the words of a host generator from one number.
uint64_t next_word(uint64_t& state) {
  uint64_t word = state += 0x9e3779b97f4a7c15;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
  word = (word ^ word >> 27) * 0x94d049bb133111eb;
  return word ^ word >> 31;
}

// A host generator whose numbers depend on the seed and the offset alone.
at::Generator host_generator(uint64_t seed, uint64_t offset) {
  uint64_t state = next_word(seed) ^ offset;
  at::mt19937_data_pod words{};
  words.seed_ = seed;
  words.left_ = 1;  // the first number makes the next words
  words.seeded_ = true;
  for (uint32_t& word : words.state_) word = static_cast<uint32_t>(next_word(state) >> 32);
  at::mt19937 engine;
  engine.set_data(words);
  at::Generator generator = at::detail::createCPUGenerator();
  at::check_generator<at::CPUGeneratorImpl>(generator)->set_engine(engine);
  return generator;
}

// Its state, as on a card: a seed, and an offset that counts what was drawn (NPUGeneratorImpl.cpp).
class NpuGenerator final : public c10::GeneratorImpl {
 public:
  struct State final : c10::intrusive_ptr_target {
    uint64_t seed = c10::default_rng_seed_val;
    uint64_t offset = 0;
  };

  explicit NpuGenerator(int device, c10::intrusive_ptr<State> state = c10::make_intrusive<State>())
      : c10::GeneratorImpl(npu(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), state_(std::move(state)) {}

  void set_current_seed(uint64_t seed) override {
    if (capturing && seed != state_->seed) {
      TORCH_CHECK(false, "NPUGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the "
                         "same as the original seed.");
    }
    state_->seed = seed;
    state_->offset = 0;
  }
  uint64_t current_seed() const override { return state_->seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state_->seed;
  }

  void set_offset(uint64_t offset) override {
    if (offset % 4 != 0) raise_coded("offset must be a multiple of 4", "ERR00003 PTA invalid value");
    state_->offset = offset;
  }
  uint64_t get_offset() const override { return state_->offset; }

  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    if (state.numel() != kSeedBytes && state.numel() != kStateBytes) {
      raise_coded("RNG state is wrong size", "ERR00001 PTA invalid parameter");
    }
    uint64_t words[2] = {};
    memcpy(words, state.data_dtype_initialized<uint8_t>(), static_cast<size_t>(state.numel()));
    set_current_seed(words[0]);
    set_offset(words[1]);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor bytes = at::detail::empty_cpu({kStateBytes}, at::kByte, {}, {}, {}, {});
    memcpy(bytes.mutable_data_ptr<uint8_t>(), &state_->seed, kSeedBytes);
    memcpy(bytes.mutable_data_ptr<uint8_t>() + kSeedBytes, &state_->offset, kStateBytes - kSeedBytes);
    return bytes.getIntrusivePtr();
  }

  // Generators that share a state draw one series.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    auto* generator = dynamic_cast<NpuGenerator*>(other.get());
    TORCH_CHECK(generator != nullptr, "Expected a NPU Generator");
    state_ = generator->state_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::make_intrusive<NpuGenerator>(device_.index(), state_);
  }

  static c10::DeviceType device_type() { return kNpu; }

  at::Generator draw() {
    std::lock_guard<std::mutex> guard(mutex_);
    at::Generator generator = host_generator(state_->seed, state_->offset);
    state_->offset += kDrawn;
    return generator;
  }

 private:
  NpuGenerator* clone_impl() const override {
    auto state = c10::make_intrusive<State>();
    state->seed = state_->seed;
    state->offset = state_->offset;
    return new NpuGenerator(device_.index(), std::move(state));
  }
  c10::intrusive_ptr<State> state_;
};

// The seed of default generators that was set before they were made; else each takes one from the system.
std::mutex first_seed_guard;
std::optional<uint64_t> first_seed;
bool made_generators = false;

std::optional<at::Generator> default_generator_of(int64_t device) {
  return default_generator(device_index(npu(static_cast<int>(device))));
}

}  // namespace

const at::Generator& default_generator(int device) {
  static auto* all = [] {
    sim::use_cards();
    auto* made = new std::vector<at::Generator>();
    for (int i = 0; i < sim::device_count(); i++) {
      made->push_back(at::make_generator<NpuGenerator>(i));
      made->back().seed();
    }
    std::lock_guard<std::mutex> guard(first_seed_guard);
    if (first_seed.has_value()) {
      for (at::Generator& generator : *made) generator.set_current_seed(*first_seed);
    }
    made_generators = true;
    return made;
  }();
  return (*all)[device];
}

at::Generator new_generator(int device) { return at::make_generator<NpuGenerator>(device); }

at::Generator draw(const at::Generator& generator) {
  return static_cast<NpuGenerator*>(generator.unsafeGetGeneratorImpl())->draw();
}

TORCH_LIBRARY_FRAGMENT(toprope_sim, m) { m.def("default_generator(int device) -> Generator?", &default_generator_of); }

}  // namespace toprope::glue

// Seeds the default generators of all cards; where no card was used yet, the seed waits for them.
extern "C" TOPROPE_API void tsg_seed_generators(uint64_t seed) {
  using namespace toprope::glue;
  {
    std::lock_guard<std::mutex> guard(first_seed_guard);
    first_seed = seed;
    if (!made_generators) return;
  }
  for (int device = 0; device < toprope::sim::device_count(); device++) {
    at::Generator generator = default_generator(device);
    std::lock_guard<std::mutex> guard(generator.mutex());
    generator.set_current_seed(seed);
  }
}
