#include "kernels/layers/linear_epilogue.hpp"

#include "kernels/layers/detail/linear_epilogues.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::layers {

// Whether this build has the Hopper kernels at all.
#if defined(WARPMETER_SM90A)

bool fuses(Device device, const SwigluLinear& arguments) {
  return cuda::fuses(device, arguments);
}
bool fuses(Device device, const RopeLinear& arguments) {
  return cuda::fuses(device, arguments);
}
void swiglu_linear(const Context& context, const SwigluLinear& arguments) {
  WM_CHECK(fuses(context.device(), arguments), "only where fuses()");
  cuda::swiglu_linear(context, arguments);
}
void rope_linear(const Context& context, const RopeLinear& arguments) {
  WM_CHECK(fuses(context.device(), arguments), "only where fuses()");
  cuda::rope_linear(context, arguments);
}

#else

bool fuses(Device, const SwigluLinear&) {
  return false;
}
bool fuses(Device, const RopeLinear&) {
  return false;
}
void swiglu_linear(const Context&, const SwigluLinear&) {
  WM_CHECK(false, "this build has no fused linear layers");
}
void rope_linear(const Context&, const RopeLinear&) {
  WM_CHECK(false, "this build has no fused linear layers");
}

#endif

}  // namespace warpmeter::layers
