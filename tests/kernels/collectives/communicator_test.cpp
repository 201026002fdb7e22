#include "kernels/collectives/communicator.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/collectives/shm.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::collectives {
namespace {

TEST(Communicator, BusFactorsAreThoseOfNcclsTests) {
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::all_reduce, 2), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::all_reduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::reduce_scatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::broadcast, 4), 1.0);
  for (const auto kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
                          CollectiveKind::broadcast, CollectiveKind::barrier}) {
    EXPECT_EQ(bus_factor(kind, 1), 0.0) << name(kind);
  }
}

TEST(Communicator, Names) {
  EXPECT_EQ(name_ranks({3}), "rank 3");
  EXPECT_EQ(name_ranks({1, 2}), "ranks 1 and 2");
  EXPECT_EQ(name_ranks({1, 2, 5}), "ranks 1, 2 and 5");
  Collective call;
  EXPECT_EQ(describe(call), "barrier");
  call.kind = CollectiveKind::all_reduce;
  call.op = ReduceOp::avg;
  call.input = call.output = CollectiveBuffer(nullptr, 1 << 18, DType::fp32);
  EXPECT_EQ(describe(call), "all_reduce avg of 262144 fp32 (1048576 bytes)");
  call.kind = CollectiveKind::broadcast;
  call.root = 2;
  EXPECT_EQ(describe(call), "broadcast from rank 2 of 262144 fp32 (1048576 bytes)");
}

TEST(Communicator, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  const auto communicator = ShmWorld(ShmOptions()).join(0);
  EXPECT_EQ(communicator->rank(), 0);
  EXPECT_EQ(communicator->world_size(), 1);
  EXPECT_EQ(communicator->backend(), "shm");
  std::vector<float> a(8, 1.0F), b(8);
  const auto view = [](std::vector<float>& v, std::int64_t begin, std::int64_t count, DType dtype = DType::fp32) {
    return CollectiveBuffer(v.data() + begin, count, dtype);
  };
  EXPECT_THROW(communicator->all_reduce(view(a, 0, 8), view(b, 0, 7), ReduceOp::sum), CheckError) << "sizes";
  EXPECT_THROW(communicator->all_reduce(view(a, 0, 8), view(b, 0, 8, DType::int32), ReduceOp::sum), CheckError);
  EXPECT_THROW(communicator->all_reduce(view(a, 0, 4), view(a, 1, 4), ReduceOp::sum), CheckError) << "overlap";
  EXPECT_THROW(communicator->all_reduce({nullptr, 1, DType::fp32}, view(b, 0, 1), ReduceOp::sum), CheckError);
  EXPECT_THROW(communicator->all_reduce(view(a, 0, -1), view(b, 0, -1), ReduceOp::sum), CheckError);
  EXPECT_THROW(communicator->all_reduce(view(a, 0, 4, DType::fp64), view(b, 0, 4, DType::fp64), ReduceOp::sum),
               CheckError);
  EXPECT_THROW(communicator->broadcast(view(a, 0, 8), view(b, 0, 8), 1), CheckError) << "no such root";
  EXPECT_THROW((void)communicator->all_gather_async(view(a, 0, 2), view(b, 0, 4)), CheckError);
  const std::vector<CollectiveBuffer> two = {view(a, 0, 2), view(b, 0, 2)};
  EXPECT_THROW(communicator->all_gather_v(two), CheckError) << "one rank, two pieces";
  EXPECT_THROW(communicator->all_gather_v(std::vector<CollectiveBuffer>{view(a, 0, -1)}), CheckError);
  EXPECT_THROW((void)communicator->all_gather_v_async(std::vector<CollectiveBuffer>{{nullptr, 1, DType::fp32}}),
               CheckError);
  // And the communicator is as good as before.
  communicator->all_reduce(view(a, 0, 8), view(b, 0, 8), ReduceOp::sum);
  EXPECT_EQ(a, b);
}

/// Of two ranks; writes down what a backend without all_gather_v of its own is asked for.
class Noting final : public Communicator {
 public:
  Noting() : Communicator(0, 2) {}
  [[nodiscard]] std::string_view backend() const noexcept override { return "noting"; }
  [[nodiscard]] CommunicatorBuffer allocate(std::size_t) override { return {}; }
  std::vector<std::string> calls;

 protected:
  void run(const Collective& c) override { calls.push_back(describe(c)); }
  Work start(const Collective& c) override {
    calls.push_back("start " + describe(c));
    return {};
  }
};

TEST(Communicator, AllGatherVIsABroadcastAPiece) {
  Noting group;
  std::vector<float> a(8);
  const auto pieces = [&](std::int64_t first, std::int64_t second) {
    return std::vector<CollectiveBuffer>{{a.data(), first, DType::fp32}, {a.data() + 4, second, DType::fp32}};
  };
  group.all_gather_v(pieces(4, 3));
  group.all_gather_v_async(pieces(4, 3)).wait();
  group.all_gather_v(pieces(0, 3));
  group.all_gather_v(pieces(0, 0));
  EXPECT_EQ(group.calls,
            (std::vector<std::string>{
                "broadcast from rank 0 of 4 fp32 (16 bytes)", "broadcast from rank 1 of 3 fp32 (12 bytes)",
                "start broadcast from rank 0 of 4 fp32 (16 bytes)", "start broadcast from rank 1 of 3 fp32 (12 bytes)",
                "broadcast from rank 1 of 3 fp32 (12 bytes)", "barrier"}));
  EXPECT_EQ(describe_all_gather_v(pieces(4, 3)), "all_gather_v of 4 and 3 fp32 (28 bytes)");
  EXPECT_THROW(group.all_gather_v(pieces(5, 3)), CheckError) << "they overlap";
  EXPECT_THROW(group.all_gather_v(std::vector<CollectiveBuffer>{{a.data(), 1, DType::fp32}}), CheckError);
  EXPECT_THROW(
      group.all_gather_v(std::vector<CollectiveBuffer>{{a.data(), 1, DType::fp32}, {a.data() + 4, 1, DType::int32}}),
      CheckError);
}

TEST(Communicator, HostMemoryOnlyForShm) {
  const auto communicator = ShmWorld(ShmOptions()).join(0);
  float value = 1;
  const CollectiveBuffer on_gpu(&value, 1, DType::fp32, Device::cuda(0));
  try {
    communicator->all_reduce(on_gpu, on_gpu, ReduceOp::sum);
    FAIL() << "a CUDA buffer was taken";
  } catch (const CollectiveError& error) {
    EXPECT_EQ(error.fault(), CollectiveFault::unsupported);
    EXPECT_NE(std::string(error.what()).find("cuda:0"), std::string::npos) << error.what();
  }
}

TEST(Communicator, TensorsAreBuffers) {
  CachingAllocator allocator(Device::cpu());
  const Context context{StreamView{Device::cpu(), nullptr}, &allocator};
  const Tensor tensor(context, {3, 5}, DType::bf16);
  const CollectiveBuffer buffer = tensor;
  EXPECT_EQ(buffer.data, tensor.data());
  EXPECT_EQ(buffer.count, 15);
  EXPECT_EQ(buffer.bytes(), 30U);
  EXPECT_EQ(buffer.dtype, DType::bf16);
}

TEST(ShmWorld, RefusesOptionsThatMakeNoSense) {
  const auto with = [](auto change) {
    ShmOptions options;
    change(options);
    return options;
  };
  EXPECT_THROW(ShmWorld(with([](ShmOptions& o) { o.world_size = 0; })), CheckError);
  EXPECT_THROW(ShmWorld(with([](ShmOptions& o) { o.world_size = 65; })), CheckError);
  EXPECT_THROW(ShmWorld(with([](ShmOptions& o) { o.threads = -1; })), CheckError);
  EXPECT_THROW(ShmWorld(with([](ShmOptions& o) { o.timeout_s = 0; })), CheckError);
  const ShmWorld world{ShmOptions()};
  EXPECT_THROW((void)world.join(1), CheckError);
  const auto first = world.join(0);
  EXPECT_THROW((void)world.join(0), CheckError) << "once only";
}

}  // namespace
}  // namespace warpmeter::collectives
