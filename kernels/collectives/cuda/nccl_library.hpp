#pragma once

#include <string>

#include <nccl.h>

namespace warpmeter::collectives::detail {

/// NCCL's functions, from the library that is opened at run time.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclMemAlloc) mem_alloc;
  decltype(&ncclMemFree) mem_free;
  decltype(&ncclCommRegister) comm_register;
  decltype(&ncclCommDeregister) comm_deregister;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  decltype(&ncclCommWindowRegister) window_register;  ///< null in an older library
  decltype(&ncclCommWindowDeregister) window_deregister;
#endif
  std::string version;  ///< "2.28.9"
};

/// Opens it with the first call. Null where it is not to be had: nccl_trouble() says why.
[[nodiscard]] const NcclLibrary* nccl_library();
[[nodiscard]] const std::string& nccl_trouble();

}  // namespace warpmeter::collectives::detail
