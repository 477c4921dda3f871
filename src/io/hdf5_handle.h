// Owners for HDF5 identifiers, and errors with HDF5's own text.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

namespace blipft::io {

/// Owns one HDF5 identifier; `close` is the call that gives it back (H5Dclose, ...). The destructor never throws.
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
  /// Closes now; what HDF5 answers (negative: failed).
  herr_t reset() {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return id >= 0 && close_ ? close_(id) : 0;
  }
  /// Gives the identifier up without closing it.
  void abandon() { id_ = H5I_INVALID_HID; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// Distributed HDF5 libraries need not be thread-safe: whoever calls HDF5 holds this lock. The first call also sets
/// HDF5 up for this program, so it comes before any other use of HDF5.
std::mutex& hdf5_mutex();
/// The innermost messages of HDF5's error stack, or "no reason given".
std::string hdf5_error_text();
/// Takes the answer of an HDF5 call that returns an identifier; UserError "path: action: reason" when it failed.
Hdf5Handle own(hid_t id, Hdf5Handle::Close close, const std::string& path, const char* action);
/// The same for calls that only succeed or fail.
void check(herr_t status, const std::string& path, const char* action);

}  // namespace blipft::io
