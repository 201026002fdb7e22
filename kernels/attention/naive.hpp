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
const Implementation& naive_cpu();

}  // namespace warpmeter::attention
