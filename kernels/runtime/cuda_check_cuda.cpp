#include <string>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter {

bool is_sticky(cudaError_t error) noexcept {
  // By number where CUDA 12.4 does not have the name yet.
  switch (static_cast<int>(error)) {
    case cudaErrorECCUncorrectable:
    case 220:  // cudaErrorNvlinkUncorrectable
    case 226:  // cudaErrorContained
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case 721:  // cudaErrorTensorMemoryLeak
    case cudaErrorMpsClientTerminated:
    case 911:  // cudaErrorExternalDevice
      return true;
    default:
      return false;
  }
}

namespace detail {

void cuda_failed(cudaError_t error, const char* call, const char* file, int line) {
  static_cast<void>(cudaGetLastError());  // a refused call must not make the next check fail
  const bool sticky = is_sticky(error);
  throw DeviceError(std::string(call) + " failed: " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) +
                        ") at " + file + ":" + std::to_string(line) +
                        (sticky ? "; the CUDA context is lost, nothing more can run in this process" : ""),
                    sticky);
}

}  // namespace detail
}  // namespace warpmeter
