#include "kernels/attention/detail/flash_hopper.hpp"

#include <algorithm>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "kernels/attention/detail/operand_rows.hpp"
#if WARPMETER_SM90A
#include "kernels/attention/cuda/flash_sm80/check_cuda.hpp"
#include "kernels/attention/cuda/flash_sm90/kernels.hpp"
#endif

namespace warpmeter::attention::flash_hopper {

#if WARPMETER_SM90A

namespace {

constexpr double kLog2e = 1.4426950408889634;

/// Whether the current device is a Hopper GPU; false where there is none at all.
bool on_hopper() {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return major == 9;
}

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  flash_sm80::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  flash_sm80::check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

const flash_sm90::ForwardKernel* kernel_of(const AttentionProblem& problem) {
  return flash_sm90::forward_kernel(problem.dtype, static_cast<int>(problem.head_dim), problem.causal);
}

/// Whether the copy engine can walk the operand: forwards, by less than 2^40 bytes. From one batch entry to the next
/// queries can also stand still.
bool copyable(const ConstOperand& operand, const AttentionProblem& problem) {
  constexpr std::int64_t kMostElements = (std::int64_t{1} << 40) / 2;
  const auto walks = [](std::int64_t stride, std::int64_t count) {
    return count == 1 || (stride > 0 && stride < kMostElements);
  };
  return walks(operand.batch_stride, problem.batch) && walks(operand.head_stride, problem.num_heads) &&
         walks(operand.row_stride, std::max(problem.seq_len, problem.kv_len));
}

flash_sm90::ConstTensorView view(const ConstOperand& o) {
  return {o.data, o.batch_stride, o.head_stride, o.row_stride};
}

const flash_sm90::ForwardKernel* paged_kernel_of(const AttentionProblem& problem) {
  return flash_sm90::paged_forward_kernel(problem.dtype, static_cast<int>(problem.head_dim));
}

/// Whatever the kernel.
std::optional<std::string> size_or_device_unsupported(const AttentionProblem& problem) {
  // One counter deals out the work, and rows are counted from 0 to seq_len and kv_len together.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const std::int64_t tiles = problem.seq_len / 128 + 1;
  if (problem.seq_len > kMost || problem.kv_len > kMost || problem.batch * problem.num_heads > kMost / tiles) {
    return "flash_sm90 takes up to 2^30 tiles of 128 queries";
  }
  if (!on_hopper()) return "flash_sm90 needs a Hopper GPU";
  return std::nullopt;
}

/// Whether the copy engine takes the operands; those of keys and values are of `keys`.
bool copyable(const ForwardArguments& arguments, const AttentionProblem& problem, const AttentionProblem& keys) {
  ConstOperand first_queries = arguments.q;
  if (first_queries.batch_stride == 0) first_queries.batch_stride = problem.seq_len * arguments.q.row_stride;
  const auto taken = [](const ConstOperand& o, const AttentionProblem& p) {
    return rows_aligned(o, p) && copyable(o, p);
  };
  return taken(first_queries, problem) && taken(as_const(arguments.o), problem) && taken(arguments.k, keys) &&
         taken(arguments.v, keys);
}

void launch(const Context& context, const AttentionProblem& problem, const ForwardArguments& arguments,
            const flash_sm90::ForwardKernel& kernel, const flash_sm90::Pages& pages) {
  flash_sm90::ForwardArguments forward;
  forward.shape = {problem.batch,
                   problem.num_heads,
                   problem.num_kv_heads,
                   problem.seq_len,
                   problem.kv_len,
                   static_cast<int>(problem.head_dim),
                   problem.causal,
                   static_cast<float>(problem.scale()),
                   static_cast<float>(problem.scale() * kLog2e)};
  forward.q = view(arguments.q);
  forward.k = view(arguments.k);
  forward.v = view(arguments.v);
  forward.o = {arguments.o.data, arguments.o.batch_stride, arguments.o.head_stride, arguments.o.row_stride};
  forward.lse = arguments.lse;
  forward.work_counter = flash_sm90::next_work_counter();
  forward.pages = pages;
  forward.multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  kernel.launch(forward, static_cast<cudaStream_t>(context.stream.handle));
}

}  // namespace

std::optional<std::string> unsupported(const AttentionProblem& problem) {
  if (!is_16bit(problem.dtype)) return "flash_sm90 takes bf16 and fp16";
  if (kernel_of(problem) == nullptr) return "flash_sm90 takes head dims 64, 80, 96, 128 and 256";
  return size_or_device_unsupported(problem);
}

std::string kernel(const AttentionProblem& problem) {
  return kernel_of(problem)->name;
}

bool forward(const Context& context, const AttentionProblem& problem, const ForwardArguments& arguments) {
  if (!copyable(arguments, problem, problem)) return false;
  launch(context, problem, arguments, *kernel_of(problem), {});
  return true;
}

std::optional<std::string> paged_unsupported(const AttentionProblem& problem) {
  if (paged_kernel_of(problem) == nullptr) return "flash_sm90 takes pages of bf16 and fp16, head dims 64 and 128";
  if (problem.causal || problem.kv_len % flash_sm90::kPagedBlock != 0) {
    return "flash_sm90 takes whole blocks of 128 keys in pages, without a mask";
  }
  return size_or_device_unsupported(problem);
}

std::string paged_kernel(const AttentionProblem& problem) {
  return paged_kernel_of(problem)->name;
}

bool paged_forward(const Context& context, const AttentionProblem& problem, const ForwardArguments& arguments,
                   const KeyPages& pages) {
  AttentionProblem keys = problem;  // of the pool
  keys.batch = pages.count;
  keys.kv_len = pages.page_size;
  if (!copyable(arguments, problem, keys)) return false;
  launch(context, problem, arguments, *paged_kernel_of(problem),
         {pages.table, pages.table_stride, pages.page_size, pages.count});
  return true;
}

#else

std::optional<std::string> unsupported(const AttentionProblem& /*problem*/) {
  return "flash_sm90 is not in this build: 90a is not among its CUDA architectures";
}
std::string kernel(const AttentionProblem& /*problem*/) {
  return {};
}
bool forward(const Context& /*context*/, const AttentionProblem& /*problem*/, const ForwardArguments& /*arguments*/) {
  return false;
}
std::optional<std::string> paged_unsupported(const AttentionProblem& problem) {
  return unsupported(problem);
}
std::string paged_kernel(const AttentionProblem& /*problem*/) {
  return {};
}
bool paged_forward(const Context& /*context*/, const AttentionProblem& /*problem*/,
                   const ForwardArguments& /*arguments*/, const KeyPages& /*pages*/) {
  return false;
}

#endif

}  // namespace warpmeter::attention::flash_hopper
