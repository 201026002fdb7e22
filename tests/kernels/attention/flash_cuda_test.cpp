#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter {
namespace {

WM_ATTENTION_CONFORMANCE(FlashCuda, DeviceKind::cuda, "flash");

}  // namespace
}  // namespace warpmeter
