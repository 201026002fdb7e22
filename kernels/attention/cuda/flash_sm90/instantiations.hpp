#pragma once

#include "kernels/attention/cuda/flash_sm90/kernels.hpp"

/// Two objects an instantiation file; kernels.cpp picks among them.
namespace warpmeter::attention::flash_sm90 {

extern const ForwardKernel kForwardBf16D64, kForwardBf16D80, kForwardBf16D96, kForwardBf16D128, kForwardBf16D256;
extern const ForwardKernel kForwardBf16D64Causal, kForwardBf16D80Causal, kForwardBf16D96Causal, kForwardBf16D128Causal,
    kForwardBf16D256Causal;
extern const ForwardKernel kForwardFp16D64, kForwardFp16D80, kForwardFp16D96, kForwardFp16D128, kForwardFp16D256;
extern const ForwardKernel kForwardFp16D64Causal, kForwardFp16D80Causal, kForwardFp16D96Causal, kForwardFp16D128Causal,
    kForwardFp16D256Causal;
extern const ForwardKernel kForwardBf16D64Paged, kForwardBf16D128Paged, kForwardFp16D64Paged, kForwardFp16D128Paged;

}  // namespace warpmeter::attention::flash_sm90
