#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter {
namespace {

WM_ATTENTION_CONFORMANCE(NaiveCpu, DeviceKind::cpu, "naive");

}  // namespace
}  // namespace warpmeter
