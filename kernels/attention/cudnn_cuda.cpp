// cuDNN's scaled dot-product attention as frontend graphs. A graph and its execution plan belong to one problem, one
// set of strides, one pass; they are cached in the calling thread, with the handle that built them. Nothing of cuDNN or
// of the shared CUDA runtime is linked: the frontend resolves every call in the library that load() opened.

#include "kernels/attention/cudnn_cuda.hpp"

#include <array>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"
#include "kernels/runtime/tensor.hpp"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend's own: where it looks up cuDNN's functions; set once by load()
}

namespace warpmeter::attention {

namespace {

namespace fe = cudnn_frontend;

constexpr std::int64_t kMaxHeadDim = 256, kHeadDimStep = 8;
constexpr std::int64_t kRowBytes = 16;    // what cuDNN's kernels load at once
constexpr std::size_t kMostPlans = 256;   // of a thread: each keeps kernels on the device
constexpr std::size_t kMostReason = 160;  // characters of cuDNN's own words
constexpr std::size_t kRounding = 512;    // the allocator's

/// Why cuDNN cannot be called in this process; "" when it can.
const std::string& load_error() {
  static const std::string error = [] {
    // The frontend opens the CUDA runtime by its plain name: found once it is in the process, whatever the path.
    static_cast<void>(dlopen(WM_CUDART_LIBRARY, RTLD_LAZY | RTLD_LOCAL));
    fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_LOCAL);
    if (fe::cudnn_dlhandle == nullptr && *WM_CUDNN_LIBRARY != '\0') {
      fe::cudnn_dlhandle = dlopen(WM_CUDNN_LIBRARY, RTLD_LAZY | RTLD_LOCAL);
    }
    return std::string(fe::cudnn_dlhandle == nullptr ? "libcudnn.so.9 cannot be loaded" : "");
  }();
  return error;
}

/// cuDNN's words in one line of bearable length.
std::string short_reason(std::string text) {
  for (char& c : text) c = c == '\n' || c == '\t' ? ' ' : c;
  if (text.size() > kMostReason) text = text.substr(0, kMostReason - 3) + "...";
  return "cuDNN: " + text;
}

/// What cuDNN refuses, as against what breaks.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Strides of an operand as cuDNN takes them, in the order (batch, head, row, column).
using Strides = std::array<std::int64_t, 4>;

template <class Pointer>
Strides strides_of(const BasicOperand<Pointer>& operand) {
  return {operand.batch_stride, operand.head_stride, operand.row_stride, 1};
}
Strides dense_strides(std::int64_t heads, std::int64_t rows, std::int64_t head_dim) {
  return {heads * rows * head_dim, rows * head_dim, head_dim, 1};
}

/// The strides of one call: forward q, k, v, o; backward also d_o, dq, dk, dv.
struct Layout {
  Strides q, k, v, o, d_o{}, dq{}, dk{}, dv{};

  static Layout dense(const AttentionProblem& p) {
    const Strides query = dense_strides(p.num_heads, p.seq_len, p.head_dim);
    const Strides key = dense_strides(p.num_kv_heads, p.kv_len, p.head_dim);
    return {query, key, key, query, query, query, key, key};
  }
  static Layout of(const ForwardArguments& a) {
    return {strides_of(a.q), strides_of(a.k), strides_of(a.v), strides_of(a.o)};
  }
  static Layout of(const BackwardArguments& a) {
    return {strides_of(a.q),   strides_of(a.k),  strides_of(a.v),  strides_of(a.o),
            strides_of(a.d_o), strides_of(a.dq), strides_of(a.dk), strides_of(a.dv)};
  }
};

enum Uid : std::int64_t { kQ = 1, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV };

using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

/// A built graph.
struct Plan {
  fe::graph::Graph graph;
  std::size_t workspace = 0;
};

class GraphBuilder {
 public:
  GraphBuilder(const AttentionProblem& problem, const Layout& layout, fe::graph::Graph& graph)
      : p_(problem), layout_(layout), graph_(graph) {
    graph_.set_io_data_type(p_.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  void forward() {
    auto options = fe::graph::SDPA_attributes().set_name("sdpa").set_attn_scale(static_cast<float>(p_.scale()));
    options.set_generate_stats(true);
    set_mask(options);
    const auto [o, stats] = graph_.sdpa(input("q", kQ, queries(), layout_.q), input("k", kK, keys(), layout_.k),
                                        input("v", kV, keys(), layout_.v), options);
    output(o, kO, queries(), layout_.o);
    output(stats, kStats, stats_shape(), stats_strides());
    stats->set_data_type(fe::DataType_t::FLOAT);
  }

  void backward() {
    auto options =
        fe::graph::SDPA_backward_attributes().set_name("sdpa_bwd").set_attn_scale(static_cast<float>(p_.scale()));
    options.set_deterministic_algorithm(p_.deterministic);
    set_mask(options);
    const TensorPtr stats = input("stats", kStats, stats_shape(), stats_strides());
    stats->set_data_type(fe::DataType_t::FLOAT);
    const auto [dq, dk, dv] = graph_.sdpa_backward(
        input("q", kQ, queries(), layout_.q), input("k", kK, keys(), layout_.k), input("v", kV, keys(), layout_.v),
        input("o", kO, queries(), layout_.o), input("do", kDO, queries(), layout_.d_o), stats, options);
    output(dq, kDQ, queries(), layout_.dq);
    output(dk, kDK, keys(), layout_.dk);
    output(dv, kDV, keys(), layout_.dv);
  }

 private:
  using Shape = std::vector<std::int64_t>;

  [[nodiscard]] Shape queries() const { return {p_.batch, p_.num_heads, p_.seq_len, p_.head_dim}; }
  [[nodiscard]] Shape keys() const { return {p_.batch, p_.num_kv_heads, p_.kv_len, p_.head_dim}; }
  [[nodiscard]] Shape stats_shape() const { return {p_.batch, p_.num_heads, p_.seq_len, 1}; }
  [[nodiscard]] Strides stats_strides() const { return {p_.num_heads * p_.seq_len, p_.seq_len, 1, 1}; }

  template <class Options>
  void set_mask(Options& options) const {
    if (!p_.causal || p_.seq_len == 1) return;  // a single query sees every key
    options.set_diagonal_alignment(p_.seq_len == p_.kv_len ? fe::DiagonalAlignment_t::TOP_LEFT
                                                           : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    options.set_diagonal_band_right_bound(0);
  }
  TensorPtr input(const char* name, Uid uid, const Shape& shape, const Strides& strides) {
    return graph_.tensor(fe::graph::Tensor_attributes().set_name(name).set_uid(uid).set_dim(shape).set_stride(
        {strides.begin(), strides.end()}));
  }
  static void output(const TensorPtr& tensor, Uid uid, const Shape& shape, const Strides& strides) {
    tensor->set_output(true).set_uid(uid).set_dim(shape).set_stride({strides.begin(), strides.end()});
  }

  const AttentionProblem& p_;
  const Layout& layout_;
  fe::graph::Graph& graph_;
};

/// Owns a cuDNN handle, whose device must be current when it is made.
class CudnnHandle {
 public:
  CudnnHandle() {
    const cudnnStatus_t status = fe::detail::create_handle(&handle_);
    if (status != CUDNN_STATUS_SUCCESS) throw Refusal("cudnnCreate failed with status " + std::to_string(int(status)));
  }
  ~CudnnHandle() {
    if (handle_ != nullptr) static_cast<void>(fe::detail::destroy_handle(handle_));
  }
  CudnnHandle(CudnnHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  CudnnHandle& operator=(CudnnHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;
  [[nodiscard]] cudnnHandle_t get() const noexcept { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
};

/// One thread's cuDNN on one device: its handle and the plans that it built, refusals among them.
class Library {
 public:
  [[nodiscard]] cudnnHandle_t handle() const { return handle_.get(); }

  /// The plan of a supported problem, built on first use. Throws Refusal in cuDNN's words.
  Plan& plan(const AttentionProblem& problem, Pass pass, const Layout& layout) {
    Key key = make_key(problem, pass, layout);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      if (plans_.size() >= kMostPlans) plans_.clear();
      found = plans_.emplace(std::move(key), build(problem, pass, layout)).first;
    }
    if (found->second.plan == nullptr) throw Refusal(found->second.refusal);
    return *found->second.plan;
  }

 private:
  using Key = std::vector<std::int64_t>;
  struct Entry {
    std::unique_ptr<Plan> plan;
    std::string refusal;
  };

  static Key make_key(const AttentionProblem& p, Pass pass, const Layout& layout) {
    Key key{p.batch,    p.num_heads,           p.num_kv_heads, p.seq_len,       p.kv_len,
            p.head_dim, std::int64_t(p.dtype), p.causal,       p.deterministic, std::int64_t(pass)};
    const auto add = [&](const Strides& strides) { key.insert(key.end(), strides.begin(), strides.end()); };
    for (const Strides& strides : {layout.q, layout.k, layout.v, layout.o}) add(strides);
    if (pass == Pass::backward) {
      for (const Strides& strides : {layout.d_o, layout.dq, layout.dk, layout.dv}) add(strides);
    }
    return key;
  }

  [[nodiscard]] Entry build(const AttentionProblem& problem, Pass pass, const Layout& layout) const {
    Entry entry;
    auto plan = std::make_unique<Plan>();
    try {
      GraphBuilder builder(problem, layout, plan->graph);
      pass == Pass::forward ? builder.forward() : builder.backward();
      fe::error_t status = plan->graph.build(handle_.get(), {fe::HeurMode_t::A});
      if (status.is_bad()) {
        entry.refusal = short_reason(status.get_message());
        return entry;
      }
      plan->workspace = static_cast<std::size_t>(plan->graph.get_workspace_size());
    } catch (const std::exception& error) {  // the frontend throws where a library or a symbol is missing
      entry.refusal = short_reason(error.what());
      return entry;
    }
    entry.plan = std::move(plan);
    return entry;
  }

  CudnnHandle handle_;
  std::map<Key, Entry> plans_;
};

/// The calling thread's, for the current device.
Library& library() {
  thread_local std::map<int, Library> libraries;
  int device = 0;
  WM_CUDA_CHECK(cudaGetDevice(&device));
  return libraries[device];
}

std::string static_refusal(const AttentionProblem& problem) {
  if (std::string reason = invalid_reason(problem); !reason.empty()) return reason;
  if (!is_16bit(problem.dtype)) return "cuDNN's attention has bf16 and fp16";
  if (problem.head_dim % kHeadDimStep != 0 || problem.head_dim > kMaxHeadDim) {
    return "cuDNN's attention has head dims in multiples of 8 up to 256";
  }
  if (problem.causal && problem.seq_len > problem.kv_len) {
    return "cuDNN's attention has no causal mask with more queries than keys";
  }
  return load_error();
}

class CudnnCuda final : public Implementation {
 public:
  std::string_view name() const override { return "cudnn"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }
  std::string_view description() const override { return "cuDNN's fused attention, the vendor's yardstick"; }
  std::string_view dtypes() const override { return "bf16,fp16"; }

  std::optional<std::string> unsupported(const AttentionProblem& problem, Pass pass) const override {
    if (std::string reason = static_refusal(problem); !reason.empty()) return reason;
    if (cuda_device_count() == 0) return cuda_unavailable_reason();
    try {
      static_cast<void>(library().plan(problem, pass, Layout::dense(problem)));
    } catch (const Refusal& refusal) {
      return refusal.what();
    }
    return std::nullopt;
  }

  std::string kernel(const AttentionProblem&, Pass) const override {
    const std::size_t version = fe::detail::get_backend_version();  // 91900: 9.19.0
    return "cudnn_" + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
  }

  MemoryPlan memory_plan(const AttentionProblem& problem, bool for_backward) const override {
    const auto bytes = [&](Pass pass) {
      return (library().plan(problem, pass, Layout::dense(problem)).workspace + kRounding - 1) / kRounding * kRounding;
    };
    MemoryPlan plan;
    plan.forward_peak = bytes(Pass::forward);
    if (for_backward) plan.backward_peak = bytes(Pass::backward);
    return plan;
  }

  std::unique_ptr<Saved> forward(const Context& context, const AttentionProblem& problem,
                                 const ForwardArguments& arguments, bool /*for_backward*/) const override {
    const Range range("ATTN_CUDNN_FWD");
    execute(context, problem, Pass::forward, Layout::of(arguments),
            {{kQ, mutable_pointer(arguments.q)},
             {kK, mutable_pointer(arguments.k)},
             {kV, mutable_pointer(arguments.v)},
             {kO, arguments.o.data},
             {kStats, arguments.lse}});
    return nullptr;
  }

  void backward(const Context& context, const AttentionProblem& problem, const BackwardArguments& arguments,
                const Saved* /*saved*/) const override {
    const Range range("ATTN_CUDNN_BWD");
    execute(context, problem, Pass::backward, Layout::of(arguments),
            {{kQ, mutable_pointer(arguments.q)},
             {kK, mutable_pointer(arguments.k)},
             {kV, mutable_pointer(arguments.v)},
             {kO, mutable_pointer(arguments.o)},
             {kDO, mutable_pointer(arguments.d_o)},
             {kStats, const_cast<float*>(arguments.lse)},
             {kDQ, arguments.dq.data},
             {kDK, arguments.dk.data},
             {kDV, arguments.dv.data}});
  }

 private:
  using Pointers = std::unordered_map<std::int64_t, void*>;

  /// The frontend takes inputs and outputs alike; inputs are only read.
  static void* mutable_pointer(const ConstOperand& operand) { return const_cast<void*>(operand.data); }

  static void execute(const Context& context, const AttentionProblem& problem, Pass pass, const Layout& layout,
                      Pointers pointers) {
    const DeviceGuard guard(context.device());
    for (const auto& [uid, pointer] : pointers) {
      WM_CHECK(uid == kStats || reinterpret_cast<std::uintptr_t>(pointer) % kRowBytes == 0,
               "cuDNN's operands are 16-byte aligned");
    }
    Library& cudnn = library();
    try {
      Plan& plan = cudnn.plan(problem, pass, layout);
      const Buffer workspace(context, plan.workspace);
      if (fe::detail::set_stream(cudnn.handle(), static_cast<cudaStream_t>(context.stream.handle)) !=
          CUDNN_STATUS_SUCCESS) {
        throw Refusal("cudnnSetStream failed");
      }
      fe::error_t status = plan.graph.execute(cudnn.handle(), pointers, workspace.data());
      if (status.is_bad()) throw Refusal(short_reason(status.get_message()));
    } catch (const Refusal& refusal) {  // unsupported() had accepted it: something is broken
      const cudaError_t cause = cudaGetLastError();
      throw DeviceError(refusal.what(), is_sticky(cause));
    }
  }
};

}  // namespace

const Implementation& cudnn_cuda() {
  static const CudnnCuda implementation;
  return implementation;
}

}  // namespace warpmeter::attention
