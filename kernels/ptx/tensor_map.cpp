#include "kernels/ptx/tensor_map.hpp"

#include <string>

#include <cuda_runtime_api.h>

#include "kernels/runtime/check.hpp"

namespace warpmeter::ptx {

namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// From the driver through the runtime, so that nothing links against libcuda.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) {
      throw DeviceError("this driver has no cuTensorMapEncodeTiled", false);
    }
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

}  // namespace

CUtensorMap make_tensor_map(const MapOperand& operand, bool bf16, std::int64_t batch, std::int64_t heads,
                            std::int64_t rows, int columns, int box_rows) {
  constexpr std::uint64_t kElementBytes = 2;
  const auto stride = [&](std::int64_t elements, std::int64_t count) {
    // A dimension of one element has no stride to speak of; the engine still wants a legal one.
    return count == 1 ? std::uint64_t{16} : static_cast<std::uint64_t>(elements) * kElementBytes;
  };
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[3] = {stride(operand.row_stride, rows), stride(operand.head_stride, heads),
                                 stride(operand.batch_stride, batch)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode_tiled()(&map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
                     const_cast<void*>(operand.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw DeviceError("cuTensorMapEncodeTiled failed with " + std::to_string(result) + " for " + std::to_string(batch) +
                          " x " + std::to_string(heads) + " x " + std::to_string(rows) + " x " +
                          std::to_string(columns),
                      false);
  }
  return map;
}

}  // namespace warpmeter::ptx
