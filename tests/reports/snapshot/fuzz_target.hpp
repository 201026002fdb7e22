#pragma once

#include <cstddef>
#include <cstdint>

/// Reads bytes as a snapshot, which must give a snapshot or a ReadError, and does everything with what was read:
/// analysis, checks, pictures, and writing it in every format, from which the same snapshot must come back. Aborts
/// where it does not. The entry point that libFuzzer calls:
///
///     clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/reports/snapshot/fuzz_target.cpp
///         reports/snapshot/*.cpp reports/snapshot/detail/*.cpp build/reports/snapshot/timeline_assets.cpp
///         reports/model.cpp reports/detail/*.cpp reports/writer.cpp reports/*_writer.cpp reports/reader.cpp
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
