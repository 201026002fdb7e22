#pragma once

#include <cstdint>

namespace warpmeter::ptx {

/// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8 (16 bytes a row). Lane l
/// gets, of each matrix, the elements 2*(l%4) and 2*(l%4)+1 of row l/4.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// The same with each matrix transposed: lane l gets rows 2*(l%4) and 2*(l%4)+1 of column l/4.
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// The way back: four 8 x 8 matrices from registers to shared memory (sm_90); lane l holds (l/4, 2*(l%4)) and its right
/// neighbour of each and gives the address of row l%8 of matrix l/8.
__device__ __forceinline__ void stmatrix_x4(std::uint32_t address, std::uint32_t r0, std::uint32_t r1, std::uint32_t r2,
                                            std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace warpmeter::ptx
