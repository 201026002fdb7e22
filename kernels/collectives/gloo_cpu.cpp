#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/config.h>
#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <net/if.h>
#include <netdb.h>

#include "kernels/collectives/control.hpp"
#include "kernels/collectives/detail/host_communicator.hpp"
#include "kernels/collectives/gloo.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::collectives {
namespace {

using Milliseconds = std::chrono::milliseconds;

/// The library's context, connected through the control group instead of one of its stores.
class Context final : public gloo::Context {
 public:
  Context(const RankContext& ranks, std::shared_ptr<gloo::transport::Device> device)
      : gloo::Context(ranks.rank, ranks.world_size) {
    setTimeout(Milliseconds(static_cast<std::int64_t>(ranks.options.timeout_s * 1000)));
    device_ = std::move(device);
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(getTimeout());
    // One address for each other rank, of one length, in their order.
    std::string addresses;
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      const std::vector<char> bytes = transportContext_->createPair(r)->address().bytes();
      addresses.append(bytes.begin(), bytes.end());
    }
    const std::vector<std::string> all = all_gather_bytes(*ranks.control, addresses);
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      const std::string& theirs = all[static_cast<std::size_t>(r)];
      const std::size_t length = theirs.size() / static_cast<std::size_t>(size - 1);
      const auto mine = static_cast<std::size_t>(rank < r ? rank : rank - 1);
      transportContext_->getPair(r)->connect({theirs.begin() + static_cast<std::ptrdiff_t>(mine * length),
                                              theirs.begin() + static_cast<std::ptrdiff_t>((mine + 1) * length)});
    }
  }
};

class GlooCommunicator final : public detail::HostCommunicator {
 public:
  GlooCommunicator(std::shared_ptr<Context> context, double timeout_s)
      : HostCommunicator(context->rank, context->size), context_(std::move(context)), timeout_s_(timeout_s) {}
  ~GlooCommunicator() override { stop(); }
  [[nodiscard]] std::string_view backend() const noexcept override { return "gloo"; }

 private:
  void execute(const Collective& c) override {
    try {
      if (c.kind == CollectiveKind::barrier || c.input.count == 0) return barrier();
      switch (c.kind) {
        case CollectiveKind::all_reduce:
          return all_reduce(c);
        case CollectiveKind::broadcast:
          return broadcast(c);
        case CollectiveKind::all_gather:
          return all_gather(c);
        case CollectiveKind::reduce_scatter:
          return reduce_scatter(c);
        case CollectiveKind::barrier:
          return;
      }
    } catch (const gloo::Exception& error) {
      const std::string words = error.what();
      const std::string text = "gloo: " + describe(c) + ": " + words;
      const bool late = words.find("imed out") != std::string::npos || words.find("imeout") != std::string::npos;
      throw_collective_error(late ? CollectiveFault::timeout : CollectiveFault::peer_died, {}, text);
    }
  }

  void barrier() {
    gloo::BarrierOptions options(context_);
    options.setTag(tag_++);
    gloo::barrier(options);
  }

  void all_reduce(const Collective& c) {
    if (c.op == ReduceOp::avg && c.input.dtype == DType::int32) {
      std::vector<std::int64_t> sums = detail::widened(c.input.data, c.input.count);
      gloo::AllreduceOptions options(context_);
      options.setOutput(sums.data(), sums.size());
      options.setReduceFunction([](void* total, const void* a, const void* b, std::size_t count) {
        const auto* x = static_cast<const std::int64_t*>(a);
        const auto* y = static_cast<const std::int64_t*>(b);
        auto* const out = static_cast<std::int64_t*>(total);
        for (std::size_t i = 0; i < count; ++i) out[i] = x[i] + y[i];
      });
      options.setTag(tag_++);
      gloo::allreduce(options);
      return detail::divide_and_narrow(sums, world_size(), c.output.data);
    }
    gloo::AllreduceOptions options(context_);
    if (c.input.data != c.output.data) set_input(options, c.input);
    set_output(options, c.output);
    const DType dtype = c.input.dtype;
    const ReduceOp op = c.op == ReduceOp::avg ? ReduceOp::sum : c.op;
    options.setReduceFunction([dtype, op](void* total, const void* a, const void* b, std::size_t count) {
      const char* const sources[2] = {static_cast<const char*>(a), static_cast<const char*>(b)};
      char* const destination = static_cast<char*>(total);
      detail::reduce({sources, 2, &destination, 1, static_cast<std::int64_t>(count), dtype, op});
    });
    options.setTag(tag_++);
    gloo::allreduce(options);
    if (c.op == ReduceOp::avg) detail::divide(c.output.data, c.output.count, dtype, world_size());
  }

  void broadcast(const Collective& c) {
    gloo::BroadcastOptions options(context_);
    auto* const output = static_cast<char*>(c.output.data);
    if (rank() == c.root && c.input.data != c.output.data) {
      options.setInput(static_cast<char*>(c.input.data), c.input.bytes());
    }
    options.setOutput(output, c.output.bytes());
    options.setRoot(c.root);
    options.setTag(tag_++);
    gloo::broadcast(options);
  }

  void all_gather(const Collective& c) {
    auto* const output = static_cast<char*>(c.output.data);
    char* const own = output + static_cast<std::size_t>(rank()) * c.input.bytes();
    if (c.input.data != own) std::memcpy(own, c.input.data, c.input.bytes());
    gloo::AllgatherOptions options(context_);
    options.setOutput(output, c.output.bytes());
    options.setTag(tag_++);
    gloo::allgather(options);
  }

  /// A ring: at each step a rank sends the partial result of a block to the next rank and adds its own elements to the
  /// one that it gets. The last to arrive is its own block.
  void reduce_scatter(const Collective& c) {
    const int n = world_size(), me = rank();
    const bool wide = c.op == ReduceOp::avg && c.input.dtype == DType::int32;
    const std::int64_t count = c.output.count;
    const std::size_t element = wide ? sizeof(std::int64_t) : size_of(c.input.dtype);
    const std::size_t bytes = static_cast<std::size_t>(count) * element;
    std::vector<std::int64_t> widened;
    if (wide) widened = detail::widened(c.input.data, c.input.count);
    const char* const input = wide ? reinterpret_cast<const char*>(widened.data()) : static_cast<char*>(c.input.data);
    std::vector<char> sent(bytes), got(bytes);
    const auto own_part = [&](int block) { return input + static_cast<std::size_t>(block) * bytes; };
    std::memcpy(sent.data(), own_part((me + n - 1) % n), bytes);
    for (int step = 1; step < n; ++step) {
      const std::uint64_t slot = kSlots + next_slot_++;
      const auto from_here = context_->createUnboundBuffer(sent.data(), bytes);
      const auto to_here = context_->createUnboundBuffer(got.data(), bytes);
      to_here->recv((me + n - 1) % n, slot);
      from_here->send((me + 1) % n, slot);
      wait(to_here->waitRecv(context_->getTimeout()));
      wait(from_here->waitSend(context_->getTimeout()));
      const int block = (me + 2 * n - 1 - step) % n;
      if (wide) {
        auto* const total = reinterpret_cast<std::int64_t*>(got.data());
        const auto* const mine = reinterpret_cast<const std::int64_t*>(own_part(block));
        for (std::int64_t i = 0; i < count; ++i) total[i] += mine[i];
      } else {
        detail::combine(got.data(), own_part(block), count, c.input.dtype, c.op);
      }
      std::swap(sent, got);
    }
    if (wide) {
      const auto* const totals = reinterpret_cast<const std::int64_t*>(sent.data());
      return detail::divide_and_narrow({totals, totals + count}, n, c.output.data);
    }
    if (c.op == ReduceOp::avg) detail::divide(sent.data(), count, c.input.dtype, n);
    std::memcpy(c.output.data, sent.data(), bytes);
  }

  void wait(bool done) const {
    if (!done) throw CollectiveTimeout({}, "gloo: aborted");
  }

  template <class Options>
  static void set_input(Options& options, const CollectiveBuffer& buffer) {
    size_of(buffer.dtype) == 2 ? options.setInput(static_cast<std::uint16_t*>(buffer.data), elements(buffer))
                               : options.setInput(static_cast<std::uint32_t*>(buffer.data), elements(buffer));
  }
  template <class Options>
  static void set_output(Options& options, const CollectiveBuffer& buffer) {
    size_of(buffer.dtype) == 2 ? options.setOutput(static_cast<std::uint16_t*>(buffer.data), elements(buffer))
                               : options.setOutput(static_cast<std::uint32_t*>(buffer.data), elements(buffer));
  }
  static std::size_t elements(const CollectiveBuffer& buffer) { return static_cast<std::size_t>(buffer.count); }

  /// Above those that the library's own collectives make of their tags.
  static constexpr std::uint64_t kSlots = std::uint64_t{0xF} << 56;

  std::shared_ptr<Context> context_;
  double timeout_s_;
  std::uint32_t tag_ = 0;
  std::uint64_t next_slot_ = 0;
};

/// Throws DeviceError where a host has no address. The library follows the answer of a look-up that failed, and may
/// crash: it takes only -1 for a failure.
void require_address(const std::string& host) {
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), nullptr, nullptr, &found);
  if (failed != 0) throw DeviceError("gloo on " + host + ": " + gai_strerror(failed), false);
  freeaddrinfo(found);
}

class GlooBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "gloo"; }
  [[nodiscard]] DeviceKind device_kind() const noexcept override { return DeviceKind::cpu; }
  [[nodiscard]] std::string_view description() const noexcept override { return "the Gloo library over TCP"; }
  [[nodiscard]] std::optional<std::string> unavailable(const GroupShape& /*shape*/) const override {
    return std::nullopt;
  }

  [[nodiscard]] std::unique_ptr<Communicator> create(const RankContext& ranks) const override {
    WM_CHECK(ranks.control != nullptr, "no way to exchange addresses");
    const std::string& wish = ranks.options.interface;
    gloo::transport::tcp::attr where;
    if (!wish.empty() && if_nametoindex(wish.c_str()) != 0) {
      where.iface = wish;
    } else if (!wish.empty()) {
      where.hostname = wish;
    } else if (!ranks.host_address.empty()) {
      where.hostname = ranks.host_address;
    } else {
      where.hostname = "127.0.0.1";
    }
    if (where.iface.empty()) require_address(where.hostname);
    try {
      auto device = gloo::transport::tcp::CreateDevice(where);
      auto context = std::make_shared<Context>(ranks, std::move(device));
      ranks.control->barrier();  // nobody leaves before all are connected
      return std::make_unique<GlooCommunicator>(std::move(context), ranks.options.timeout_s);
    } catch (const CollectiveError&) {
      throw;
    } catch (const std::exception& error) {
      throw DeviceError("gloo on " + (where.iface.empty() ? where.hostname : where.iface) + ": " + error.what(), false);
    }
  }
  [[nodiscard]] std::string library_version() const override {
    return "gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." + std::to_string(GLOO_VERSION_MINOR) + "." +
           std::to_string(GLOO_VERSION_PATCH);
  }
};

}  // namespace

const Backend& gloo_backend() {
  static const GlooBackend backend;
  return backend;
}

}  // namespace warpmeter::collectives
