#include "kernels/attention/detail/flash_dispatch.hpp"
#include "kernels/runtime/cpu_isa.hpp"
#include "tests/kernels/attention/conformance.hpp"

/// Every instruction set's kernels in one program, also those that this machine would not pick.

#if defined(WARPMETER_EMULATED_AMX)
namespace warpmeter::attention {
WM_FLASH_DECLARE_BF16(amx_emulated)
}  // namespace warpmeter::attention
#endif

namespace warpmeter::attention {
namespace {

using flash_detail::find_kernels;
using flash_detail::Kernels;

const Kernels& generic_kernels(DType) {
  return *find_kernels("generic");
}
const Kernels& avx2_kernels(DType) {
  return *find_kernels("avx2");
}
const Kernels& avx512_kernels(DType) {
  return *find_kernels("avx512");
}
const Kernels& avx512_bf16_kernels(DType dtype) {
  return *find_kernels(dtype == DType::bf16 ? "avx512_bf16" : "avx512");
}
const Kernels& amx_bf16_kernels(DType dtype) {
  return *find_kernels(dtype == DType::bf16 ? "amx_bf16" : "avx512");
}

struct Level {
  const char* isa;
  flash_detail::ChooseKernels choose;
  bool bf16_only;
};
void PrintTo(const Level& level, std::ostream* out) {
  *out << level.isa;
}

void run_level(const Level& level) {
  for (const bool two_pass : {false, true}) {
    const auto implementation = flash_detail::make_flash_cpu(two_pass, level.choose);
    const conformance::Subject subject(*implementation);
    for (const auto& cases : {conformance::length_cases(conformance::Extent::thinned), conformance::head_dim_cases(),
                              conformance::group_cases(), conformance::layout_cases(), conformance::value_cases()}) {
      for (const conformance::Case& c : cases) {
        if (level.bf16_only && c.problem.dtype != DType::bf16) continue;
        if (c.problem.seq_len * c.problem.kv_len > 30'000) continue;  // flash_test has the long ones
        EXPECT_TRUE(conformance::run(subject, c)) << level.isa << (two_pass ? " two passes" : "");
      }
    }
  }
}

class FlashKernels : public testing::TestWithParam<Level> {};

TEST_P(FlashKernels, Conform) {
  const Level level = GetParam();
  if (find_kernels(level.isa) == nullptr) GTEST_SKIP() << "this machine does not run " << level.isa;
  const DType dtype = level.bf16_only ? DType::bf16 : DType::fp32;
  if (find_kernels(level.isa) == &flash_detail::choose_kernels(dtype)) GTEST_SKIP() << "flash_test runs " << level.isa;
  run_level(level);
}

INSTANTIATE_TEST_SUITE_P(Levels, FlashKernels,
                         testing::Values(Level{"generic", generic_kernels, false}, Level{"avx2", avx2_kernels, false},
                                         Level{"avx512", avx512_kernels, false},
                                         Level{"avx512_bf16", avx512_bf16_kernels, true},
                                         Level{"amx_bf16", amx_bf16_kernels, true}),
                         [](const auto& level) { return std::string(level.param.isa); });

#if defined(WARPMETER_EMULATED_AMX)
const Kernels& emulated_amx_kernels(DType dtype) {
  if (dtype != DType::bf16) return *find_kernels("avx512");
  static const Kernels kernels = {"amx_emulated",
                                  amx_emulated::flash_bf16_forward_scratch,
                                  amx_emulated::flash_bf16_forward,
                                  amx_emulated::flash_bf16_delta,
                                  amx_emulated::flash_bf16_query_gradient_scratch,
                                  amx_emulated::flash_bf16_query_gradient,
                                  amx_emulated::flash_bf16_key_block_scratch,
                                  amx_emulated::flash_bf16_key_block};
  return kernels;
}

/// The code around the tile instructions, with those in plain loops: on machines that have AVX-512 but not AMX.
TEST(FlashKernels, ConformWithEmulatedTiles) {
  if (machine_cpu_isa() != CpuIsa::avx512) GTEST_SKIP() << "this machine does not run avx512";
  run_level({"amx_emulated", emulated_amx_kernels, true});
}
#endif

}  // namespace
}  // namespace warpmeter::attention
