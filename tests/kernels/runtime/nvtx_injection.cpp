// A profiler's place taken inside the program: NVTX calls this unit's functions. In a unit of its own because it must
// not contain NVTX's implementation.
#define NVTX_NO_IMPL
#include <string>
#include <vector>

#include <nvtx3/nvToolsExt.h>

namespace warpmeter::test {
std::vector<std::string>& nvtx_log() {
  static std::vector<std::string> log;
  return log;
}
}  // namespace warpmeter::test

namespace {

int push(const char* text) {
  warpmeter::test::nvtx_log().push_back(std::string("push ") + text);
  return 0;
}
int pop() {
  warpmeter::test::nvtx_log().emplace_back("pop");
  return 0;
}

int initialize(NvtxGetExportTableFunc_t export_table) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

}  // namespace

extern "C" {
extern NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr;
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = initialize;
}
