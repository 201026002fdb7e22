#pragma once

#include <cstdint>

#include <cuda.h>

namespace warpmeter::ptx {

/// A 16-bit (batch, heads, rows, columns) operand in device memory whose columns lie one after another; strides in
/// elements, of whole 16 bytes.
struct MapOperand {
  const void* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

/// The copy engine's view of it: boxes of 64 columns (128 bytes, with the 128-byte swizzle) and `box_rows` rows of one
/// head; coordinates (column, row, head, batch); outside of the tensor zeros are read and nothing is written. Throws
/// DeviceError when the driver refuses it. CUDA driver API, "Tensor Map Object Management".
[[nodiscard]] CUtensorMap make_tensor_map(const MapOperand& operand, bool bf16, std::int64_t batch, std::int64_t heads,
                                          std::int64_t rows, int columns, int box_rows);

}  // namespace warpmeter::ptx
