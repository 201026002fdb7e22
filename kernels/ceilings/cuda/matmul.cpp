#include <array>
#include <string>
#include <utility>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/ceilings/cuda/fill.hpp"
#include "kernels/ceilings/detail/backends.hpp"
#include "kernels/ceilings/detail/harness_buffer.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::ceilings::detail {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(std::string(call) + " failed: " + cublasLtGetStatusString(status), false);
}
#define WM_CUBLAS_CHECK(call) check((call), #call)

/// Move-only owner of a cuBLASLt object.
template <class Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) static_cast<void>(kDestroy(handle_));
  }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  [[nodiscard]] Handle get() const noexcept { return handle_; }
  [[nodiscard]] Handle* address() noexcept { return &handle_; }

 private:
  Handle handle_ = nullptr;
};
using Library = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

constexpr int kChoicesPerLayout = 3;
constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

/// 8192 fills the largest GPUs with many waves of tiles; smaller ones get less, so that it takes milliseconds.
std::int64_t default_size(Device device, std::size_t element_bytes) {
  const DeviceProperties device_properties = properties(device);
  std::int64_t n = device_properties.multiprocessors >= 60 ? 8192 : 4096;
  while (n > 1024 && 3 * static_cast<std::size_t>(n * n) * element_bytes > device_properties.memory_bytes / 8) n /= 2;
  return n;
}

class CudaMatmul final : public MatmulWorkload {
 public:
  CudaMatmul(const Context& context, ComputePath path, std::int64_t n)
      : stream_(context.stream),
        storage_(path == ComputePath::half ? DType::bf16 : DType::fp32),
        n_(n > 0 ? n : default_size(context.device(), size_of(storage_))),
        a_(*context.allocator, matrix_bytes()),
        b_(*context.allocator, matrix_bytes()),
        c_(*context.allocator, matrix_bytes()),
        workspace_(*context.allocator, kWorkspaceBytes) {
    const DeviceGuard guard(context.device());
    const auto elements = static_cast<std::size_t>(n_ * n_);
    const auto fill = storage_ == DType::bf16 ? fill_random_bf16 : fill_random_fp32;
    fill(a_.data(), elements, 0, stream_);
    fill(b_.data(), elements, elements, stream_);

    WM_CUBLAS_CHECK(cublasLtCreate(library_.address()));
    const cudaDataType_t type = storage_ == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const auto order = static_cast<std::uint64_t>(n_);
    WM_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(layout_.address(), type, order, order, n_));
    // fp32 stays fp32 whatever a later version's default: TF32 only where it is asked for.
    const cublasComputeType_t compute = path == ComputePath::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    Preference preference;
    WM_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(preference.address()));
    const std::size_t workspace_bytes = kWorkspaceBytes;
    WM_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                         &workspace_bytes, sizeof(workspace_bytes)));
    // Both operands contiguous along the summed dimension, as tensor cores like them; or neither, as fp32 units do.
    for (const auto& [a_op, b_op] : {std::array{CUBLAS_OP_T, CUBLAS_OP_N}, std::array{CUBLAS_OP_N, CUBLAS_OP_T}}) {
      Operation operation;
      WM_CUBLAS_CHECK(cublasLtMatmulDescCreate(operation.address(), compute, CUDA_R_32F));
      WM_CUBLAS_CHECK(
          cublasLtMatmulDescSetAttribute(operation.get(), CUBLASLT_MATMUL_DESC_TRANSA, &a_op, sizeof(a_op)));
      WM_CUBLAS_CHECK(
          cublasLtMatmulDescSetAttribute(operation.get(), CUBLASLT_MATMUL_DESC_TRANSB, &b_op, sizeof(b_op)));
      std::array<cublasLtMatmulHeuristicResult_t, kChoicesPerLayout> found{};
      int count = 0;
      const cublasStatus_t status =
          cublasLtMatmulAlgoGetHeuristic(library_.get(), operation.get(), layout_.get(), layout_.get(), layout_.get(),
                                         layout_.get(), preference.get(), kChoicesPerLayout, found.data(), &count);
      if (status == CUBLAS_STATUS_NOT_SUPPORTED) continue;
      check(status, "cublasLtMatmulAlgoGetHeuristic");
      for (int i = 0; i < count; ++i) {
        if (found[static_cast<std::size_t>(i)].state != CUBLAS_STATUS_SUCCESS) continue;
        choices_.push_back({found[static_cast<std::size_t>(i)].algo, operations_.size(), i, a_op == CUBLAS_OP_T});
      }
      operations_.push_back(std::move(operation));
    }
    if (choices_.empty()) throw DeviceError("cuBLASLt has no matmul for this device", false);
  }

  [[nodiscard]] std::int64_t n() const override { return n_; }
  [[nodiscard]] DType storage() const override { return storage_; }
  [[nodiscard]] int variants() const override { return static_cast<int>(choices_.size()); }
  [[nodiscard]] std::string variant_name(int variant) const override {
    const Choice& choice = choices_[static_cast<std::size_t>(variant)];
    return std::string(choice.transposed_a ? "cuBLASLt TN, choice " : "cuBLASLt NT, choice ") +
           std::to_string(choice.rank + 1);
  }
  /// cuBLASLt's matrices are column-major: an element (row, column) is at row + column * n, transposed the other way.
  [[nodiscard]] Operands operands(int variant) const override {
    const bool transposed_a = choices_[static_cast<std::size_t>(variant)].transposed_a;
    const Operand a = transposed_a ? Operand{a_.data(), n_, 1} : Operand{a_.data(), 1, n_};
    const Operand b = transposed_a ? Operand{b_.data(), 1, n_} : Operand{b_.data(), n_, 1};
    return {a, b, {c_.data(), 1, n_}};
  }
  void enqueue(int variant) override {
    const Choice& choice = choices_[static_cast<std::size_t>(variant)];
    const float one = 1;
    const float zero = 0;
    WM_CUBLAS_CHECK(cublasLtMatmul(library_.get(), operations_[choice.operation].get(), &one, a_.data(), layout_.get(),
                                   b_.data(), layout_.get(), &zero, c_.data(), layout_.get(), c_.data(), layout_.get(),
                                   &choice.algorithm, workspace_.data(), kWorkspaceBytes,
                                   static_cast<cudaStream_t>(stream_.handle)));
  }

 private:
  struct Choice {
    cublasLtMatmulAlgo_t algorithm;
    std::size_t operation;
    int rank;
    bool transposed_a;
  };
  [[nodiscard]] std::size_t matrix_bytes() const { return static_cast<std::size_t>(n_ * n_) * size_of(storage_); }

  StreamView stream_;
  DType storage_;
  std::int64_t n_;
  HarnessBuffer a_, b_, c_, workspace_;
  Library library_;
  Layout layout_;
  std::vector<Operation> operations_;
  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<MatmulWorkload> make_matmul_cuda(const Context& context, ComputePath path, std::int64_t n) {
  return std::make_unique<CudaMatmul>(context, path, n);
}

}  // namespace warpmeter::ceilings::detail
