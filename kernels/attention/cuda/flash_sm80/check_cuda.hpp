#pragma once

#include <cuda_runtime_api.h>

namespace warpmeter::attention::flash_sm80 {

/// Throws DeviceError naming `what` unless `status` is success, and clears the last error.
void check_cuda(cudaError_t status, const char* what);

}  // namespace warpmeter::attention::flash_sm80
