#include "kernels/attention/cuda/flash_sm80/check_cuda.hpp"

#include <string>

#include "kernels/runtime/check.hpp"

namespace warpmeter::attention::flash_sm80 {

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  // A launch that was refused leaves the context usable; an error of work that ran before does not.
  const bool refused = status == cudaErrorInvalidConfiguration || status == cudaErrorInvalidValue ||
                       status == cudaErrorLaunchOutOfResources || status == cudaErrorNoKernelImageForDevice ||
                       status == cudaErrorInvalidDeviceFunction || status == cudaErrorMemoryAllocation;
  throw DeviceError(
      std::string("flash attention: ") + what + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status),
      !refused);
}

}  // namespace warpmeter::attention::flash_sm80
