// A profiler's place taken by a counter: NVTX loads this library where NVTX_INJECTION64_PATH names it. When the program
// ends, one line for each name of a range in the default domain goes to the file that WARPMETER_NVTX_COUNTS names:
// "<opened> <closed> <name>". Libraries' ranges are in domains of their own, and not counted.
#define NVTX_NO_IMPL
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <nvtx3/nvToolsExt.h>

namespace {

struct Count {
  std::int64_t opened = 0, closed = 0;
};

struct Counts {
  std::mutex mutex;
  std::map<std::string, Count, std::less<>> by_name;
  std::map<nvtxRangeId_t, std::string> started;
  nvtxRangeId_t last_id = 0;

  void open(const std::string& name) {
    const std::lock_guard lock(mutex);
    ++by_name[name].opened;
  }
  void close(const std::string& name) {
    const std::lock_guard lock(mutex);
    ++by_name[name].closed;
  }
};

// Never destroyed: ranges may end while the program does.
Counts& counts() {
  static auto* const counts = new Counts;
  return *counts;
}

std::vector<std::string>& pushed() {
  static thread_local std::vector<std::string> names;  // outermost first
  return names;
}

constexpr const char* kNoName = "(no name)";
constexpr const char* kNeverOpened = "(never opened)";

std::string name_of(const nvtxEventAttributes_t* attributes) {
  const bool is_text = attributes != nullptr && attributes->messageType == NVTX_MESSAGE_TYPE_ASCII;
  return is_text && attributes->message.ascii != nullptr ? attributes->message.ascii : kNoName;
}

int push(const char* name) {
  pushed().emplace_back(name != nullptr ? name : kNoName);
  counts().open(pushed().back());
  return static_cast<int>(pushed().size()) - 1;
}

int push_attributes(const nvtxEventAttributes_t* attributes) {
  return push(name_of(attributes).c_str());
}

int pop() {
  if (pushed().empty()) {
    counts().close(kNeverOpened);
    return -1;
  }
  counts().close(pushed().back());
  pushed().pop_back();
  return static_cast<int>(pushed().size());
}

nvtxRangeId_t start(const char* name) {
  const std::lock_guard lock(counts().mutex);
  const nvtxRangeId_t id = ++counts().last_id;
  const std::string text = name != nullptr ? name : kNoName;
  ++counts().by_name[text].opened;
  counts().started.emplace(id, text);
  return id;
}

nvtxRangeId_t start_attributes(const nvtxEventAttributes_t* attributes) {
  return start(name_of(attributes).c_str());
}

void end(nvtxRangeId_t id) {
  const std::lock_guard lock(counts().mutex);
  const auto found = counts().started.find(id);
  ++counts().by_name[found == counts().started.end() ? kNeverOpened : found->second].closed;
  if (found != counts().started.end()) counts().started.erase(found);
}

void write_counts() {
  const char* const path = std::getenv("WARPMETER_NVTX_COUNTS");
  std::FILE* const file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) {
    std::fprintf(stderr, "nvtx_counter: WARPMETER_NVTX_COUNTS names no file that can be written\n");
    return;
  }
  const std::lock_guard lock(counts().mutex);
  for (const auto& [name, count] : counts().by_name) {
    std::fprintf(file, "%lld %lld %s\n", static_cast<long long>(count.opened), static_cast<long long>(count.closed),
                 name.c_str());
  }
  std::fclose(file);
}

}  // namespace

// Called once by the program and once by each library that has NVTX built in.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE_RangePop) {
    std::fprintf(stderr, "nvtx_counter: NVTX gives no function table\n");
    return 0;
  }
  const auto set = [table](NvtxCallbackIdCore id, auto* function) {
    *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
  };
  set(NVTX_CBID_CORE_RangePushA, push);
  set(NVTX_CBID_CORE_RangePushEx, push_attributes);
  set(NVTX_CBID_CORE_RangePop, pop);
  set(NVTX_CBID_CORE_RangeStartA, start);
  set(NVTX_CBID_CORE_RangeStartEx, start_attributes);
  set(NVTX_CBID_CORE_RangeEnd, end);
  static std::once_flag once;
  std::call_once(once, [] { std::atexit(write_counts); });
  return 1;
}
