// Matrix products as calls of cublasLtMatmul.
//
// cuBLAS is column-major: a row-major matrix of row stride s is its transpose with leading dimension s. So
// C = op(A) op(B) is asked for as C^T = op(B)^T op(A)^T, with the operands' own transposition flags.
//
// The heuristics' candidates for a problem are timed once, on the first call's own operands and as a model runs them:
// B, a weight or what a forward left behind, comes from memory, A, which an operation has just written, from the L2. A
// fill of the L2 and a copy of A go before each call, and hold the stream while the host enqueues it. Writing C several
// times over does no harm: it is about to be written, and nothing else is waiting for it.

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/layers/detail/operations.hpp"
#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::layers::cuda {

namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;  // what NVIDIA recommends for Hopper
constexpr int kCandidates = 32;
constexpr int kTrialCalls = 16;  // of a candidate; the longest is left out, as an event tells half a microsecond
constexpr int kFirstCalls = 4;   // after which one
constexpr double kHopelessFactor = 1.25;  // that takes so much longer than the best is given up
constexpr std::size_t kAmpleMemory = std::size_t{1} << 30;
constexpr std::uint32_t kBestAlignment = 256;

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  const cudaError_t cause = cudaGetLastError();
  std::string what = std::string(call) + " failed: " + cublasLtGetStatusString(status);
  if (cause != cudaSuccess) what.append(" (").append(cudaGetErrorString(cause)).append(")");
  throw DeviceError(what, is_sticky(cause));
}
#define WM_CUBLASLT_CHECK(call) check((call), #call)

/// Owns one of the library's opaque objects.
template <class Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owner {
 public:
  Owner() = default;
  ~Owner() {
    if (handle_ != nullptr) static_cast<void>(kDestroy(handle_));
  }
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  [[nodiscard]] Handle get() const noexcept { return handle_; }
  [[nodiscard]] Handle* put() noexcept { return &handle_; }

 private:
  Handle handle_ = nullptr;
};
using LtHandle = Owner<cublasLtHandle_t, cublasLtDestroy>;
using Descriptor = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : dtype == DType::fp16 ? CUDA_R_16F : CUDA_R_32F;
}

/// The power of two, up to kBestAlignment, that an address is a multiple of.
std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | kBestAlignment;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

/// A problem and how its operands lie.
struct Key {
  MatmulProblem problem;
  std::array<std::uint32_t, 3> alignments{};
  friend bool operator==(const Key&, const Key&) = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    const MatmulProblem& p = key.problem;
    std::uint64_t hash = 0;
    const auto mix = [&](std::uint64_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15u + (hash >> 29); };
    for (const std::int64_t value : {p.m, p.n, p.k, p.stride_a, p.stride_b, p.stride_c}) {
      mix(static_cast<std::uint64_t>(value));
    }
    mix((p.transpose_a ? 1u : 0u) | (p.transpose_b ? 2u : 0u) | (p.accumulate ? 4u : 0u) |
        static_cast<std::uint64_t>(p.dtype) << 8 | static_cast<std::uint64_t>(p.out_dtype) << 16);
    for (const std::uint32_t value : key.alignments) mix(value);
    return static_cast<std::size_t>(hash ^ (hash >> 32));
  }
};

template <class Value>
Value config(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  Value value{};
  std::size_t written = 0;
  static_cast<void>(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written));
  return value;
}

/// "cublaslt_66_tile20_stages35_cluster2_splitk1": the library's own numbers.
std::string describe(const cublasLtMatmulAlgo_t& a) {
  return "cublaslt_" + std::to_string(config<std::int32_t>(a, CUBLASLT_ALGO_CONFIG_ID)) + "_tile" +
         std::to_string(config<std::uint32_t>(a, CUBLASLT_ALGO_CONFIG_TILE_ID)) + "_stages" +
         std::to_string(config<std::uint32_t>(a, CUBLASLT_ALGO_CONFIG_STAGES_ID)) + "_cluster" +
         std::to_string(config<std::uint16_t>(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)) + "_splitk" +
         std::to_string(config<std::int32_t>(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
}

/// The library's description of a problem.
class Product {
 public:
  /// `multiprocessors` 0: all there are.
  Product(const MatmulProblem& p, std::int32_t multiprocessors) : problem_(p) {
    const cudaDataType_t type = data_type(p.dtype), out = data_type(p.out_dtype);
    const cublasComputeType_t compute = p.dtype == DType::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    WM_CUBLASLT_CHECK(cublasLtMatmulDescCreate(descriptor_.put(), compute, CUDA_R_32F));
    set_transposed(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b);
    set_transposed(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a);
    if (multiprocessors > 0) {
      WM_CUBLASLT_CHECK(cublasLtMatmulDescSetAttribute(descriptor_.get(), CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                                                       &multiprocessors, sizeof(multiprocessors)));
    }
    make(b_, type, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k, p.stride_b);
    make(a_, type, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m, p.stride_a);
    make(c_, out, p.n, p.m, p.stride_c);
  }

  [[nodiscard]] const MatmulProblem& problem() const { return problem_; }

  /// Up to `most` of the heuristics' candidates, the most promising first.
  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle, const Key& key, int most) const {
    Preference preference;
    WM_CUBLASLT_CHECK(cublasLtMatmulPreferenceCreate(preference.put()));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      WM_CUBLASLT_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspace});
    // Partial sums stay fp32, whatever C's type is.
    std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (key.problem.out_dtype == DType::fp32) schemes |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    // The library's A is our B.
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignments[1]);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignments[0]);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignments[2]);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignments[2]);
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, descriptor_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                       preference.get(), most, results.data(), &found);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "cublasLtMatmulAlgoGetHeuristic");
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < found; ++i) {
      const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
      if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
    }
    return algorithms;
  }

  [[nodiscard]] cublasStatus_t enqueue(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, bool accumulate,
                                       const void* a, const void* b, void* c, void* workspace,
                                       cudaStream_t stream) const {
    const float one = 1.0f, beta = accumulate ? 1.0f : 0.0f;
    return cublasLtMatmul(handle, descriptor_.get(), &one, b, b_.get(), a, a_.get(), &beta, c, c_.get(), c, c_.get(),
                          &algorithm, workspace, kWorkspace, stream);
  }

 private:
  MatmulProblem problem_;
  Descriptor descriptor_;
  MatrixLayout a_, b_, c_;

  void set_transposed(cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    WM_CUBLASLT_CHECK(cublasLtMatmulDescSetAttribute(descriptor_.get(), attribute, &operation, sizeof(operation)));
  }
  /// Columns of the column-major view are rows of ours. A matrix of one row may come with any stride; the library
  /// insists that it covers the row.
  static void make(MatrixLayout& layout, cudaDataType_t type, std::int64_t row_length, std::int64_t rows,
                   std::int64_t stride) {
    WM_CUBLASLT_CHECK(cublasLtMatrixLayoutCreate(layout.put(), type, static_cast<std::uint64_t>(row_length),
                                                 static_cast<std::uint64_t>(rows), std::max(stride, row_length)));
  }
};

/// A stream, its events and what takes the L2's place, for one problem's candidates.
class Trial {
 public:
  /// `spare`: memory to fill where the device has none to lend.
  Trial(CachingAllocator& allocator, const Buffer& spare)
      : allocator_(allocator), fill_(spare.data()), fill_bytes_(spare.bytes()) {
    int device = 0, cache = 0;
    std::size_t free = 0, total = 0;
    WM_CUDA_CHECK(cudaGetDevice(&device));
    WM_CUDA_CHECK(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device));
    WM_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    if (free > kAmpleMemory && static_cast<std::size_t>(cache) > fill_bytes_) {
      lent_ = static_cast<std::size_t>(cache);
      fill_ = allocator_.allocate_for_harness(lent_);
      fill_bytes_ = lent_;
    }
    WM_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (auto& [begin, end] : events_) {
      WM_CUDA_CHECK(cudaEventCreate(&begin));
      WM_CUDA_CHECK(cudaEventCreate(&end));
    }
  }
  ~Trial() {
    static_cast<void>(cudaStreamSynchronize(stream_));  // C is about to be written elsewhere
    for (const auto& [begin, end] : events_) {
      if (begin != nullptr) static_cast<void>(cudaEventDestroy(begin));
      if (end != nullptr) static_cast<void>(cudaEventDestroy(end));
    }
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
    if (lent_ != 0) allocator_.free_for_harness(fill_, lent_);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  /// Milliseconds of a call of `work(stream)` with the `hot_bytes` bytes at `hot` in the L2 and nothing else; infinite
  /// where it fails or is hopeless beside `best`.
  template <class Work>
  double time(Work&& work, const void* hot, std::size_t hot_bytes, double best) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    // The first call loads the kernel.
    if (work(stream_) != CUBLAS_STATUS_SUCCESS) {
      static_cast<void>(cudaGetLastError());
      return kNever;
    }
    double sum = 0, longest = 0;
    for (int call = 0; call < kTrialCalls; ++call) {
      const auto& [begin, end] = events_[static_cast<std::size_t>(call)];
      WM_CUDA_CHECK(cudaMemsetAsync(fill_, 0, fill_bytes_, stream_));
      WM_CUDA_CHECK(cudaMemcpyAsync(fill_, hot, std::min(hot_bytes, fill_bytes_), cudaMemcpyDeviceToDevice, stream_));
      WM_CUDA_CHECK(cudaEventRecord(begin, stream_));
      const cublasStatus_t status = work(stream_);
      WM_CUDA_CHECK(cudaEventRecord(end, stream_));
      if (status != CUBLAS_STATUS_SUCCESS) return kNever;
      if (call + 1 != kFirstCalls && call + 1 != kTrialCalls) continue;
      WM_CUDA_CHECK(cudaStreamSynchronize(stream_));
      sum = longest = 0;
      for (int i = 0; i <= call; ++i) {
        float ms = 0;
        const auto& [from, to] = events_[static_cast<std::size_t>(i)];
        WM_CUDA_CHECK(cudaEventElapsedTime(&ms, from, to));
        sum += static_cast<double>(ms);
        longest = std::max(longest, static_cast<double>(ms));
      }
      if (call + 1 == kFirstCalls && (sum - longest) / (kFirstCalls - 1) > kHopelessFactor * best) return kNever;
    }
    return (sum - longest) / (kTrialCalls - 1);
  }

 private:
  CachingAllocator& allocator_;
  void* fill_;
  std::size_t fill_bytes_, lent_ = 0;
  cudaStream_t stream_ = nullptr;
  std::array<std::pair<cudaEvent_t, cudaEvent_t>, kTrialCalls> events_{};
};

struct Plan {
  Product product;
  cublasLtMatmulAlgo_t algorithm;
};

/// What all of a family's products share: the library's handle, which no stream belongs to, and what is remembered.
class Library {
 public:
  explicit Library(CachingAllocator& allocator) : allocator_(allocator) {
    std::size_t before = 0, after = 0, total = 0;
    WM_CUDA_CHECK(cudaMemGetInfo(&before, &total));
    WM_CUBLASLT_CHECK(cublasLtCreate(handle_.put()));
    WM_CUDA_CHECK(cudaMemGetInfo(&after, &total));
    if (after < before) external_ = static_cast<std::ptrdiff_t>(before - after);
    allocator_.add_external(external_);
  }
  ~Library() { allocator_.add_external(-external_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  [[nodiscard]] cublasLtHandle_t handle() const { return handle_.get(); }
  std::unordered_map<Key, Plan, KeyHash> plans;

 private:
  CachingAllocator& allocator_;
  LtHandle handle_;
  std::ptrdiff_t external_ = 0;
};

class CudaMatmul final : public Matmul {
 public:
  CudaMatmul(const Context& context, MatmulOptions options, std::shared_ptr<Library> library = nullptr)
      : context_(context), options_(options), library_(std::move(library)) {
    const DeviceGuard guard(context.device());
    const CategoryScope category("workspace");
    const FrameScope frame("matmul workspace");
    workspace_ = Buffer(context, kWorkspace);
    if (!library_) library_ = std::make_shared<Library>(*context.allocator);
  }

  [[nodiscard]] std::unique_ptr<Matmul> beside(const Context& context) override {
    WM_CHECK(context.device() == context_.device(), "what products remember holds for one device");
    return std::make_unique<CudaMatmul>(context, options_, library_);
  }

  void multiply(const MatmulProblem& problem, const void* a, const void* b, void* c) override {
    WM_CHECK(problem.dtype == DType::fp32 || problem.dtype == DType::tf32 || is_16bit(problem.dtype),
             "CUDA multiplies fp32, tf32, bf16 and fp16");
    WM_CHECK(problem.out_dtype == DType::fp32 || problem.out_dtype == problem.dtype, "C is fp32 or has A's type");
    WM_CHECK(problem.m >= 0 && problem.n >= 0 && problem.k >= 1, "a product needs an inner dimension");
    if (problem.m == 0 || problem.n == 0) return;
    const DeviceGuard guard(context_.device());
    const Key key{problem, {alignment_of(a), alignment_of(b), alignment_of(c)}};
    auto found = library_->plans.find(key);
    if (found == library_->plans.end()) found = library_->plans.emplace(key, make_plan(key, a, b, c)).first;
    const Plan& plan = found->second;
    check(plan.product.enqueue(library_->handle(), plan.algorithm, problem.accumulate, a, b, c, workspace_.data(),
                               stream()),
          "cublasLtMatmul");
  }

  [[nodiscard]] std::string kernel(const MatmulProblem& problem) const override {
    for (const auto& [key, plan] : library_->plans) {
      if (key.problem == problem) return describe(plan.algorithm);
    }
    return "cublaslt";
  }

 private:
  Context context_;
  MatmulOptions options_;
  Buffer workspace_;
  std::shared_ptr<Library> library_;

  [[nodiscard]] cudaStream_t stream() const { return static_cast<cudaStream_t>(context_.stream.handle); }

  [[nodiscard]] bool capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    WM_CUDA_CHECK(cudaStreamIsCapturing(stream(), &status));
    return status != cudaStreamCaptureStatusNone;
  }

  /// What a product may count on, 0: everything.
  [[nodiscard]] std::int32_t multiprocessors_for(const MatmulProblem& problem) const {
    if (options_.spare_multiprocessors <= 0 || problem.transpose_b) return 0;
    int all = 0;  // properties() would ask for the clocks, too, for every product
    WM_CUDA_CHECK(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, context_.device().index));
    return std::max(1, all - options_.spare_multiprocessors);
  }

  [[nodiscard]] Plan make_plan(const Key& key, const void* a, const void* b, void* c) const {
    Product product(key.problem, multiprocessors_for(key.problem));
    if (key.problem.accumulate) {
      Key plain = key;
      plain.problem.accumulate = false;
      if (const auto found = library_->plans.find(plain); found != library_->plans.end()) {
        return {std::move(product), found->second.algorithm};
      }
    }
    const bool try_all = options_.try_candidates && !key.problem.accumulate && !capturing();
    const auto algorithms = product.candidates(library_->handle(), key, try_all ? kCandidates : 1);
    if (algorithms.empty()) {
      const MatmulProblem& p = key.problem;
      throw DeviceError("cuBLASLt has no algorithm for a product of " + std::to_string(p.m) + " x " +
                            std::to_string(p.n) + " x " + std::to_string(p.k) + " in " + std::string(name(p.dtype)),
                        false);
    }
    const std::size_t chosen = algorithms.size() > 1 ? fastest(product, algorithms, a, b, c) : 0;
    return {std::move(product), algorithms[chosen]};
  }

  /// The index of the candidate that takes the least time.
  [[nodiscard]] std::size_t fastest(const Product& product, const std::vector<cublasLtMatmulAlgo_t>& algorithms,
                                    const void* a, const void* b, void* c) const {
    WM_CUDA_CHECK(cudaDeviceSynchronize());  // operands are there, and nothing else runs, in no stream
    Trial trial(*context_.allocator, workspace_);
    const MatmulProblem& p = product.problem();
    const std::int64_t rows = p.transpose_a ? p.k : p.m, columns = p.transpose_a ? p.m : p.k;
    const auto hot = static_cast<std::size_t>((rows - 1) * p.stride_a + columns) * size_of(p.dtype);
    double best = std::numeric_limits<double>::infinity();
    std::size_t chosen = 0;
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
      const auto work = [&](cudaStream_t stream) {
        return product.enqueue(library_->handle(), algorithms[i], false, a, b, c, workspace_.data(), stream);
      };
      const double ms = trial.time(work, a, hot, best);
      if (ms < best) {
        best = ms;
        chosen = i;
      }
    }
    return chosen;
  }
};

}  // namespace

std::size_t matmul_workspace_bytes() {
  return kWorkspace;
}

std::unique_ptr<Matmul> make_matmul(const Context& context, MatmulOptions options) {
  return std::make_unique<CudaMatmul>(context, options);
}

}  // namespace warpmeter::layers::cuda
