#include "tools/e2e_bench/presets.hpp"

namespace warpmeter::e2e_bench {

std::vector<harness::Preset> presets() {
  return {
      {"notes",
       "the notes' table: small to 7B, naive, fp32, batch 4, context 256",
       {{"--size", "small,medium,large,xl,7B"},
        {"--mode", "forward,forward_backward"},
        {"--precision", "fp32"},
        {"--structure", "naive"},
        {"--batch", "4"},
        {"--context", "256"}}},
      {"quick",
       "tiny, naive and fused, in half a minute on two CPU cores",
       {{"--size", "tiny"},
        {"--precision", "fp32"},
        {"--structure", "naive,fused"},
        {"--batch", "4"},
        {"--context", "256"},
        {"--warmup", "2"},
        {"--max-time", "1"}}},
      {"course",
       "the course's table: small to 7B at context 128 to 1024, fp32 and bf16, 5 warm-up and 10 measured steps",
       {{"--size", "small,medium,large,xl,7B"},
        {"--mode", "forward,forward_backward,train_step"},
        {"--precision", "fp32,bf16"},
        {"--structure", "fused"},
        {"--batch", "4"},
        {"--context", "128:1024:x2"},
        {"--warmup", "5"},
        {"--steps", "10"}}},
      {"compiled",
       "the notes' question what compiling brings: naive beside fused, every size, fp32 and bf16",
       {{"--size", "small,medium,large,xl,7B"},
        {"--precision", "fp32,bf16"},
        {"--structure", "naive,fused"},
        {"--batch", "4"},
        {"--context", "256"}}},
  };
}

}  // namespace warpmeter::e2e_bench
