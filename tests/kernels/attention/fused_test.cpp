#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter {
namespace {

WM_ATTENTION_CONFORMANCE(FusedCpu, DeviceKind::cpu, "fused");

}  // namespace
}  // namespace warpmeter
