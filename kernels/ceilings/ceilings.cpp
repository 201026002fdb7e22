#include "kernels/ceilings/bandwidth.hpp"
#include "kernels/ceilings/detail/backends.hpp"
#include "kernels/ceilings/detail/cached_matmul.hpp"
#include "kernels/ceilings/matmul.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::ceilings {
namespace {

constexpr std::size_t kLineBytes = 64;

}  // namespace

ComputePath measured_path(ComputePath path, Device device) noexcept {
  if (device.is_cpu()) {
    const bool native = path == ComputePath::half && detail::choose_cached_matmul(path) != nullptr;
    return native ? path : ComputePath::fp32;
  }
  return path == ComputePath::tf32x3 ? ComputePath::tf32 : path;
}

std::unique_ptr<MatmulWorkload> make_matmul(const Context& context, ComputePath path, std::int64_t n) {
  WM_CHECK(context.allocator != nullptr, "a ceiling needs an allocator");
  WM_CHECK(path == measured_path(path, context.device()),
           std::string("no matmul of its own: ") + std::string(name(path)));
  WM_CHECK(n >= 0, "n " + std::to_string(n));
#if WARPMETER_CUDA
  if (context.device().is_cuda()) return detail::make_matmul_cuda(context, path, n);
#endif
  WM_CHECK(path == ComputePath::fp32, "the CPU's library multiplies fp32 alone");
  return detail::make_matmul_cpu(context, n);
}

std::unique_ptr<CachedMatmulWorkload> make_cached_matmul(const Context& context, ComputePath path) {
  WM_CHECK(context.allocator != nullptr, "a ceiling needs an allocator");
  WM_CHECK(context.device().is_cpu(), "a matmul in cache is the CPU's");
  const detail::CachedMatmulKernel* const kernel = detail::choose_cached_matmul(path);
  WM_CHECK(kernel != nullptr, std::string("no matmul of its own: ") + std::string(name(path)));
  return detail::make_cached_matmul(context, *kernel, kernel->call_flops);
}

std::unique_ptr<CopyWorkload> make_copy(const Context& context, std::size_t bytes) {
  WM_CHECK(context.allocator != nullptr, "a ceiling needs an allocator");
  WM_CHECK(bytes % 4096 == 0, "bytes " + std::to_string(bytes));
#if WARPMETER_CUDA
  if (context.device().is_cuda()) return detail::make_copy_cuda(context, bytes);
#endif
  return detail::make_copy_cpu(context, bytes);
}

std::unique_ptr<ReadWorkload> make_read(const Context& context, std::size_t bytes) {
  WM_CHECK(context.allocator != nullptr, "a ceiling needs an allocator");
  WM_CHECK(bytes % 4096 == 0, "bytes " + std::to_string(bytes));
#if WARPMETER_CUDA
  if (context.device().is_cuda()) return detail::make_read_cuda(context, bytes);
#endif
  return detail::make_read_cpu(context, bytes);
}

std::unique_ptr<TrafficWorkload> make_traffic(const Context& context, std::size_t read_bytes,
                                              std::size_t written_bytes) {
  WM_CHECK(context.allocator != nullptr, "a ceiling needs an allocator");
  WM_CHECK(read_bytes + written_bytes > 0, "no traffic");
  const auto whole_lines = [](std::size_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; };
#if WARPMETER_CUDA
  if (context.device().is_cuda()) {
    return detail::make_traffic_cuda(context, whole_lines(read_bytes), whole_lines(written_bytes));
  }
#endif
  return detail::make_traffic_cpu(context, whole_lines(read_bytes), whole_lines(written_bytes));
}

}  // namespace warpmeter::ceilings
