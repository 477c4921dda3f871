// Helpers of the tests of records: records and files that are refused, and what a sample is.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "blipft/datasets.h"
#include "datasets/record_text.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

namespace blipft::testing {

inline void check_parts(const std::string& message, const std::vector<std::string>& parts) {
  CAPTURE(message);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(message.find(part) != std::string::npos);
  }
}

/// Reading the second record (line 3 of a.jsonl) must fail with a message that has the line and all these parts.
inline void check_record(const std::string& record, const std::vector<std::string>& parts, const TextSettings& settings = {}) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("a.jsonl", "{\"text\": \"good\"}\n\n" + record + "\n{\"text\": \"good\"}\n");
  const auto dataset = open_dataset(file, DatasetFormat::automatic, settings);
  REQUIRE(dataset->size() == 3);
  CHECK(dataset->read(2).segments.at(0).text == "good");
  const std::string message = message_of([&] { dataset->read(1); });
  CHECK(message.starts_with(file + ":3: "));
  check_parts(message, parts);
}

/// Opening this file must fail with a message that names it and has these parts.
inline void check_file(const std::string& name, const std::string& content, const std::vector<std::string>& parts) {
  const TemporaryDirectory directory;
  const std::string file = directory.write(name, content);
  const std::string message = message_of([&] { open_dataset(file, DatasetFormat::automatic); });
  CHECK(message.starts_with(file));
  check_parts(message, parts);
}

/// Lines of the records, and those of the same records in other forms of files.
inline std::vector<std::string> texts_in(const Dataset& dataset) {
  std::vector<std::string> texts;
  for (int64_t i = 0; i < dataset.size(); ++i) texts.push_back(dataset.read(i).segments.at(0).text);
  return texts;
}

inline Dataset::Sample sample_in(const std::string& record, const TextSettings& settings = {}) {
  return sample_of_record(nlohmann::ordered_json::parse(record), settings, "here");
}

inline std::string marked(const Dataset::Sample& sample) {
  std::string text;
  for (const Dataset::Segment& segment : sample.segments) text += (segment.is_label ? "+" : "-") + segment.text;
  return text;
}

}  // namespace blipft::testing
