#include <cstdint>

#include "kernels/runtime/cuda_check.hpp"
#include "tests/kernels/runtime/gpu_kernels.hpp"

namespace warpmeter::test {
namespace {

__device__ std::uint64_t now_ns() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void delayed_write(std::uint64_t nanoseconds, int* target, int value) {
  const std::uint64_t begin = now_ns();
  while (now_ns() - begin < nanoseconds) {
  }
  if (target != nullptr) *target = value;
}

__global__ void add(int* data, int count, int addend) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index < count) data[index] += addend;
}

__global__ void illegal_write(int* target) {
  *target = 1;
}

cudaStream_t handle(StreamView stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

}  // namespace

void launch_delayed_write(StreamView stream, int milliseconds, int* target, int value) {
  const DeviceGuard guard(stream.device);
  delayed_write<<<1, 1, 0, handle(stream)>>>(static_cast<std::uint64_t>(milliseconds) * 1000000, target, value);
  check_launch();
}

void launch_add(StreamView stream, int* data, int count, int addend) {
  const DeviceGuard guard(stream.device);
  add<<<count / 256 + 1, 256, 0, handle(stream)>>>(data, count, addend);
  check_launch();
}

void launch_illegal_write(StreamView stream) {
  const DeviceGuard guard(stream.device);
  illegal_write<<<1, 1, 0, handle(stream)>>>(reinterpret_cast<int*>(std::uintptr_t{1} << 46));
  check_launch();
}

void launch_refused(StreamView stream) {
  const DeviceGuard guard(stream.device);
  add<<<1, 4096, 0, handle(stream)>>>(nullptr, 0, 0);
  check_launch();
}

}  // namespace warpmeter::test
