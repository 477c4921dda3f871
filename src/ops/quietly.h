// Helper for destructors, which must not throw.
#pragma once

namespace blipft {

/// Releases device memory and ignores exceptions: a failed device has already reported its error elsewhere, and that
/// error is already being handled.
template <class Release>
void quietly(const Release& release) noexcept {
  try {
    release();
  } catch (...) {
  }
}

}  // namespace blipft
