#pragma once

#include "kernels/attention/implementation.hpp"

namespace warpmeter::attention {

/// Attention one operation at a time, as an eager framework runs it:
///
///     S = Q K^T;  A = S * scale;  M = mask(A);  P = softmax(M);  O = P V
///
/// Every operation reads and writes whole tensors in the problem's type (tf32 aside) and computes in fp32. S is given
/// back once scaled; A, M and P are held together, as Python's variables hold them, and P stays for the backward:
///
///     dV = P^T dO;  dP = dO V^T;  dM = P (dP - rowsum(P dP));  dA = mask(dM);  dS = dA * scale;  dQ = dS K;  dK = dS^T
///     Q
///
/// Without a causal mask there is no M. Grouped heads read their shared K and V in place.
///
/// S is stored as the type holds it: at |S| = 10^4 a bf16 score is off by up to 32 and P may be anything, and in fp16
/// |q . k| beyond 65504 is infinite, whatever its scaled value would be. A row with +inf becomes NaN, one of -inf alone
/// O = 0 and LSE = -inf, as if it saw nothing; verification calls both a mismatch and names the overflow.
const Implementation& naive_cpu();

}  // namespace warpmeter::attention
