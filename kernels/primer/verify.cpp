#include "kernels/primer/verify.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "kernels/runtime/parallel.hpp"

namespace warpmeter::primer {
namespace {

constexpr std::int64_t kChunk = 4096;      // elements looked at by a thread at a time
constexpr double kFp32Tolerance = 1e-5;    // of the largest reference
constexpr double kSmallestHalf = 0x1p-25;  // half the distance of fp16's smallest numbers

struct Worst {
  double excess = 0;  ///< error beyond what is allowed; NaN counts as the most
  std::int64_t index = -1;
  double result = 0, reference = 0, error = 0, largest = 0;
};

/// The index of the first result that is no number, or -1.
std::int64_t first_not_finite(const HostTensor& out, std::int64_t elements) {
  const std::int64_t chunks = (elements + kChunk - 1) / kChunk;
  std::vector<std::int64_t> found(static_cast<std::size_t>(chunks), -1);
  parallel_for(chunks, [&](std::int64_t chunk, int) {
    for (std::int64_t i = chunk * kChunk; i < std::min(elements, (chunk + 1) * kChunk); ++i) {
      if (!std::isfinite(out[i])) {
        found[static_cast<std::size_t>(chunk)] = i;
        return;
      }
    }
  });
  const auto first = std::find_if(found.begin(), found.end(), [](std::int64_t index) { return index >= 0; });
  return first == found.end() ? -1 : *first;
}

/// The index that is compared as number `sample` of `samples`: spread evenly, a little off the even places so that no
/// column of a matrix is favoured, the ends included.
std::int64_t sampled_index(std::int64_t sample, std::int64_t samples, std::int64_t elements) {
  if (samples >= elements) return sample;
  if (sample == samples - 1) return elements - 1;
  const double step = static_cast<double>(elements) / static_cast<double>(samples);
  const std::uint64_t scattered = static_cast<std::uint64_t>(sample) * 0x9E3779B97F4A7C15ull >> 40;
  const double place = static_cast<double>(sample) + (sample == 0 ? 0.0 : static_cast<double>(scattered) * 0x1p-24);
  return std::min(elements - 1, static_cast<std::int64_t>(place * step));
}

std::string text_of(const TensorSpec& spec, std::int64_t index, double result, double reference) {
  std::string place;
  for (std::size_t i = spec.shape.size(); i-- > 0; index /= spec.shape[i]) {
    place = std::to_string(index % spec.shape[i]) + (place.empty() ? "" : ",") + place;
  }
  char text[96];
  std::snprintf(text, sizeof(text), "] is %.9g, should be %.9g", result, reference);
  return std::string(spec.name) + "[" + place + text;
}

}  // namespace

CheckReport check(const Kernel& kernel, const Problem& problem, const HostTensors& in, const HostTensors& out,
                  double most_steps) {
  CheckReport report;
  const TensorSpecs specs = kernel.outputs(problem);
  const double cost = kernel.reference_cost == nullptr ? 1.0 : std::max(1.0, kernel.reference_cost(problem));
  for (std::size_t output = 0; output < specs.size(); ++output) {
    const TensorSpec& spec = specs[output];
    const std::int64_t elements = spec.elements();
    const auto reference = [&](std::int64_t index) {
      return kernel.reference(problem, in, static_cast<int>(output), index);
    };
    if (const std::int64_t bad = first_not_finite(out[output], elements); bad >= 0) {
      report.failure = text_of(spec, bad, out[output][bad], reference(bad));
      return report;
    }
    const double affordable = std::max(64.0, most_steps / cost);
    const std::int64_t samples =
        static_cast<double>(elements) <= affordable ? elements : static_cast<std::int64_t>(affordable);
    report.sampled = report.sampled || samples < elements;

    // Small tasks where an element is dear.
    const std::int64_t chunk = std::max<std::int64_t>(1, std::min<std::int64_t>(kChunk, samples / 64));
    const std::int64_t chunks = (samples + chunk - 1) / chunk;
    std::vector<double> values(static_cast<std::size_t>(samples));
    parallel_for(chunks, [&](std::int64_t index, int) {
      for (std::int64_t sample = index * chunk; sample < std::min(samples, (index + 1) * chunk); ++sample) {
        values[static_cast<std::size_t>(sample)] = reference(sampled_index(sample, samples, elements));
      }
    });
    double largest = 0;
    for (const double value : values) largest = std::max(largest, std::fabs(value));

    const bool is_16bit = warpmeter::is_16bit(spec.dtype);
    const double roundoff = is_16bit ? unit_roundoff(spec.dtype) : 0;
    const double of_largest = kFp32Tolerance + (kernel.matrix_product ? roundoff : 0);
    Worst worst;
    for (std::int64_t sample = 0; sample < samples; ++sample) {
      const std::int64_t index = sampled_index(sample, samples, elements);
      const double expected = values[static_cast<std::size_t>(sample)], result = out[output][index];
      const double error = std::fabs(result - expected);
      worst.error = std::max(worst.error, error);
      double allowed = of_largest * largest + roundoff * std::fabs(expected);
      if (spec.dtype == DType::fp16) allowed = std::max(allowed, of_largest * largest + kSmallestHalf);
      if (!(error - allowed <= worst.excess)) worst = {error - allowed, index, result, expected, worst.error};
    }
    report.max_rel_error = std::max(report.max_rel_error, largest > 0 ? worst.error / largest : worst.error);
    if (worst.index >= 0 && report.failure.empty()) {
      report.failure = text_of(spec, worst.index, worst.result, worst.reference);
    }
  }
  return report;
}

}  // namespace warpmeter::primer
