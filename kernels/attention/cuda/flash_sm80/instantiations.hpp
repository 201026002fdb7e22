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

extern const ForwardKernel kForwardFp32D16, kForwardFp32D32, kForwardFp32D64, kForwardFp32D128, kForwardFp32D256;
extern const ForwardKernel kForwardTf32D16, kForwardTf32D32, kForwardTf32D64, kForwardTf32D128, kForwardTf32D256;
extern const BackwardKernel kBackwardFp32D16, kBackwardFp32D32, kBackwardFp32D64, kBackwardFp32D128, kBackwardFp32D256;
extern const BackwardKernel kBackwardTf32D16, kBackwardTf32D32, kBackwardTf32D64, kBackwardTf32D128, kBackwardTf32D256;
extern const BackwardKernel kTwoPassFp32D64, kTwoPassFp32D128, kTwoPassFp32D256;
extern const BackwardKernel kTwoPassTf32D64, kTwoPassTf32D128, kTwoPassTf32D256;
extern const BackwardKernel kTwoPassBf16D64, kTwoPassBf16D128, kTwoPassBf16D256;
extern const BackwardKernel kTwoPassFp16D64, kTwoPassFp16D128, kTwoPassFp16D256;

/// For devices with less shared memory.
extern const ForwardKernel kForwardBf16D256Shared99k;
extern const BackwardKernel kBackwardBf16D64Shared99k, kBackwardBf16D96Shared99k, kBackwardBf16D128Shared163k,
    kBackwardBf16D128Shared99k, kBackwardBf16D256Shared99k;
extern const ForwardKernel kForwardBf16D256ElementsShared99k;
extern const BackwardKernel kBackwardBf16D64ElementsShared99k, kBackwardBf16D96ElementsShared99k,
    kBackwardBf16D128ElementsShared163k, kBackwardBf16D128ElementsShared99k, kBackwardBf16D256ElementsShared99k;
extern const ForwardKernel kForwardFp16D256Shared99k;
extern const BackwardKernel kBackwardFp16D64Shared99k, kBackwardFp16D96Shared99k, kBackwardFp16D128Shared163k,
    kBackwardFp16D128Shared99k, kBackwardFp16D256Shared99k;
extern const ForwardKernel kForwardFp16D256ElementsShared99k;
extern const BackwardKernel kBackwardFp16D64ElementsShared99k, kBackwardFp16D96ElementsShared99k,
    kBackwardFp16D128ElementsShared163k, kBackwardFp16D128ElementsShared99k, kBackwardFp16D256ElementsShared99k;
extern const ForwardKernel kForwardFp32D128Shared99k, kForwardFp32D256Shared99k;
extern const BackwardKernel kBackwardFp32D128Shared163k, kBackwardFp32D128Shared99k, kBackwardFp32D256Shared99k;
extern const ForwardKernel kForwardTf32D128Shared99k, kForwardTf32D256Shared99k;
extern const BackwardKernel kBackwardTf32D128Shared163k, kBackwardTf32D128Shared99k, kBackwardTf32D256Shared99k;
extern const BackwardKernel kTwoPassFp32D128Shared99k, kTwoPassFp32D256Shared99k;
extern const BackwardKernel kTwoPassTf32D128Shared99k, kTwoPassTf32D256Shared99k;
extern const BackwardKernel kTwoPassBf16D128Shared99k, kTwoPassBf16D256Shared99k;
extern const BackwardKernel kTwoPassFp16D128Shared99k, kTwoPassFp16D256Shared99k;

}  // namespace warpmeter::attention::flash_sm80
