#include "tools/attn_bench/attention_tool.hpp"

int main(int argc, char** argv) {
  return warpmeter::harness::run_tool(warpmeter::attn_bench::AttentionTool(), argc, argv);
}
