#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include "tools/harness/provenance.hpp"

namespace warpmeter::harness::detail {

void add_cuda_libraries(reports::Object& libraries) {
  int runtime = 0;  // 13000 is 13.0; asks the library alone, so it works without a driver
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
    libraries.set("cuda_runtime", fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10));
  }
  int major = 0, minor = 0, patch = 0;
  if (cublasGetProperty(MAJOR_VERSION, &major) == CUBLAS_STATUS_SUCCESS &&
      cublasGetProperty(MINOR_VERSION, &minor) == CUBLAS_STATUS_SUCCESS &&
      cublasGetProperty(PATCH_LEVEL, &patch) == CUBLAS_STATUS_SUCCESS) {
    libraries.set("cublas", fmt::format("{}.{}.{}", major, minor, patch));
  }
}

}  // namespace warpmeter::harness::detail
