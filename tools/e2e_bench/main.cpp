#include "tools/e2e_bench/model_tool.hpp"

int main(int argc, char** argv) {
  return warpmeter::harness::run_tool(warpmeter::e2e_bench::ModelTool(), argc, argv);
}
