#include <chrono>
#include <cstdio>

#include "kernels/layers/dev/layers_bench/bench.hpp"
#include "kernels/layers/matmul.hpp"

namespace warpmeter::layers::bench {

void time_products(const Context& context, const std::string& only) {
  struct Size {
    const char* name;
    std::int64_t rows, width, inner;
  };
  constexpr Size kSizes[] = {{"small", 1024, 768, 3072},
                             {"medium", 1024, 1024, 4096},
                             {"xl", 1024, 1600, 6400},
                             {"7B", 1024, 2560, 10240},
                             {"xl, context 1024", 4096, 1600, 6400}};
  for (const Size& size : kSizes) {
    if (std::string("matmul ").append(size.name).find(only) == std::string::npos) continue;
    for (const DType dtype : {DType::bf16, DType::tf32, DType::fp32}) {
      if (dtype != DType::bf16 && size.rows > 1024) continue;
      const DType storage = storage_of(dtype);
      const auto chosen = make_matmul(context), first = make_matmul(context, {.try_candidates = false});
      const std::int64_t most = std::max(size.rows, size.width) * 2 * size.inner;
      const Tensor a = random(context, most, storage), b = random(context, most, storage, 0.05f);
      const Tensor c(context, {most}, DType::fp32);
      struct Layer {
        const char* name;
        std::int64_t in, out;
      };
      for (const Layer& layer : {Layer{"qkv", size.width, 3 * size.width}, Layer{"out", size.width, size.width},
                                 Layer{"w13", size.width, 2 * size.inner}, Layer{"w2", size.inner, size.width},
                                 Layer{"head", size.width, 10000}}) {
        struct Pass {
          const char* name;
          MatmulProblem problem;
        };
        for (const Pass& pass :
             {Pass{"y", linear_forward(size.rows, layer.in, layer.out, dtype, storage)},
              Pass{"dx", linear_input_gradient(size.rows, layer.in, layer.out, dtype, storage)},
              Pass{"dw", linear_weight_gradient(size.rows, layer.in, layer.out, dtype, DType::fp32, false)}}) {
          const MatmulProblem& p = pass.problem;
          const auto begin = std::chrono::steady_clock::now();
          chosen->multiply(p, a.data(), b.data(), c.data());
          synchronize(context.stream);
          const std::chrono::duration<double, std::milli> choosing = std::chrono::steady_clock::now() - begin;
          const double us = time_us(context, 10, [&] { chosen->multiply(p, a.data(), b.data(), c.data()); });
          const double first_us = time_us(context, 10, [&] { first->multiply(p, a.data(), b.data(), c.data()); });
          std::printf(
              "{\"op\": \"matmul %s %s\", \"size\": \"%s\", \"dtype\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, "
              "\"us\": %.2f, \"tflops\": %.1f, \"first_us\": %.2f, \"choosing_ms\": %.1f, \"kernel\": \"%s\"}\n",
              layer.name, pass.name, size.name, std::string(name(dtype)).c_str(), static_cast<long long>(p.m),
              static_cast<long long>(p.n), static_cast<long long>(p.k), us, p.flops() / us * 1e-6, first_us,
              choosing.count(), chosen->kernel(p).c_str());
          std::fflush(stdout);
        }
      }
    }
  }
}

}  // namespace warpmeter::layers::bench
