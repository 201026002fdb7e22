#include "kernels/collectives/cuda/nccl_library.hpp"

#include <dlfcn.h>

namespace warpmeter::collectives::detail {
namespace {

struct Opened {
  NcclLibrary functions = {};
  std::string trouble;  ///< empty: all is there
};

Opened open_library() {
  Opened opened;
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);  // stays loaded
  if (library == nullptr && WM_NCCL_LIBRARY[0] != '\0') library = dlopen(WM_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* words = dlerror();
    opened.trouble = std::string("the NCCL library cannot be opened: ") + (words != nullptr ? words : "unknown");
    return opened;
  }
  const auto find = [&](auto& function, const char* symbol, bool needed = true) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr && needed) opened.trouble = std::string("the NCCL library has no ") + symbol;
  };
  NcclLibrary& f = opened.functions;
  find(f.get_version, "ncclGetVersion");
  find(f.get_error_string, "ncclGetErrorString");
  find(f.get_unique_id, "ncclGetUniqueId");
  find(f.comm_init_rank_config, "ncclCommInitRankConfig");
  find(f.comm_destroy, "ncclCommDestroy");
  find(f.comm_abort, "ncclCommAbort");
  find(f.comm_get_async_error, "ncclCommGetAsyncError");
  find(f.all_reduce, "ncclAllReduce");
  find(f.broadcast, "ncclBroadcast");
  find(f.all_gather, "ncclAllGather");
  find(f.reduce_scatter, "ncclReduceScatter");
  find(f.send, "ncclSend");
  find(f.receive, "ncclRecv");
  find(f.group_start, "ncclGroupStart");
  find(f.group_end, "ncclGroupEnd");
  find(f.mem_alloc, "ncclMemAlloc");
  find(f.mem_free, "ncclMemFree");
  find(f.comm_register, "ncclCommRegister");
  find(f.comm_deregister, "ncclCommDeregister");
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  find(f.window_register, "ncclCommWindowRegister", false);
  find(f.window_deregister, "ncclCommWindowDeregister", false);
#endif
  int version = 0;
  if (opened.trouble.empty() && f.get_version(&version) == ncclSuccess) {
    f.version = std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
                std::to_string(version % 100);
  }
  return opened;
}

const Opened& opened() {
  static const Opened library = open_library();
  return library;
}

}  // namespace

const NcclLibrary* nccl_library() {
  return opened().trouble.empty() ? &opened().functions : nullptr;
}

const std::string& nccl_trouble() {
  return opened().trouble;
}

}  // namespace warpmeter::collectives::detail
