#include "tests/reports/sample.hpp"

#include <limits>
#include <sstream>

namespace warpmeter::reports::testing {
namespace {

Row make_row(const char* impl, const char* dtype, int d_model, int seq_len, Status status, std::string reason) {
  Row row;
  row.configuration.set("impl", impl);
  row.configuration.set("dtype", dtype);
  row.configuration.set("batch", 8);
  row.configuration.set("d_model", d_model);
  row.configuration.set("seq_len", seq_len);
  row.configuration.set("causal", true);
  row.status = status;
  row.reason = std::move(reason);
  row.rerun = std::string("attn_bench --impl ") + impl + " --dtype " + dtype + " --d-model " + std::to_string(d_model) +
              " --seq-len " + std::to_string(seq_len);
  return row;
}

void add_forward(Row& row, double ms, double peak_mib) {
  row.figures.set("kernel", "naive_cpu");
  row.figures.set("fwd_ms", ms);
  row.figures.set("fwd_mean_ms", ms * 1.01);
  row.figures.set("fwd_noise", 0.0042);
  row.figures.set("fwd_n", 5);
  row.figures.set("fwd_stop", "noise");
  row.figures.set("fwd_samples_ms", std::vector<double>{ms * 0.99, ms, ms, ms, ms * 1.02});
  row.figures.set("fwd_flops", 4.295e12);
  row.figures.set("fwd_bound", "compute");
  row.figures.set("fwd_bound_share", 0.8734);
  row.figures.set("fwd_peak_mem_mib", peak_mib);
}

void add_backward(Row& row, double ms, double before_mib, double peak_mib) {
  row.figures.set("bwd_ms", ms);
  row.figures.set("bwd_mem_before_backward_mib", before_mib);
  row.figures.set("bwd_peak_mem_mib", peak_mib);
}

}  // namespace

Document sample_document() {
  Document document;
  document.tool = "attn_bench";
  document.version.set("project", "0.1.0");
  document.version.set("git_sha", "0123456789abcdef0123456789abcdef01234567");
  document.version.set("dirty", true);
  document.version.set("build_type", "Debug");
  document.argv = {"/opt/warpmeter/bin/attn_bench", "--seq-len", "256:16384:x4", "--config", "it's mine `now`.toml"};
  document.started_at = "2026-01-31T12:00:00Z";
  document.device.set("name", "NVIDIA H200");
  document.device.set("uuid", "GPU-00000000-1111-2222-3333-444444444444");
  document.device.set("sm", 90);
  document.device.set("memory_mib", 143771.0);
  document.device.set("driver", "580.65.06");
  document.device.set("cuda", "13.0");
  Object ceilings;
  ceilings.set("matmul_fp32_tflops", 51.25);
  ceilings.set("read_gbps", std::numeric_limits<double>::quiet_NaN());
  document.device.set("ceilings", ceilings);
  document.libraries.set("cublas", "13.0.2");
  document.libraries.set("nvtx", false);
  document.settings.set("timer", "device");
  document.settings.set("cache", "cold");
  document.settings.set("cache_flush", "clean");
  document.settings.set("warmup", 10);
  document.settings.set("steps", nullptr);
  document.settings.set("max_noise", 0.005);
  document.settings.set("dtype", Value::Array{"fp32", "bf16"});
  document.settings.set("check", false);
  document.settings.set("memory_limit_bytes", std::int64_t{24} << 30);
  document.row_keys = {"impl", "dtype", "batch", "d_model", "seq_len", "causal"};

  Row row = make_row("naive", "fp32", 16, 256, Status::ok, "");
  add_forward(row, 0.98, 15.171875);
  add_backward(row, 6.7123, 21.28125, 29.228515625);
  document.rows.push_back(row);
  row = make_row("naive", "fp32", 16, 8192, Status::ok, "");
  add_forward(row, 46.484375, 6317.5703125);
  add_backward(row, 143.737, 4209.5703125, 12397.572265625);
  document.rows.push_back(row);
  row = make_row("naive", "fp32", 16, 16384, Status::oom, "backward: 8.0 GiB asked for, 1.5 GiB of 24.0 GiB free");
  add_forward(row, 5398.399, 23195.783);
  row.figures.set("bwd_ms", nullptr);
  row.figures.set("bwd_peak_mem_mib", nullptr);
  document.rows.push_back(row);
  document.rows.push_back(
      make_row("naive", "fp32", 32, 16384, Status::oom, "predicted 24.1 GiB, more than the limit of 24.0 GiB"));

  // Starts with rows that have no figures.
  document.rows.push_back(make_row("fused", "fp32", 16, 128, Status::skipped, "left out by --rule"));
  row = make_row("fused", "fp32", 16, 256, Status::mismatch,
                 "dq: b0 h0 row 17 col 3: got NaN, expected 0.4 | <none> of `5` *stars* \\ [x]");
  row.figures.set("fwd_ms", std::numeric_limits<double>::infinity());
  row.figures.set("max_rel_error", std::numeric_limits<double>::quiet_NaN());
  document.rows.push_back(row);
  document.rows.push_back(make_row("fused", "fp32", 16, 1024, Status::error,
                                   "caf\xC3\xA9 \xE2\x80\x94 \xE6\x97\xA5\xE6\x9C\xAC, then \xFF\xC3 broken"));
  document.rows.push_back(make_row("fused", "fp32", 16, 4096, Status::crashed, "signal 9 (Killed)\x1b[31m\ttab"));
  row = make_row("fused", "fp32", 16, 8192, Status::ok, "");
  add_forward(row, 1.25e-05, 0.00048828125);
  add_backward(row, 123456.7, 0, 123456.789);
  document.rows.push_back(row);

  document.rows.push_back(
      make_row("flash", "bf16", 64, 256, Status::unsupported, "this build has no CUDA; \"WARPMETER_CUDA=ON\" adds it"));
  document.rows.push_back(make_row("flash", "bf16", 64, 1024, Status::timeout, "took longer than 60 s"));
  document.rows.push_back(make_row("flash", "bf16", 64, 4096, Status::interrupted, "Ctrl-C"));
  document.rows.push_back(make_row("flash", "bf16", 64, 8192, Status::not_run, "Ctrl-C came before it"));
  document.summary.set("seconds", 12.5);
  document.summary.set("warnings", 0);
  summarize(document);
  return document;
}

TableLayout sample_layout() {
  TableLayout layout;
  layout.group_by = {"impl", "dtype"};
  layout.columns = {
      "d_model",          "seq_len", "fwd_ms", "bwd_ms", "fwd_peak_mem_mib", "bwd_mem_before_backward_mib",
      "bwd_peak_mem_mib", "status"};
  layout.wide_columns = {"batch",     "causal",          "kernel", "fwd_mean_ms",   "fwd_noise", "fwd_flops",
                         "fwd_bound", "fwd_bound_share", "fwd_n",  "max_rel_error", "fwd_mfu"};
  return layout;
}

std::string written(const Document& document, Format format, const WriterOptions& options) {
  std::ostringstream out;
  write_document(document, format, options, out);
  return out.str();
}

}  // namespace warpmeter::reports::testing
