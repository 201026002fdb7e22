#pragma once

#include "kernels/attention/cuda/flash_sm80/kernels.hpp"

/// One object an instantiation file; kernels.cpp picks among them.
namespace warpmeter::attention::flash_sm80 {

extern const ForwardKernel kForwardBf16D32, kForwardBf16D64, kForwardBf16D96, kForwardBf16D128, kForwardBf16D256;
extern const ForwardKernel kForwardBf16D32Elements, kForwardBf16D64Elements, kForwardBf16D96Elements,
    kForwardBf16D128Elements, kForwardBf16D256Elements;
extern const BackwardKernel kBackwardBf16D32, kBackwardBf16D64, kBackwardBf16D96, kBackwardBf16D128, kBackwardBf16D256;
extern const BackwardKernel kBackwardBf16D32Elements, kBackwardBf16D64Elements, kBackwardBf16D96Elements,
    kBackwardBf16D128Elements, kBackwardBf16D256Elements;
extern const ForwardKernel kForwardFp16D32, kForwardFp16D64, kForwardFp16D96, kForwardFp16D128, kForwardFp16D256;
extern const ForwardKernel kForwardFp16D32Elements, kForwardFp16D64Elements, kForwardFp16D96Elements,
    kForwardFp16D128Elements, kForwardFp16D256Elements;
extern const BackwardKernel kBackwardFp16D32, kBackwardFp16D64, kBackwardFp16D96, kBackwardFp16D128, kBackwardFp16D256;
extern const BackwardKernel kBackwardFp16D32Elements, kBackwardFp16D64Elements, kBackwardFp16D96Elements,
    kBackwardFp16D128Elements, kBackwardFp16D256Elements;

}  // namespace warpmeter::attention::flash_sm80
