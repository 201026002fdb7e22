// Products of matrices in (batch, heads, rows, columns) operands as calls of cublasGemmStridedBatchedEx.
//
// cuBLAS is column-major: a row-major matrix of row stride s is its transpose with leading dimension s. So
// C = op(A) op(B) is asked for as C^T = op(B)^T op(A)^T, with the operands' own transposition flags.
//
// A call walks one batch stride for each operand. The matrices of a product form up to three levels: batch entries,
// groups of heads that share an operand, members of a group. Members fold into a dimension of the product where their
// rows follow one another (query heads of a group are more rows of A and C; summed terms are a longer sum), batch
// entries and groups merge where their strides agree; what is left is a loop over calls.

#include "kernels/attention/gemm_cuda.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "kernels/attention/cuda/row_ops.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::attention {

namespace {

constexpr std::size_t kRounding = 512;                          // the allocator's
constexpr std::size_t kLeastWorkspace = std::size_t{64} << 10;  // cuBLAS asks for 16 KiB to be able to run anything
constexpr std::size_t kMostWorkspace = std::size_t{32} << 20;
constexpr std::int64_t kMostMatrices = 65535;  // of one call: some of cuBLAS's kernels have the batch in gridDim.z

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  const cudaError_t cause = cudaGetLastError();
  std::string what = std::string(call) + " failed: " + cublasGetStatusString(status);
  if (cause != cudaSuccess) what.append(" (").append(cudaGetErrorString(cause)).append(")");
  throw DeviceError(what, is_sticky(cause));
}
#define WM_CUBLAS_CHECK(call) check((call), #call)

/// Owns a cuBLAS handle, whose device must be current when it is made.
class BlasHandle {
 public:
  BlasHandle() { WM_CUBLAS_CHECK(cublasCreate(&handle_)); }
  ~BlasHandle() {
    if (handle_ != nullptr) static_cast<void>(cublasDestroy(handle_));
  }
  BlasHandle(BlasHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  BlasHandle& operator=(BlasHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  BlasHandle(const BlasHandle&) = delete;
  BlasHandle& operator=(const BlasHandle&) = delete;
  [[nodiscard]] cublasHandle_t get() const noexcept { return handle_; }

 private:
  cublasHandle_t handle_ = nullptr;
};

BlasHandle make_handle(CachingAllocator& allocator) {
  try {
    return {};
  } catch (const DeviceError& error) {
    if (error.sticky()) throw;
    allocator.empty_cache();  // it may have wanted memory
    return {};
  }
}

/// The calling thread's handle for the current device, which is `device`.
cublasHandle_t thread_handle(Device device, CachingAllocator& allocator) {
  struct Entry {
    Device device;
    BlasHandle handle;
  };
  thread_local std::vector<Entry> handles;
  for (const Entry& entry : handles) {
    if (entry.device == device) return entry.handle.get();
  }
  std::size_t before = 0, after = 0, total = 0;
  WM_CUDA_CHECK(cudaMemGetInfo(&before, &total));
  handles.push_back({device, make_handle(allocator)});
  // Pedantic about sums alone: partial sums of 16-bit products stay fp32. TF32 is asked for call by call.
  const auto math = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  WM_CUBLAS_CHECK(cublasSetMathMode(handles.back().handle.get(), math));
  WM_CUDA_CHECK(cudaMemGetInfo(&after, &total));
  if (after < before) allocator.add_external(static_cast<std::ptrdiff_t>(before - after));
  return handles.back().handle.get();
}

/// Matrices that differ by a fixed stride in each operand, in elements.
struct Level {
  std::int64_t count = 1;
  std::int64_t a = 0, b = 0, c = 0;
};

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : dtype == DType::fp16 ? CUDA_R_16F : CUDA_R_32F;
}

/// A product's matrices as levels, in the order of the loops: members, then the calls, then those of one call.
struct Plan {
  std::int64_t m, n, k;
  std::int64_t row_a, row_b, row_c;
  Level members, outer, inner;
  bool add_members = false;  ///< members are summed into the same C

  Plan(const GemmProblem& p, const ConstOperand& a, const ConstOperand& b, const Operand& c)
      : m(p.m), n(p.n), k(p.k), row_a(a.row_stride), row_b(b.row_stride), row_c(c.row_stride) {
    WM_CHECK(p.sharing_a == 1 && (p.terms == 1 || p.sharing_b == 1), "no such sharing of operands on CUDA");
    const std::int64_t group = p.terms * p.sharing_b;
    Level groups;
    if (p.terms > 1) {
      add_members = true;
      members = {group, a.head_stride, b.head_stride, 0};
      groups = {p.heads, group * a.head_stride, group * b.head_stride, c.head_stride};
      fold_terms(p, a, b);
    } else {
      WM_CHECK(p.heads % group == 0, "heads come in whole groups");
      members = {group, a.head_stride, 0, c.head_stride};
      groups = {p.heads / group, group * a.head_stride, b.head_stride, group * c.head_stride};
      fold_rows(p, a, c);
    }
    const Level batch{p.batch, a.batch_stride, b.batch_stride, c.batch_stride};
    const auto follows = [&](std::int64_t outer_stride, std::int64_t inner_stride) {
      return outer_stride == groups.count * inner_stride;
    };
    if (batch.count == 1) {
      inner = groups;
    } else if (groups.count == 1) {
      inner = batch;
    } else if (follows(batch.a, groups.a) && follows(batch.b, groups.b) && follows(batch.c, groups.c)) {
      inner = {batch.count * groups.count, groups.a, groups.b, groups.c};
    } else {
      const bool more_groups = groups.count >= batch.count;
      inner = more_groups ? groups : batch;
      outer = more_groups ? batch : groups;
    }
  }

 private:
  /// Whether `rows` rows of one member and those of the next are evenly spaced; `row_stride` becomes that spacing.
  static bool evenly_spaced(std::int64_t rows, std::int64_t head_stride, std::int64_t& row_stride) {
    if (rows == 1) row_stride = head_stride;
    return head_stride == rows * row_stride;
  }
  void fold_rows(const GemmProblem& p, const ConstOperand& a, const Operand& c) {
    std::int64_t spacing_a = row_a, spacing_c = row_c;
    if (members.count == 1 || p.transpose_a || !evenly_spaced(m, a.head_stride, spacing_a) ||
        !evenly_spaced(m, c.head_stride, spacing_c)) {
      return;
    }
    row_a = spacing_a;
    row_c = spacing_c;
    m *= members.count;
    members = {};
  }
  void fold_terms(const GemmProblem& p, const ConstOperand& a, const ConstOperand& b) {
    std::int64_t spacing_a = row_a, spacing_b = row_b;
    if (!p.transpose_a || p.transpose_b || !evenly_spaced(k, a.head_stride, spacing_a) ||
        !evenly_spaced(k, b.head_stride, spacing_b)) {
      return;
    }
    row_a = spacing_a;
    row_b = spacing_b;
    k *= members.count;
    members = {};
    add_members = false;
  }
};

}  // namespace

std::size_t CudaGemm::workspace_bytes(std::size_t bytes) {
  const std::size_t rounded = (bytes + kRounding - 1) / kRounding * kRounding;
  return std::clamp(rounded, kLeastWorkspace, kMostWorkspace);
}

namespace {

/// As memory snapshots have it.
Buffer named_workspace(const Context& context, std::size_t bytes) {
  const CategoryScope category("workspace");
  const FrameScope frame("matmul workspace");
  return {context, bytes};
}

}  // namespace

CudaGemm::CudaGemm(const Context& context, std::size_t workspace_bytes)
    : context_(context), workspace_(named_workspace(context, workspace_bytes)) {
  const DeviceGuard guard(context.device());
  const cublasHandle_t handle = thread_handle(context.device(), *context.allocator);
  WM_CUBLAS_CHECK(cublasSetStream(handle, static_cast<cudaStream_t>(context.stream.handle)));
  // After the stream, which puts cuBLAS's own workspace back.
  WM_CUBLAS_CHECK(cublasSetWorkspace(handle, workspace_.data(), workspace_.bytes()));
  handle_ = handle;
}

CudaGemm::~CudaGemm() {
  // The handle outlives the workspace: nothing may find it there. Setting a stream puts cuBLAS's own back.
  static_cast<void>(cublasSetStream(static_cast<cublasHandle_t>(handle_), nullptr));
}

void CudaGemm::multiply(const GemmProblem& problem, ConstOperand a, ConstOperand b, Operand c) const {
  WM_CHECK(problem.skip == Skip::nothing, "panels are the caller's on CUDA");
  WM_CHECK(problem.m > 0 && problem.n > 0 && problem.k > 0, "an empty product");
  const DeviceGuard guard(context_.device());
  const auto handle = static_cast<cublasHandle_t>(handle_);
  Plan plan(problem, a, b, c);
  cudaDataType_t type_c = data_type(problem.dtype);
  Operand to = c;
  Buffer sums;
  if (plan.add_members && is_16bit(problem.dtype)) {  // 16-bit sums of sums would round once a member
    const std::int64_t matrix = problem.m * problem.n;
    sums = Buffer(context_, static_cast<std::size_t>(problem.batch * problem.heads * matrix) * sizeof(float));
    to = {sums.data(), problem.heads * matrix, matrix, problem.n};
    plan = Plan(problem, a, b, to);
    type_c = CUDA_R_32F;
  }
  const auto element = static_cast<std::int64_t>(size_of(problem.dtype));
  const std::int64_t element_c = type_c == CUDA_R_32F ? std::int64_t{sizeof(float)} : element;
  const cudaDataType_t type = data_type(problem.dtype);
  const cublasComputeType_t compute = problem.dtype == DType::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  const auto transposed = [](bool yes) { return yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  // A matrix of one row may come with any stride; cuBLAS insists that it covers the row.
  const std::int64_t ld_a = std::max(plan.row_a, problem.transpose_a ? plan.m : plan.k);
  const std::int64_t ld_b = std::max(plan.row_b, problem.transpose_b ? plan.k : plan.n);
  const std::int64_t ld_c = std::max(plan.row_c, plan.n);
  const float one = 1.0f, zero = 0.0f;
  for (std::int64_t member = 0; member < plan.members.count; ++member) {
    const float* beta = plan.add_members && member > 0 ? &one : &zero;
    for (std::int64_t outer = 0; outer < plan.outer.count; ++outer) {
      for (std::int64_t first = 0; first < plan.inner.count; first += kMostMatrices) {
        const auto offset = [&](std::int64_t Level::*stride) {
          return member * plan.members.*stride + outer * plan.outer.*stride + first * plan.inner.*stride;
        };
        const void* pa = static_cast<const char*>(a.data) + offset(&Level::a) * element;
        const void* pb = static_cast<const char*>(b.data) + offset(&Level::b) * element;
        void* pc = static_cast<char*>(to.data) + offset(&Level::c) * element_c;
        WM_CUBLAS_CHECK(cublasGemmStridedBatchedEx_64(
            handle, transposed(problem.transpose_b), transposed(problem.transpose_a), plan.n, plan.m, plan.k, &one, pb,
            type, ld_b, plan.inner.b, pa, type, ld_a, plan.inner.a, beta, pc, type_c, ld_c, plan.inner.c,
            std::min(kMostMatrices, plan.inner.count - first), compute, CUBLAS_GEMM_DEFAULT));
      }
    }
  }
  if (sums.data() != nullptr) {
    detail::cuda_row_ops(problem.dtype)
        .round_to(static_cast<const float*>(sums.data()), c, problem.batch, problem.heads, problem.m, problem.n,
                  context_.stream);
  }
}

}  // namespace warpmeter::attention
