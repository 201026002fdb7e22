#pragma once

#include <memory>

#include "kernels/ceilings/bandwidth.hpp"
#include "kernels/ceilings/matmul.hpp"

namespace warpmeter::ceilings::detail {

[[nodiscard]] std::unique_ptr<MatmulWorkload> make_matmul_cpu(const Context& context, std::int64_t n);
[[nodiscard]] std::unique_ptr<CopyWorkload> make_copy_cpu(const Context& context, std::size_t bytes);
[[nodiscard]] std::unique_ptr<ReadWorkload> make_read_cpu(const Context& context, std::size_t bytes);
[[nodiscard]] std::unique_ptr<TrafficWorkload> make_traffic_cpu(const Context& context, std::size_t read_bytes,
                                                                std::size_t written_bytes);

// Only where CUDA is built in.
[[nodiscard]] std::unique_ptr<MatmulWorkload> make_matmul_cuda(const Context& context, ComputePath path,
                                                               std::int64_t n);
[[nodiscard]] std::unique_ptr<CopyWorkload> make_copy_cuda(const Context& context, std::size_t bytes);
[[nodiscard]] std::unique_ptr<ReadWorkload> make_read_cuda(const Context& context, std::size_t bytes);
[[nodiscard]] std::unique_ptr<TrafficWorkload> make_traffic_cuda(const Context& context, std::size_t read_bytes,
                                                                 std::size_t written_bytes);
void spin_for_cuda(std::int64_t duration_ns, StreamView stream);

}  // namespace warpmeter::ceilings::detail
