// The reader against mutated and random documents. Seeded, so that a failure repeats; WARPMETER_FUZZ_ROUNDS=1000000
// digs deeper.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "reports/reader.hpp"
#include "tests/reports/sample.hpp"

namespace warpmeter::reports {
namespace {

using testing::sample_document;
using testing::written;
using Random = std::mt19937_64;

const WriterOptions kAll = {{}, false, {}, true};

int rounds() {
  const char* text = std::getenv("WARPMETER_FUZZ_ROUNDS");
  return text == nullptr ? 2000 : std::atoi(text);
}

std::size_t below(Random& random, std::size_t bound) {
  return bound == 0 ? 0 : random() % bound;
}

/// Small, so that a mutation is likely to matter.
Document small_document() {
  Document document = sample_document();
  document.rows.erase(document.rows.begin() + 6, document.rows.end());
  return document;
}

void mutate(std::string& text, Random& random) {
  static const char* const kTokens[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\"",
                                        "\\",
                                        "\n",
                                        "null",
                                        "NaN",
                                        "1e99",
                                        "-0",
                                        "\\ud83d",
                                        "0.1e",
                                        "\"type\"",
                                        "\xFF",
                                        "\xC3",
                                        "\"a\"",
                                        "\"status\": \"ok\", ",
                                        "{\"type\": \"row\"}\n",
                                        "18446744073709551616"};
  const std::size_t at = below(random, text.size() + 1);
  switch (below(random, 6)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(random());
      break;
    case 1:
      text.erase(at, 1 + below(random, 8));
      break;
    case 2:
      text.insert(at, kTokens[below(random, std::size(kTokens))]);
      break;
    case 3:
      text.resize(at);
      break;
    case 4: {  // a piece from somewhere goes somewhere else
      const std::string piece = text.substr(below(random, text.size() + 1), below(random, 200));
      text.insert(at, piece);
      break;
    }
    default:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(random, 8)));
  }
}

TEST(ReaderFuzz, MutatedFilesAreReadOrRefusedInOneLine) {
  const std::string originals[] = {written(small_document(), Format::json, kAll),
                                   written(small_document(), Format::jsonl, kAll)};
  int read = 0;
  for (int round = 0; round < rounds(); ++round) {
    Random random(static_cast<std::uint64_t>(round));
    std::string text = originals[round % 2];
    for (std::size_t n = 1 + below(random, 3); n > 0; --n) mutate(text, random);
    try {
      const Document document = parse_document(text, "fuzz");
      ++read;
      // What was accepted has a settled form: written and read again it stays.
      std::string once;
      try {
        once = written(document, Format::json, kAll);
      } catch (const std::logic_error&) {
        continue;  // a row that breaks the writer's contract: a field called type, say
      }
      ASSERT_EQ(written(parse_document(once, "once"), Format::json, kAll), once) << "round " << round;
    } catch (const ReadError& e) {
      ASSERT_EQ(std::string(e.what()).find('\n'), std::string::npos) << "round " << round;
      ASSERT_LT(std::strlen(e.what()), 400U) << "round " << round;
    }
  }
  EXPECT_GT(read, 0) << "every mutation was refused: the test looks at one side alone";
  EXPECT_LT(read, rounds()) << "no mutation was refused: the test looks at one side alone";
}

std::string random_text(Random& random) {
  std::string text(below(random, 12), ' ');
  for (char& c : text) c = static_cast<char>(below(random, 4) == 0 ? random() : 'a' + below(random, 26));
  return text;
}

double random_double(Random& random) {
  const std::uint64_t bits = random();
  double value = 0;
  switch (below(random, 4)) {
    case 0:
      std::memcpy(&value, &bits, sizeof value);
      return value;  // NaN and infinities too
    case 1:
      return static_cast<double>(static_cast<std::int64_t>(bits));
    case 2:
      return static_cast<double>(bits >> below(random, 64)) / 1024;
    default:
      return std::ldexp(1.0, static_cast<int>(below(random, 2100)) - 1050) * (below(random, 2) == 0 ? 1 : -1);
  }
}

Object random_object(Random& random, const char* prefix, int depth);

Value random_value(Random& random, int depth) {
  switch (below(random, depth > 3 ? 5 : 7)) {
    case 0:
      return {};
    case 1:
      return below(random, 2) == 0;
    case 2:
      return static_cast<std::int64_t>(random() >> below(random, 64));
    case 3:
      return random_double(random);
    case 4:
      return random_text(random);
    case 5: {
      Value::Array array(below(random, 4));
      for (Value& element : array) element = random_value(random, depth + 1);
      return array;
    }
    default:
      return random_object(random, "o", depth + 1);
  }
}

Object random_object(Random& random, const char* prefix, int depth) {
  Object object;
  // A number in front keeps names apart that differ in broken bytes alone.
  for (std::size_t i = 0, n = below(random, 6); i < n; ++i) {
    object.set(prefix + std::to_string(i) + random_text(random), random_value(random, depth));
  }
  return object;
}

Document random_document(Random& random) {
  Document document;
  document.tool = random_text(random);
  document.version = random_object(random, "v", 0);
  for (std::size_t i = below(random, 3); i > 0; --i) document.argv.push_back(random_text(random));
  document.started_at = random_text(random);
  document.device = random_object(random, "d", 0);
  document.libraries = random_object(random, "l", 0);
  document.settings = random_object(random, "s", 0);
  document.row_keys = {"k0", "k1"};
  for (std::size_t i = below(random, 4); i > 0; --i) {
    Row row;
    for (const std::string& key : document.row_keys) {
      if (below(random, 4) != 0) row.configuration.set(key, random_value(random, 0));
    }
    row.figures = random_object(random, "f_samples_", 0);
    row.status = static_cast<Status>(below(random, 10));
    row.reason = random_text(random);
    row.rerun = random_text(random);
    document.rows.push_back(std::move(row));
  }
  document.summary = random_object(random, "c", 0);
  return document;
}

TEST(ReaderFuzz, WhateverADocumentHoldsReadsBackToTheSameBytes) {
  for (int round = 0; round < rounds(); ++round) {
    Random random(static_cast<std::uint64_t>(round));
    const Document document = random_document(random);
    for (const Format format : {Format::json, Format::jsonl}) {
      const std::string text = written(document, format, kAll);
      const Document back = parse_document(text, "random");
      ASSERT_EQ(written(back, format, kAll), text) << "round " << round;
      const Format other = format == Format::json ? Format::jsonl : Format::json;
      ASSERT_EQ(written(back, other, kAll), written(document, other, kAll)) << "round " << round;
    }
    // The tables take anything too.
    (void)written(document, Format::md);
    (void)written(document, Format::csv);
  }
}

}  // namespace
}  // namespace warpmeter::reports
