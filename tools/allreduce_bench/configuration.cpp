#include "tools/allreduce_bench/configuration.hpp"

#include <algorithm>
#include <array>

#include "tools/harness/grammar.hpp"
#include "tools/harness/launch/options.hpp"
#include "tools/harness/row_option.hpp"

namespace warpmeter::allreduce_bench {
namespace {

using collectives::Backend;
using collectives::CollectiveKind;
using collectives::ReduceOp;
using harness::OptionSpec;
using harness::OptionTable;
using harness::row_option;

constexpr std::array kKinds = {CollectiveKind::all_reduce, CollectiveKind::broadcast, CollectiveKind::all_gather,
                               CollectiveKind::reduce_scatter, CollectiveKind::barrier};
constexpr std::array kOps = {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min};
constexpr std::array<std::string_view, 5> kKindWords = {"all_reduce", "broadcast", "all_gather", "reduce_scatter",
                                                        "barrier"};
constexpr std::array<std::string_view, 4> kOpWords = {"sum", "avg", "max", "min"};
constexpr std::array<std::string_view, 3> kBufferWords = {"auto", "registered", "plain"};

std::string joined(std::span<const std::string_view> words) {
  std::string text;
  for (const std::string_view word : words) text.append(text.empty() ? "" : ", ").append(word);
  return text;
}

template <class Value, std::size_t kCount>
Value value_of(const std::array<Value, kCount>& values, std::string_view word) {
  for (const Value value : values) {
    if (collectives::name(value) == word) return value;
  }
  return values.front();  // the words were checked
}

void add_row_options(OptionTable& table) {
  OptionSpec backend =
      row_option("--backend", "NAMES", "", harness::launch::backend_words() + ", or all",
                 "Libraries and methods to compare; --list says what each needs here.", "--backend shm,gloo,mpi");
  backend.default_note = "shm on the CPU; nccl,p2p,auto on GPUs";
  table.add(backend);
  OptionSpec world = row_option("--world-size", "LIST", "", "whole numbers from 1 to 64, lists and ranges",
                                "Ranks, which this program starts on this host. A launcher's number is the launcher's.",
                                "--world-size 2,4,6,8");
  world.default_note = "2 on the CPU, every GPU of this host on GPUs";
  table.add(world);
  table.add(row_option("--sizes", "LIST", "1MiB,10MiB,100MiB,1GiB",
                       "sizes that are whole numbers of elements: bytes, or KiB MiB GiB, KB MB GB; lists and ranges",
                       "Bytes of a rank's array: what it ends with, for reduce_scatter begins with.",
                       "--sizes 8:1GiB:x4"));
  table.add(row_option("--collective", "NAMES", "all_reduce", joined(kKindWords) + ", or all",
                       "What the ranks do together.", "--collective all_gather,reduce_scatter"));
  table.add(row_option("--op", "NAMES", "sum", joined(kOpWords) + ", or all",
                       "How all_reduce and reduce_scatter combine elements.", "--op sum,avg"));
  OptionSpec in_place =
      row_option("--in-place", "", "true", "--in-place, --no-in-place or --in-place=both",
                 "The result replaces the input, as in PyTorch, or goes to an array of its own.", "--in-place=both");
  in_place.negation = "--no-in-place";
  in_place.metavar = "BOOLS";
  table.add(in_place);
  table.add(row_option("--buffers", "NAMES", "auto", joined(kBufferWords),
                       "Whose memory the arrays are: registered is the backend's own (the segment of shm, memory "
                       "registered with nccl), plain is any. auto is registered for shm and p2p, plain for the others.",
                       "--buffers registered,plain"));
}

void add_demo_option(OptionTable& table) {
  OptionSpec demo;
  demo.name = "--demo";
  demo.help =
      "Print a few random numbers of each rank before and after an all_reduce, and measure nothing. Four ranks "
      "unless --world-size says otherwise.";
  demo.example = "--demo --backend gloo";
  demo.group = "Ranks";
  demo.output_option = true;
  table.add(demo);
}

std::vector<harness::Preset> presets() {
  return {
      {"notes",
       "the notes' table: sum of fp32, 2 to 8 ranks, 1 MiB to 1 GiB",
       {{"--world-size", "2,4,6,8"},
        {"--sizes", "1MiB,10MiB,100MiB,1GiB"},
        {"--collective", "all_reduce"},
        {"--op", "sum"},
        {"--dtype", "fp32"}}},
      {"latency",
       "small arrays: 8 B to 1 MiB",
       {{"--sizes", "8:1MiB:x4"}, {"--collective", "all_reduce"}, {"--op", "sum"}}},
      {"sweep",
       "from 8 B to 1 GiB by powers of four, as nccl-tests does by powers of two",
       {{"--sizes", "8:512MiB:x4,1GiB"}, {"--collective", "all_reduce"}, {"--op", "sum"}}},
  };
}

}  // namespace

std::string_view name(Buffers buffers) noexcept {
  return buffers == Buffers::registered ? "registered" : "plain";
}

bool Configuration::reduces() const noexcept {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter;
}

std::int64_t Configuration::elements() const noexcept {
  const auto count = static_cast<std::int64_t>(bytes / size_of(dtype));
  const bool parts = kind == CollectiveKind::all_gather || kind == CollectiveKind::reduce_scatter;
  return parts ? count / world_size * world_size : count;
}
std::int64_t Configuration::input_elements() const noexcept {
  return kind == CollectiveKind::all_gather ? elements() / world_size : elements();
}
std::int64_t Configuration::output_elements() const noexcept {
  return kind == CollectiveKind::reduce_scatter ? elements() / world_size : elements();
}

double Configuration::least_traffic_bytes() const noexcept {
  const double n = world_size;
  const double whole = static_cast<double>(elements()) * static_cast<double>(size_of(dtype));
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * n * whole;  // every input read, every output written
    case CollectiveKind::reduce_scatter:
      return n * whole + whole;
    case CollectiveKind::all_gather:
      return whole + (in_place ? n - 1 : n) * whole;  // a rank's own part is there already
    case CollectiveKind::broadcast:
      return whole + (in_place ? n - 1 : n) * whole;
    case CollectiveKind::barrier:
      return 0;
  }
  return 0;
}

std::size_t Configuration::rank_bytes() const noexcept {
  const std::int64_t larger = std::max(input_elements(), output_elements());
  const std::int64_t all = in_place ? larger : input_elements() + output_elements();
  return static_cast<std::size_t>(all) * size_of(dtype);
}

std::string Configuration::target() const {
  return std::string(backend->name()) + (backend->device_kind() == DeviceKind::cpu ? "-cpu" : "-cuda");
}

std::string Configuration::tensor_size() const {
  return bytes == 0 ? "0B" : bytes % 1024 == 0 ? harness::format_exact_size(bytes) : std::to_string(bytes) + "B";
}

std::string describe(const Configuration& c) {
  std::string text(collectives::name(c.kind));
  if (c.kind == CollectiveKind::barrier) return text;
  if (c.reduces()) text.append(" ").append(collectives::name(c.op));
  return text.append(" of ") + std::to_string(c.elements()) + " " + std::string(warpmeter::name(c.dtype)) + " (" +
         c.tensor_size() + ")";
}

void add_options(OptionTable& table) {
  add_row_options(table);
  harness::launch::add_group_options(table);
  add_demo_option(table);
  table.add_presets(presets());
  table.add_examples({
      "allreduce_bench",
      "allreduce_bench --backend shm,gloo,mpi --world-size 2,4 -o result.json",
      "allreduce_bench --sizes 8:1GiB:x4 --dtype bf16 --wide",
      "allreduce_bench --collective all --op sum,max --dtype all --sizes 1MiB",
      "allreduce_bench --demo",
      "mpirun -np 4 allreduce_bench --backend mpi,gloo",
  });
}

std::vector<Configuration> expand(const OptionTable& table, const harness::Settings& settings, int launched) {
  const auto backends = harness::launch::chosen_backends(table, settings.device);
  const auto kinds = table.words("--collective", kKindWords, true);
  const auto ops = table.words("--op", kOpWords, true);
  const auto sizes = table.sizes("--sizes");
  const std::vector<bool> places = table.flags("--in-place");
  const auto buffer_words = table.words("--buffers", kBufferWords);

  std::vector<std::int64_t> worlds;
  if (!table.text("--world-size").empty()) worlds = table.integers("--world-size", 1, harness::launch::kMostRanks);
  if (launched > 0) {
    if (!worlds.empty() && worlds != std::vector<std::int64_t>{launched}) {
      throw table.error("--world-size", "a launcher has started " + std::to_string(launched) + " ranks");
    }
    worlds = {launched};
  }

  std::vector<Configuration> configurations;
  Configuration c;
  const auto add = [&](std::uint64_t bytes, Buffers buffers) {
    c.bytes = bytes;
    c.buffers = buffers;
    if (c.kind != CollectiveKind::barrier) {
      const std::string text = harness::format_exact_size(bytes);
      const std::size_t element = size_of(c.dtype);
      if (bytes % element != 0) {
        throw table.error("--sizes", text,
                          "not a whole number of " + std::string(warpmeter::name(c.dtype)) + " elements, which take " +
                              std::to_string(element) + " bytes");
      }
      if (c.input_elements() == 0 || c.output_elements() == 0) {
        throw table.error("--sizes", text,
                          "no " + std::string(warpmeter::name(c.dtype)) + " element for each of " +
                              std::to_string(c.world_size) + " ranks of " + std::string(collectives::name(c.kind)));
      }
    }
    configurations.push_back(c);
  };
  const auto add_sizes = [&] {
    std::vector<Buffers> done;
    for (const std::string& word : buffer_words) {
      const bool registered = word == "registered" || (word == "auto" && c.backend->prefers_own_memory());
      const Buffers buffers = registered ? Buffers::registered : Buffers::plain;
      if (std::find(done.begin(), done.end(), buffers) != done.end()) continue;
      done.push_back(buffers);
      if (c.kind == CollectiveKind::barrier) {
        add(0, Buffers::plain);
        return;
      }
      for (const std::uint64_t bytes : sizes) add(bytes, buffers);
    }
  };
  for (const Backend* backend : backends) {
    c.backend = backend;
    std::vector<std::int64_t> own = worlds;
    if (own.empty()) own = {backend->device_kind() == DeviceKind::cpu ? 2 : std::max(2, cuda_device_count())};
    for (const std::int64_t world : own) {
      c.world_size = static_cast<int>(world);
      for (const std::string& kind : kinds) {
        c.kind = value_of(kKinds, kind);
        for (const std::string& op : c.reduces() ? ops : std::vector<std::string>{"sum"}) {
          c.op = value_of(kOps, op);
          for (const DType dtype : settings.dtypes) {
            c.dtype = dtype;
            for (const bool in_place : places) {
              c.in_place = in_place;
              add_sizes();
              if (c.kind == CollectiveKind::barrier) break;
            }
            if (c.kind == CollectiveKind::barrier) break;
          }
        }
      }
    }
  }
  return configurations;
}

}  // namespace warpmeter::allreduce_bench
