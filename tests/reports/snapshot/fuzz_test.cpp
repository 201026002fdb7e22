#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reports/snapshot/reader.hpp"
#include "reports/snapshot/writer.hpp"
#include "tests/reports/snapshot/fuzz_target.hpp"
#include "tests/reports/snapshot/sample.hpp"

namespace warpmeter::reports::snapshot {
namespace {

void run(const std::string& bytes) {
  (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (int protocol = 2; protocol <= 4; ++protocol) all.push_back(test::pickled(test::small(), protocol));
  std::ostringstream json;
  write_json(test::small(), json);
  all.push_back(json.str());
  all.push_back(
      "(dp0\nVsegments\np1\n(lp2\nsVdevice_traces\np3\n(lp4\n(lp5\n(dp6\nVaction\np7\nVoom\np8\nsVsize\np9\nI1\nsaas"
      "Vx\np10\n(I01\nL7L\nF1.5\nNtp11\ns.");
  return all;
}

/// What a fuzzer does, with a seed: flips, cuts, inserts, repeats, mixes and opcodes put in.
std::string mutated(std::string bytes, const std::string& other, std::mt19937& random) {
  static constexpr std::string_view kOpcodes =
      "()]}.012FIJKLMNVXadeghjlpqrstuG\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x94\x95";
  const auto at = [&](const std::string& text) {
    return text.empty() ? 0 : std::uniform_int_distribution<std::size_t>(0, text.size() - 1)(random);
  };
  const int changes = std::uniform_int_distribution<int>(1, 6)(random);
  for (int i = 0; i < changes; ++i) {
    if (bytes.empty()) bytes = other;
    switch (std::uniform_int_distribution<int>(0, 6)(random)) {
      case 0:
        bytes[at(bytes)] = static_cast<char>(random());
        break;
      case 1:
        bytes[at(bytes)] = kOpcodes[random() % kOpcodes.size()];
        break;
      case 2:
        bytes.insert(at(bytes), 1, kOpcodes[random() % kOpcodes.size()]);
        break;
      case 3:
        bytes.erase(at(bytes), 1 + random() % 8);
        break;
      case 4: {
        const std::size_t from = at(bytes);
        bytes.insert(at(bytes), bytes.substr(from, 1 + random() % 64));
        break;
      }
      case 5: {
        const std::size_t from = at(other);
        bytes.replace(at(bytes), random() % 32, other.substr(from, 1 + random() % 64));
        break;
      }
      default:
        bytes.resize(at(bytes));
    }
  }
  return bytes;
}

TEST(SnapshotFuzz, SeededMutations) {
  const std::vector<std::string> all = seeds();
  std::mt19937 random(20'261'130);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  int runs = 0;
  for (; runs < 6000 && (runs < 500 || std::chrono::steady_clock::now() < end); ++runs) {
    run(mutated(all[random() % all.size()], all[random() % all.size()], random));
  }
  RecordProperty("runs", runs);
}

/// Inputs that once failed, and those that libFuzzer found to reach the most.
TEST(SnapshotFuzz, KeptInputs) {
  const std::filesystem::path folder = std::filesystem::path(WM_SNAPSHOT_CORPUS);
  std::size_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    run(text.str());
    ++inputs;
  }
  EXPECT_GE(inputs, 8U);
}

}  // namespace
}  // namespace warpmeter::reports::snapshot
