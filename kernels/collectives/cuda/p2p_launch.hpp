#pragma once

#include "kernels/collectives/cuda/p2p_protocol.hpp"
#include "kernels/runtime/stream.hpp"

namespace warpmeter::collectives::p2p {

struct Launch {
  bool small = false;  ///< else bulk
  int blocks = 1, threads = kMaxThreads;
  StreamView stream;
};

/// Starts the kernel of one rank's part of a collective on the current device; bytes that are not combined have a
/// kernel of their own. Throws DeviceError.
void launch(const P2pCall& call, DType dtype, const Launch& how);

/// Loads every kernel: the first use of one would wait for those that run.
void load_kernels();

/// A kernel that reads `bytes` bytes , in whole tiles of 64 KiB, from `source` and keeps nothing: what a link can
/// carry.
void launch_read(const char* source, std::int64_t bytes, int blocks, StreamView stream);

// One a file, by type.
void launch_fp32(const P2pCall& call, const Launch& how);
void launch_bf16(const P2pCall& call, const Launch& how);
void launch_fp16(const P2pCall& call, const Launch& how);
void launch_int32(const P2pCall& call, const Launch& how);
void launch_raw(const P2pCall& call, const Launch& how);
void load_fp32();
void load_bf16();
void load_fp16();
void load_int32();
void load_raw();

}  // namespace warpmeter::collectives::p2p
