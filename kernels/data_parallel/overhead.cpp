#include "kernels/data_parallel/overhead.hpp"

#include <cmath>

namespace warpmeter::data_parallel {

double OverheadModel::best_bucket_bytes(double bytes) const {
  return std::sqrt(bytes * bytes_per_s * overhead_s);
}

double OverheadModel::step_overhead_s(double bytes, double buckets) const {
  return bytes / (buckets * bytes_per_s) + buckets * overhead_s;
}

std::optional<OverheadModel> fit_overhead(std::span<const CommunicationTime> times) {
  // Normal equations of  x / w + y o = 1  with x = bytes / seconds, y = calls / seconds.
  double xx = 0, xy = 0, yy = 0, x = 0, y = 0;
  for (const CommunicationTime& t : times) {
    if (!(t.seconds > 0)) return std::nullopt;
    const double a = t.bytes / t.seconds, b = t.calls / t.seconds;
    xx += a * a;
    xy += a * b;
    yy += b * b;
    x += a;
    y += b;
  }
  const double determinant = xx * yy - xy * xy;
  if (!(determinant > 1e-9 * xx * yy)) return std::nullopt;
  const double per_byte = (x * yy - y * xy) / determinant, per_call = (y * xx - x * xy) / determinant;
  if (!(per_byte > 0) || !(per_call > 0)) return std::nullopt;
  return OverheadModel{per_call, 1 / per_byte};
}

}  // namespace warpmeter::data_parallel
