#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter {
namespace {

WM_ATTENTION_CONFORMANCE(ReferenceCpu, DeviceKind::cpu, "reference");

}  // namespace
}  // namespace warpmeter
