// One operator run for a card by a host kernel: operands become host tensors over the same bytes, results move to the
// card without a copy. Used by fallback.cpp and the ops_*.cpp files.
//
// Every operator passes here, and the time of a call counts: benchmarks/sim.py. Tests:
// tests/sim/simulated/test_operators.py, test_views.py, and test_samples.py with torch's own database of operators.
#pragma once
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/MaybeOwned.h>

#include "glue.h"
#include "host_operators.h"
#include "numbers.h"

namespace toprope::glue {

constexpr c10::DispatchKeySet kHostKeys(c10::DispatchKey::CPU);

// A host tensor over the bytes of a device tensor.
at::Tensor host_alias(const at::Tensor& tensor);

// `check_host_memory` for a tensor of a card or of the host.
inline void check_host_memory(int device, const at::Tensor& written) {
  if (written.nbytes() < sim::kMuchMemory || !written.is_contiguous()) [[likely]] return;
  check_host_memory_slowly(device, written.const_data_ptr(), written.nbytes());
}

// Raises where a tensor lies in memory that may be damaged (torch_npu.npu._recovery).
inline void check_safe(const at::Tensor& read) {
  if (!sim::is_safe(read.storage().data())) {
    raise_coded("There is unsafe data in the input tensor.", "ERR00003 PTA invalid value");
  }
}

constexpr c10::DispatchKeySet kHostSparseKeys(c10::DispatchKey::SparseCPU);

// A device tensor with this storage and the shape of `like`.
at::Tensor device_tensor(c10::Storage storage, const at::Tensor& like);

// Adds a tensor of the card to a signature. `counts`: whether it counts as touched, which it does not for a part of
// another operator.
inline void add_tensor(sim::SignatureOf& signature, sim::Role role, const at::Tensor& tensor, bool counts) {
  const uint64_t bytes = std::min<uint64_t>(tensor.nbytes(), tensor.storage().nbytes());  // where it is expanded
  uint8_t form = tensor.is_contiguous() ? 0 : sim::kStrided;
  if (counts && tensor.device().type() == kNpu) {
    const bool is_cold = sim::touch(tensor.device().index(), tensor.storage().data(), bytes);
    if (is_cold && role != sim::Role::kResult) form |= sim::kCold;
  }
  signature.add(role, static_cast<int>(tensor.scalar_type()), form, bytes, tensor.sizes().data(), tensor.dim());
}

class Call {
 public:
  // `kind` counts the operator, `rules` are what the vendor documents of it. Operands from the host are refused, but
  // for scalars that are only read, and for arguments whose bits are set in `host_arguments`.
  explicit Call(sim::Kind* kind, const sim::Rules* rules = nullptr, uint32_t host_arguments = 0)
      : kind_(kind), rules_(rules), host_arguments_(host_arguments) {}
  ~Call() {
    if (began_ns_ != 0) [[unlikely]] record();
    if (left_card_) [[unlikely]] count_on_host(*host_, bytes_to_host_, bytes_back_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  at::Tensor in(const at::Tensor& tensor) { return take(tensor, c10::MaybeOwned<at::Tensor>::borrowed(tensor)); }
  at::Tensor in_owned(at::Tensor tensor) {
    at::Tensor kept = tensor;
    return take(tensor, c10::MaybeOwned<at::Tensor>::owned(std::move(kept)));
  }
  std::optional<at::Tensor> in(const std::optional<at::Tensor>& tensor) {
    return tensor.has_value() ? std::optional<at::Tensor>(in(*tensor)) : std::nullopt;
  }
  at::Generator in_generator(const std::optional<at::Generator>& generator);
  // The operator runs on the host in the release of torch_npu that the card stands for; null where it does not.
  void runs_on(HostOperator* host) { host_ = host; }
  // Its kernel is one of compressed tensors, which are refused otherwise.
  void takes_compressed() { takes_compressed_ = true; }
  // The place in the schema of the argument that is taken in next, and whether the operator writes it.
  void argument(int position, bool written) {
    position_ = position;
    written_ = written;
  }
  void on(c10::Device device);  // the card, where no operand says it
  void of_result(c10::ScalarType dtype);  // the argument is the dtype of the result

  // All operands are in: checks that they agree, waits for the card's stream, counts.
  void begin();
  int device() const { return device_; }
  // Its kernel fails on the card: the host learns of it at once where launches block, else when it next waits.
  void fail(int code) const;
  bool has_operands() const { return !operands_.empty(); }

  // What it computes, where the shapes of its tensors do not say it: multiplications and additions.
  void computes(uint64_t operations) {
    if (signature_ != nullptr) [[unlikely]] signature_->set_operations(operations);
  }

  // All results are there: storages that a kernel resized go back to their tensors.
  void finish();

  // The device tensor for a result of the host kernel.
  at::Tensor out(const at::Tensor& result);

 private:
  struct Operand {
    c10::MaybeOwned<at::Tensor> original;
    at::Tensor alias;
    bool written;
  };
  // A sparse operand: the host's has the host's views of its indices and values.
  struct SparseOperand {
    at::Tensor original, alias, indices, values;
  };
  // The same in a compressed format, with its three tensors.
  struct CompressedOperand {
    at::Tensor original, alias, compressed, plain, values;
  };
  at::Tensor take(const at::Tensor& tensor, c10::MaybeOwned<at::Tensor> original);
  at::Tensor take_sparse(const at::Tensor& tensor);
  at::Tensor take_compressed(const at::Tensor& tensor);
  [[noreturn]] void refuse_devices(c10::Device other) const;
  void begin_watched();
  void leave_card();
  void record() const;

  sim::Kind* kind_;
  const sim::Rules* rules_;
  uint32_t host_arguments_;
  int position_ = 0;
  bool written_ = false;
  bool saw_host_ = false;
  bool left_card_ = false;
  int device_ = sim::kNoDevice;
  int other_device_ = sim::kNoDevice;
  int dtype_ = -1;         // of the first operand
  HostOperator* host_ = nullptr;
  uint64_t bytes_to_host_ = 0, bytes_back_ = 0;  // where it left the card
  int64_t began_ns_ = 0;   // while a trace is written
  uint8_t cube_ = 0, vector_ = 0;  // limits that were in force then
  NotFinite before_;               // of the operands, while bad numbers are searched
  std::unique_ptr<sim::SignatureOf> signature_;  // while a trace is written
  c10::SmallVector<Operand, 4> operands_;
  c10::SmallVector<size_t, 2> again_;  // operands that were given once more, while somebody traces
  std::vector<SparseOperand> sparse_;
  std::vector<CompressedOperand> compressed_;
  bool takes_compressed_ = false;
  c10::SmallVector<const c10::StorageImpl*, 2> host_storages_;  // of operands that stay on the host
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 2> moved_;
};

// Refuses an operand as the chip does, where it goes by the vendor's documents, or as a test wants it; notes what no
// document mentions.
void check_dtype(sim::Kind* kind, const sim::Rules* rules, int position, int dtype, bool by_documents = true);

// Refuses an operand with more dimensions than the chip's kernel takes.
void check_dimensions(const sim::Kind* kind, const sim::Rules* rules, int position, int64_t dimensions);

// Refuses a dtype of an argument as the chip does. Tests and the count of what no document mentions leave it alone: for
// casts, and for the dtype of a result.
void check_documented(const sim::Kind* kind, const sim::Rules* rules, int position, int dtype);

// "aten::add" and "Tensor" as "aten::add.Tensor".
std::string full_name(const char* name, const char* overload);

// Raises the error of a host kernel, which is being handled, in the words of the card.
[[noreturn]] void rethrow(const c10::Error& error, const sim::Kind* kind, const sim::Rules* rules);

// Whether the kernel of a card would fail where the host's raised this error: it has then failed there.
bool failed_on_card(const Call& call, const sim::Kind* kind, const c10::Error& error);

// While a composite operator that has been checked runs its parts, these are not checked.
class Unchecked {
 public:
  Unchecked() { depth++; }
  ~Unchecked() { depth--; }
  static bool active() { return depth > 0; }

 private:
  static thread_local int depth;
};

// ---- Host: the kernel of an operator, from its schema alone.

namespace convert {

// Argument of the operator -> what the host kernel is given. By default the argument itself.
template <class A>
struct In {
  using type = A;
  static A make(Call&, A argument) { return std::forward<A>(argument); }
};
template <>
struct In<const at::Tensor&> {
  using type = at::Tensor;
  static at::Tensor make(Call& call, const at::Tensor& tensor) { return call.in(tensor); }
};
template <>
struct In<at::Tensor&> {
  using type = at::Tensor;
  static at::Tensor make(Call& call, at::Tensor& tensor) { return call.in(tensor); }
};
template <>
struct In<const std::optional<at::Tensor>&> {
  using type = std::optional<at::Tensor>;
  static type make(Call& call, const std::optional<at::Tensor>& tensor) { return call.in(tensor); }
};
template <>
struct In<std::optional<at::ScalarType>> {
  using type = std::optional<at::ScalarType>;
  static type make(Call& call, type dtype) {
    if (dtype.has_value()) call.of_result(*dtype);
    return dtype;
  }
};
template <>
struct In<at::TensorList> {
  using type = c10::SmallVector<at::Tensor, 8>;
  static type make(Call& call, at::TensorList tensors) {
    type out;
    out.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) out.push_back(call.in(tensor));
    return out;
  }
};
template <>
struct In<const at::ITensorListRef&> {
  using type = std::vector<at::Tensor>;
  static type make(Call& call, const at::ITensorListRef& tensors) {
    type out;
    out.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) out.push_back(call.in(tensor));
    return out;
  }
};
template <>
struct In<const c10::List<std::optional<at::Tensor>>&> {
  using type = c10::List<std::optional<at::Tensor>>;
  static type make(Call& call, const c10::List<std::optional<at::Tensor>>& tensors) {
    type out;
    out.reserve(tensors.size());
    for (std::optional<at::Tensor> tensor : tensors) {
      out.push_back(tensor.has_value() ? std::optional<at::Tensor>(call.in_owned(*std::move(tensor))) : std::nullopt);
    }
    return out;
  }
};
template <>
struct In<std::optional<at::Generator>> {
  using type = std::optional<at::Generator>;
  static type make(Call& call, const std::optional<at::Generator>& generator) { return call.in_generator(generator); }
};

template <class R>
struct Out {
  static R make(Call&, R result) { return result; }
};
template <>
struct Out<at::Tensor> {
  static at::Tensor make(Call& call, const at::Tensor& result) { return call.out(result); }
};
template <class... R>
struct Out<std::tuple<R...>> {
  static std::tuple<R...> make(Call& call, const std::tuple<R...>& results) {
    return std::apply([&](const auto&... result) { return std::tuple<R...>{Out<R>::make(call, result)...}; }, results);
  }
};
template <>
struct Out<std::vector<at::Tensor>> {
  static std::vector<at::Tensor> make(Call& call, std::vector<at::Tensor> results) {
    for (at::Tensor& result : results) result = call.out(result);
    return results;
  }
};

// Indices that are there, in place of wrong ones; other arguments stay.
at::Tensor zero_indices(const at::Tensor& tensor);
template <class A, class T>
decltype(auto) first_element(T& argument) {
  if constexpr (std::is_same_v<A, const at::Tensor&>) {
    return zero_indices(argument);
  } else {
    return (argument);
  }
}

// The tensor among the arguments that an in-place or out= operator returns.
template <class... A>
at::Tensor& returned(A&... arguments) {
  at::Tensor* found = nullptr;
  auto look = [&]<class T>(T& argument) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      if (found == nullptr) found = &argument;
    }
  };
  (look(arguments), ...);
  return *found;
}

}  // namespace convert

template <class Schema>
class Host;

// One class for all operators of a schema: one for each operator takes twice the time to compile.
template <class R, class... A>
class Host<R(A...)> final : public c10::OperatorKernel {
 public:
  Host(const char* name, const char* overload, R (*redispatch)(c10::DispatchKeySet, A...))
      : name_(name), overload_(overload), redispatch_(redispatch) {}

  R operator()(A... arguments) {
    sim::Kind* kind = kind_.load(std::memory_order_acquire);
    if (kind == nullptr) [[unlikely]] kind = describe();
    Call call(kind, rules_.load(std::memory_order_relaxed));
    call.runs_on(host_.load(std::memory_order_relaxed));
    int position = -1;
    // Braces, so that the operands are taken in in their order.
    Run run{*this, call,
            (call.argument(++position, std::is_same_v<A, at::Tensor&>),
             convert::In<A>::make(call, std::forward<A>(arguments)))...};
    if constexpr (std::is_reference_v<R>) {
      call.finish();
      return convert::returned(arguments...);
    } else {
      return convert::Out<R>::make(call, std::move(run.result));
    }
  }

 private:
  struct Run {
    Run(const Host& self, Call& call, typename convert::In<A>::type... host)
        : scope((call.begin(), call.device())), result(self.run(call, host...)) {}
    sim::KernelScope scope;
    R result;
  };

  template <class... Host>
  R run(const Call& call, Host&... host) const {
    try {
      return redispatch_(kHostKeys, host...);
    } catch (const c10::Error& error) {
      if (failed_on_card(call, kind_.load(std::memory_order_relaxed), error)) {
        return redispatch_(kHostKeys, convert::first_element<A>(host)...);
      }
      rethrow(error, kind_.load(std::memory_order_relaxed), rules_.load(std::memory_order_relaxed));
    }
  }

  // At the first call: only operators that were used are counted. Two threads may both do it.
  sim::Kind* describe() {
    const std::string full = full_name(name_, overload_);
    rules_.store(sim::rules_of(full), std::memory_order_relaxed);
    host_.store(host_operator(full), std::memory_order_relaxed);
    sim::Kind* kind = sim::kind(name_);
    kind_.store(kind, std::memory_order_release);
    return kind;
  }

  const char* name_;
  const char* overload_;
  R (*redispatch_)(c10::DispatchKeySet, A...);
  std::atomic<sim::Kind*> kind_{nullptr};
  std::atomic<const sim::Rules*> rules_{nullptr};
  std::atomic<HostOperator*> host_{nullptr};
};

// ---- fallback.cpp: every operator without a kernel of its own

void fallback(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace toprope::glue
