#pragma once

#include <cuda_runtime_api.h>

namespace warpmeter {

/// True for the errors after which the process's CUDA context is lost (illegal address, launch failure, uncorrectable
/// ECC, assert, ...): every later call fails too. Source: the "must be terminated and relaunched" errors of
/// driver_types.h.
[[nodiscard]] bool is_sticky(cudaError_t error) noexcept;

namespace detail {
/// Clears the last error and throws DeviceError with the call's text, the error's name and words, file and line.
[[noreturn]] void cuda_failed(cudaError_t error, const char* call, const char* file, int line);

inline void cuda_check(cudaError_t error, const char* call, const char* file, int line) {
  if (error != cudaSuccess) [[unlikely]] {
    cuda_failed(error, call, file, line);
  }
}
}  // namespace detail

/// To be called after every kernel launch: throws DeviceError when the launch was refused (bad configuration, no image
/// for this GPU). Does not wait for the kernel.
inline void check_launch(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  detail::cuda_check(cudaGetLastError(), "kernel launch", file, line);
}

}  // namespace warpmeter

/// Evaluates a CUDA runtime call once; throws DeviceError unless it returns cudaSuccess.
#define WM_CUDA_CHECK(call) ::warpmeter::detail::cuda_check((call), #call, __FILE__, __LINE__)
