#include "tools/kernel_bench/kernel_tool.hpp"

int main(int argc, char** argv) {
  return warpmeter::harness::run_tool(warpmeter::kernel_bench::KernelTool(), argc, argv);
}
