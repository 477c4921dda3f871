// Owners for HDF5 identifiers, and errors with HDF5's own messages.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "blipft/version.h"

namespace blipft::io {

/// Owns one HDF5 identifier; `close` is the function that releases it (H5Dclose, ...). The destructor never throws.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Handle() { reset(); }
  hid_t get() const { return id_; }
  /// Closes the identifier now. Returns HDF5's status (negative: failed).
  herr_t reset() {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return id >= 0 && close_ ? close_(id) : 0;
  }
  /// Drops the identifier without closing it.
  void abandon() { id_ = H5I_INVALID_HID; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// The lock that every HDF5 call must hold, because packaged HDF5 libraries need not be thread-safe. The first call of
/// this function also configures HDF5 for this program, so call it before any other use of HDF5.
std::mutex& hdf5_mutex();
/// Returns the HDF5 of the build and the loaded one. HDF5 aborts the process where they differ in any part.
LibraryVersion hdf5_library();
/// Returns the innermost messages of HDF5's error stack, or "no reason given".
std::string hdf5_error_text();
/// Wraps the identifier that an HDF5 call returned. Throws UserError "path: action: reason" if the call failed.
Hdf5Handle own(hid_t id, Hdf5Handle::Close close, const std::string& path, const char* action);
/// Checks the status of an HDF5 call that returns no identifier. Throws UserError as own() does.
void check(herr_t status, const std::string& path, const char* action);

}  // namespace blipft::io
