#include "tests/kernels/primer/cases.hpp"

#include <cstring>

namespace warpmeter::primer {

namespace {

/// The sizes that a kernel has, of those given.
Problem sized(const Kernel& kernel, std::int64_t batch, std::int64_t rows, std::int64_t cols, std::int64_t inner,
              std::int64_t kernel_size, std::int64_t group_size) {
  Problem problem;
  const std::pair<Size, std::int64_t> all[] = {{Size::batch, batch},
                                               {Size::rows, rows},
                                               {Size::cols, cols},
                                               {Size::inner, inner},
                                               {Size::kernel_size, kernel_size},
                                               {Size::group_size, group_size}};
  for (const auto& [size, value] : all) {
    if (kernel.has(size)) problem.set(size, value);
  }
  return problem;
}

}  // namespace

std::vector<Problem> problems_of(const Kernel& kernel, bool thorough) {
  std::vector<Problem> shapes{kernel.notes};
  const auto add = [&](std::int64_t batch, std::int64_t rows, std::int64_t cols, std::int64_t inner = 64,
                       std::int64_t kernel_size = 3, std::int64_t group_size = 32) {
    shapes.push_back(sized(kernel, batch, rows, cols, inner, kernel_size, group_size));
  };
  add(1, 1, 1, 1, 1, 1);
  add(1, 3, 5, 7, 2, 3);
  add(2, 37, 65, 33, 5, 8);
  add(1, 129, 257, 130, 3, 64);
  add(3, 33, 136, 128, 4, 64);
  if (kernel.matrix_product) {
    add(2, 130, 264, 200, 3, 128);  // wgmma with ends in every direction
    add(1, 256, 256, 320, 3, 64);   // several steps and groups
    add(1, 131, 1, 1024, 3, 128);   // one column
    add(1, 16, 1, 4736, 3, 256);    // more pieces than the warps take in a round, groups of two
    add(1, 20, 1, 100, 3, 24);      // one column, off the pieces
    add(1, 9, 4, 1536, 3, 512);
    add(1, 70, 16, 704, 3, 128);   // a wgmma step that half a group is left for
    add(1, 40, 1, 640, 3, 128);    // one column: a stretch that is cut short
    add(1, 4500, 1, 256, 3, 128);  // several tiles a block
    add(1, 33, 1, 20480, 3, 128);  // more than is under way at a time
    add(1, 20, 1, 51200, 3, 512);  // y too long to be kept in four bytes a number
    add(1, 200, 1, 512, 3, 128);   // one column in octets of rows, on sm_90 the copy engine's
    add(1, 131, 1, 4096, 3, 128);  // any rows: their scales are whole copies; tiles that are cut short
    add(1, 72, 1, 5120, 3, 128);   // two pairs of pieces a warp, of which some have none
    add(1, 77, 1, 8192, 3, 128);
    add(1, 1064, 1, 11008, 3, 128);  // two parts of a row, an odd pair at the end
  } else if (kernel.has(Size::kernel_size)) {
    add(1, 40, 150, 1, 7);
    add(1, 35, 504, 1, 3);  // warps beside one another, whole pieces of 16 bytes
    add(2, 33, 256, 1, 5);
    add(1, 20, 140, 1, 9);  // in pieces
    add(1, 70, 264, 1, 8);
    add(1, 37, 520, 1, 17);
    add(1, 5, 6, 1, 16);  // larger than the picture
  } else {
    add(1, 2, 1024);
    add(1, 9, 1032);
    add(1, 3, 4096);
    add(1, 5, 4099);
    add(1, 700, 40);
    if (thorough) {
      add(1, 3, 16384);
      add(1, 3, 16391);
      add(1, 2, 40000);
      add(1, 2, 65536);
      add(1, 3, 163840);  // longer than what a cluster of blocks holds, whole pieces of 16 bytes
      add(1, 1, 200003);
      add(1, 5000, 301);
    }
  }
  if (thorough && kernel.matrix_product) {
    add(2, 700, 1096, 448, 3, 64);
    add(1, 1000, 1544, 512, 3, 128);
    add(1, 40000, 1, 256, 3, 128);  // more rows a block than it keeps sums of
  }
  if (thorough && kernel.has(Size::kernel_size)) add(2, 300, 1000, 1, 5);
  std::vector<Problem> problems;
  for (Problem problem : shapes) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      problem.dtype = dtype;
      problems.push_back(problem);
    }
  }
  return problems;
}

std::string run_and_check(const Context& context, const Kernel& kernel, const Problem& problem) {
  const Operands operands = make_operands(context, kernel, problem, 7);
  run(kernel, problem, operands.arguments(), context.stream);
  const HostCopies in(operands.in, kernel.inputs(problem), context.stream);
  const HostCopies out(operands.out, kernel.outputs(problem), context.stream);
  return check(kernel, problem, in.tensors(), out.tensors(), 2e6).failure;
}

std::vector<std::vector<std::byte>> result_bytes(const Context& context, const Kernel& kernel, const Problem& problem) {
  const Operands operands = make_operands(context, kernel, problem, 7);
  run(kernel, problem, operands.arguments(), context.stream);
  std::vector<std::vector<std::byte>> results;
  for (const Tensor& tensor : operands.out) {
    results.emplace_back(tensor.bytes());
    copy_bytes(results.back().data(), Device::cpu(), tensor.data(), tensor.device(), tensor.bytes(), context.stream);
  }
  synchronize(context.stream);
  return results;
}

}  // namespace warpmeter::primer
