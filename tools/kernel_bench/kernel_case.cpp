#include "tools/kernel_bench/kernel_case.hpp"

#include <numeric>

#include "kernels/primer/operands.hpp"
#include "kernels/primer/verify.hpp"
#include "kernels/runtime/annotate.hpp"
#include "tools/harness/plain_traffic.hpp"

namespace warpmeter::kernel_bench {

namespace {

using primer::Kernel;
using primer::Problem;
using primer::Size;

constexpr double kMiB = 1024.0 * 1024.0;
constexpr Size kSizes[] = {Size::batch, Size::rows, Size::cols, Size::inner, Size::kernel_size, Size::group_size};

std::size_t bytes_of(const primer::TensorSpecs& specs) {
  return std::accumulate(specs.begin(), specs.end(), std::size_t{0},
                         [](std::size_t sum, const primer::TensorSpec& spec) { return sum + spec.bytes(); });
}

}  // namespace

std::vector<std::string> kernel_row_keys() {
  std::vector<std::string> keys{"kernel", "impl", "dtype"};
  for (const Size size : kSizes) keys.emplace_back(primer::name(size));
  return keys;
}

reports::Object KernelCase::configuration() const {
  const auto& [kernel, problem] = configuration_;
  reports::Object object;
  object.set("kernel", kernel->name);
  object.set("impl", "warpmeter");  // peers measure the same kernels as others write them
  object.set("dtype", name(problem.dtype));
  for (const Size size : kSizes) {
    object.set(primer::name(size), kernel->has(size) ? reports::Value(problem.size(size)) : reports::Value());
  }
  return object;
}

std::vector<std::pair<std::string, std::string>> KernelCase::option_values() const {
  const auto& [kernel, problem] = configuration_;
  std::vector<std::pair<std::string, std::string>> values{{"--kernel", std::string(kernel->name)},
                                                          {"--dtype", std::string(name(problem.dtype))}};
  for (const Size size : kSizes) {
    values.emplace_back(option_of(size), kernel->has(size) ? std::to_string(problem.size(size)) : "");
  }
  values.emplace_back("--sizes", "");  // all are given
  return values;
}

std::optional<std::string> KernelCase::unsupported() const {
  if (device_.is_cuda() && configuration_.kernel->cuda == nullptr) {
    return std::string(configuration_.kernel->name) + " is not in this build for CUDA";
  }
  return std::nullopt;
}

harness::Prediction KernelCase::predict() const {
  const auto& [kernel, problem] = configuration_;
  const std::string pass(kernel->pass);
  harness::Prediction prediction;
  prediction.peak_bytes = prediction.first_phase_bytes = primer::operand_bytes(*kernel, problem, device_);
  prediction.details.set(pass + "_flops", kernel->flops(problem));
  prediction.details.set(pass + "_bytes", kernel->bytes(problem));
  prediction.details.set(pass + "_predicted_peak_mem_mib", static_cast<double>(prediction.peak_bytes) / kMiB);
  return prediction;
}

void KernelCase::run(harness::Session& session, reports::Row& row) {
  const Kernel& kernel = *configuration_.kernel;
  const Problem& problem = configuration_.problem;
  const Context context = session.context();
  const std::string pass(kernel.pass);
  reports::Object& figures = row.figures;

  session.allocator().reset_peak();
  const primer::Operands operands = primer::make_operands(context, kernel, problem, session.settings().seed);
  const primer::Arguments arguments = operands.arguments();
  const std::string_view range = intern(kernel.name);
  const auto call = [&] {
    const Range annotation(range);
    primer::run(kernel, problem, arguments, context.stream);
  };

  if (session.settings().check) {
    operands.poison(context.stream);
    call();
    const primer::HostCopies in(operands.in, kernel.inputs(problem), context.stream);
    const primer::HostCopies out(operands.out, kernel.outputs(problem), context.stream);
    const primer::CheckReport report = primer::check(kernel, problem, in.tensors(), out.tensors());
    figures.set("check", report.sampled ? "sampled elements" : "every element");
    figures.set("max_rel_error", report.max_rel_error);
    if (!report.failure.empty()) {
      row.status = reports::Status::mismatch;
      row.reason = report.failure;
      return;
    }
  }

  harness::Work work{kernel.flops(problem), kernel.bytes(problem), kernel.compute_path(problem)};
  work.memory = kernel.traffic == primer::Traffic::read ? harness::MemoryRate::read : harness::MemoryRate::copy;
  const harness::Phase phase{call, {}, 2};
  const auto [samples, plain_share] =
      bound_by_memory(work, session.ceilings()) == true
          ? measure_beside_plain(session, phase, bytes_of(kernel.inputs(problem)), bytes_of(kernel.outputs(problem)))
          : harness::BesidePlain{session.sampler().measure(phase)};
  const double median_ms = samples.statistics().median_ms;
  add_statistics(figures, pass, samples);
  if (auto warning = add_rates(figures, pass, median_ms, work, session.ceilings())) {
    session.warn(*warning + " (" + std::string(kernel.name) + ", " + describe(kernel, problem) + ")");
  }
  figures.set(pass + "_plain_ms", plain_share * median_ms);
  figures.set(pass + "_plain_share", plain_share);
  figures.set(pass + "_peak_mem_mib", static_cast<double>(session.allocator().stats().peak.allocated) / kMiB);
}

}  // namespace warpmeter::kernel_bench
