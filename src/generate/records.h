// Records that ranks exchange as bytes of memory, so that every bit is kept.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "blipft/comm.h"
#include "blipft/error.h"

namespace blipft {

template <class Record>
std::string bytes_of_records(const std::vector<Record>& records) {
  static_assert(std::is_trivially_copyable_v<Record>);
  std::string bytes(records.size() * sizeof(Record), '\0');
  if (!records.empty()) std::memcpy(bytes.data(), records.data(), bytes.size());
  return bytes;
}

template <class Record>
void append_records(const std::string& bytes, std::vector<Record>& records) {
  BLIPFT_CHECK(bytes.size() % sizeof(Record) == 0, bytes.size(), " bytes of records of ", sizeof(Record));
  const size_t before = records.size();
  records.resize(before + bytes.size() / sizeof(Record));
  if (!bytes.empty()) std::memcpy(&records[before], bytes.data(), bytes.size());
}

/// Returns the records of all ranks on rank 0, in the order of the ranks, and none on the others. Called by all ranks.
template <class Record>
std::vector<Record> gather_records(const World& world, const std::vector<Record>& mine) {
  std::vector<Record> all;
  for (const std::string& bytes : world.gather_texts(bytes_of_records(mine))) append_records(bytes, all);
  return all;
}

/// Returns rank 0's records on all ranks. Called by all ranks.
template <class Record>
std::vector<Record> records_of_first_rank(const World& world, const std::vector<Record>& records) {
  std::vector<Record> all;
  append_records(world.from_rank(0, bytes_of_records(records)), all);
  return all;
}

}  // namespace blipft
