#pragma once

#include <cstdint>

#include <cuda.h>

#include "kernels/attention/cuda/flash_sm90/params.hpp"

namespace warpmeter::attention::flash_sm90 {

/// The copy engine's view of a 16-bit (batch, heads, rows, head_dim) operand: boxes of 64 columns (128 bytes, swizzled)
/// and `box_rows` rows of one head; coordinates (column, row, head, batch); outside of the tensor zeros are read and
/// nothing is written. Throws DeviceError when the driver refuses it.
[[nodiscard]] CUtensorMap make_tensor_map(const ConstTensorView& operand, bool bf16, std::int64_t batch,
                                          std::int64_t heads, std::int64_t rows, int head_dim, int box_rows);

}  // namespace warpmeter::attention::flash_sm90
