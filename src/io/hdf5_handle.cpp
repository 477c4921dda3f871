// Owners for HDF5 identifiers: error handling.
#include "io/hdf5_handle.h"

#include "blipft/error.h"

namespace blipft::io {

std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  // HDF5's exit handler is disabled. It would close a file again whose closing has failed, and crash (seen with 1.10.8
  // on a full disk). Nothing is lost without the handler because every file is closed by its owner.
  static const bool prepared = (H5dont_atexit(), H5open() >= 0);
  BLIPFT_CHECK(prepared, "the HDF5 library does not start");
  return mutex;
}

LibraryVersion hdf5_library() {
  unsigned major = 0, minor = 0, release = 0;
  const bool known = H5get_libversion(&major, &minor, &release) >= 0;
  return {"HDF5", concat(H5_VERS_MAJOR, ".", H5_VERS_MINOR, ".", H5_VERS_RELEASE),
          known ? concat(major, ".", minor, ".", release) : "", 3};
}

std::string hdf5_error_text() {
  std::string text;
  const H5E_walk2_t take = [](unsigned depth, const H5E_error2_t* error, void* out) -> herr_t {
    auto& joined = *static_cast<std::string*>(out);
    // The deepest entry is the cause; the two entries above it describe the operation that failed.
    if (depth < 3 && error->desc) joined += concat(joined.empty() ? "" : "; ", error->desc);
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take, &text);
  return text.empty() ? "no reason given" : text;
}

Hdf5Handle own(hid_t id, Hdf5Handle::Close close, const std::string& path, const char* action) {
  BLIPFT_USER_CHECK(id >= 0, path, ": ", action, " failed: ", hdf5_error_text());
  return Hdf5Handle(id, close);
}

void check(herr_t status, const std::string& path, const char* action) {
  BLIPFT_USER_CHECK(status >= 0, path, ": ", action, " failed: ", hdf5_error_text());
}

}  // namespace blipft::io
