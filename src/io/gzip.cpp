// Reading gzip files; see gzip.h.
#include "io/gzip.h"

#include <algorithm>

#include <zlib.h>

#include "blipft/error.h"
#include "io/file.h"

namespace blipft::io {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;

/// Owns the state of zlib's inflate for gzip members.
class Inflater {
 public:
  Inflater() { BLIPFT_CHECK(inflateInit2(&stream, 16 + MAX_WBITS) == Z_OK, "zlib cannot be initialized"); }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  z_stream stream{};
};

}  // namespace

bool is_gzip_name(const std::string& path) { return path.ends_with(".gz"); }

std::string read_gzip(const std::string& path, int64_t max_bytes) {
  const FileDescriptor file = open_for_reading(path);
  const int64_t size = file_size(file, path);
  std::string content, block(static_cast<size_t>(std::clamp<int64_t>(size, 1, kBlock)), '\0');
  std::string out(static_cast<size_t>(kBlock), '\0');
  Inflater inflater;
  bool ended = false;                      // true if the last consumed byte ended a member
  for (int64_t at = 0; at < size;) {
    const int64_t count = std::min<int64_t>(size - at, static_cast<int64_t>(block.size()));
    read_at(file, at, block.data(), count, path);
    at += count;
    inflater.stream.next_in = reinterpret_cast<Bytef*>(block.data());
    inflater.stream.avail_in = static_cast<uInt>(count);
    bool more = true;                      // output may be pending after all input is consumed
    while (inflater.stream.avail_in > 0 || more) {
      if (ended) {
        if (inflater.stream.avail_in == 0) break;
        inflateReset(&inflater.stream);
      }
      inflater.stream.next_out = reinterpret_cast<Bytef*>(out.data());
      inflater.stream.avail_out = static_cast<uInt>(out.size());
      const int code = inflate(&inflater.stream, Z_NO_FLUSH);
      BLIPFT_USER_CHECK(code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR, path, ": not valid gzip data: ",
                        inflater.stream.msg ? inflater.stream.msg : "unknown error",
                        ". Compress or download the file again.");
      content.append(out.data(), out.size() - inflater.stream.avail_out);
      BLIPFT_USER_CHECK(static_cast<int64_t>(content.size()) <= max_bytes, path, ": has more than ", max_bytes,
                        " bytes uncompressed, which are held in memory. Decompress the file and use the result.");
      ended = code == Z_STREAM_END;
      more = inflater.stream.avail_out == 0;
    }
  }
  BLIPFT_USER_CHECK(ended, path, ": the gzip data is truncated. Compress or download the file again.");
  return content;
}

std::string read_gzip_start(const std::string& path, int64_t bytes) {
  const FileDescriptor file = open_for_reading(path);
  std::string block(static_cast<size_t>(std::clamp<int64_t>(file_size(file, path), 1, bytes + 1024)), '\0');
  read_at(file, 0, block.data(), std::min(file_size(file, path), static_cast<int64_t>(block.size())), path);
  std::string content(static_cast<size_t>(bytes), '\0');
  Inflater inflater;
  inflater.stream.next_in = reinterpret_cast<Bytef*>(block.data());
  inflater.stream.avail_in = static_cast<uInt>(block.size());
  inflater.stream.next_out = reinterpret_cast<Bytef*>(content.data());
  inflater.stream.avail_out = static_cast<uInt>(content.size());
  const int code = inflate(&inflater.stream, Z_SYNC_FLUSH);
  BLIPFT_USER_CHECK(code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR, path, ": not valid gzip data. Compress or "
                    "download the file again.");
  content.resize(content.size() - inflater.stream.avail_out);
  return content;
}

}  // namespace blipft::io
