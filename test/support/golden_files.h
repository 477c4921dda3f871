// Golden data: a set is one archive, test/golden/SET.safetensors, which holds each file of the set as a tensor of
// bytes.
#pragma once

#include <mutex>
#include <set>
#include <string>

#include "blipft/error.h"
#include "io/safetensors_header.h"
#include "support/temporary_directory.h"

namespace blipft::testing {

inline void unpack_golden_set(const std::string& set, const TemporaryDirectory& folder) {
  const std::string path = concat("test/golden/", set, ".safetensors");
  const io::FileDescriptor archive = io::open_for_reading(path);
  for (const auto& [name, bytes] : io::read_safetensors_header(archive, path)) {
    std::string content(static_cast<size_t>(bytes.end - bytes.begin), '\0');
    io::read_at(archive, bytes.begin, content.data(), bytes.end - bytes.begin, concat(path, ": ", name));
    folder.write(concat(set, "/", name), content);
  }
}

/// Returns the path of a set's folder, "llama_gqa", or of a file, "images/gray.jpg". The first call for a set unpacks
/// its archive into a folder that is removed at the end of the process.
inline std::string golden_path(const std::string& name) {
  static std::mutex mutex;
  static const TemporaryDirectory folder;
  static std::set<std::string> unpacked;
  const std::lock_guard lock(mutex);
  const std::string set = name.substr(0, name.find('/'));
  if (unpacked.insert(set).second) unpack_golden_set(set, folder);
  return folder / name;
}

}  // namespace blipft::testing
