#include "random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

#include <atomic>
#include <vector>

#include "glue.h"

namespace toprope::glue {

namespace {

class NpuGenerator final : public c10::GeneratorImpl {
 public:
  NpuGenerator(int device, at::Generator twin)
      : c10::GeneratorImpl(npu(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), twin(std::move(twin)) {}
  explicit NpuGenerator(int device)
      : NpuGenerator(device, at::detail::createCPUGenerator(c10::default_rng_seed_val)) {}

  void set_current_seed(uint64_t seed) override {
    twin.set_current_seed(seed);
    offset_ = 0;
  }
  uint64_t current_seed() const override { return twin.current_seed(); }
  uint64_t seed() override { return twin.seed(); }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& state) override { twin.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return twin.unsafeGetGeneratorImpl()->get_state(); }
  static c10::DeviceType device_type() { return kNpu; }

  at::Generator twin;

 private:
  NpuGenerator* clone_impl() const override { return new NpuGenerator(device_.index(), twin.clone()); }
  uint64_t offset_ = 0;
};

// The seed of default generators, until they are made.
std::atomic<uint64_t> first_seed{c10::default_rng_seed_val};
std::atomic<bool> made_generators{false};

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
      made->back().set_current_seed(first_seed);
    }
    made_generators = true;
    return made;
  }();
  return (*all)[device];
}

at::Generator new_generator(int device) { return at::make_generator<NpuGenerator>(device); }

at::Generator host_twin(const at::Generator& generator) {
  return static_cast<NpuGenerator*>(generator.unsafeGetGeneratorImpl())->twin;
}

TORCH_LIBRARY_FRAGMENT(toprope_sim, m) { m.def("default_generator(int device) -> Generator?", &default_generator_of); }

}  // namespace toprope::glue

// Seeds the default generators of all cards; where no card was used yet, the seed waits for them.
extern "C" TOPROPE_API void tsg_seed_generators(uint64_t seed) {
  using namespace toprope::glue;
  first_seed = seed;
  if (!made_generators) return;
  for (int device = 0; device < toprope::sim::device_count(); device++) {
    at::Generator generator = default_generator(device);
    std::lock_guard<std::mutex> guard(generator.mutex());
    generator.set_current_seed(seed);
  }
}
