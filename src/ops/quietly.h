// For destructors, which never throw.
#pragma once

namespace blipft {

/// Gives memory of a device back. A device that has failed told so where it did, and that error is on its way: what
/// `release` throws is of no use to anybody.
template <class Release>
void quietly(const Release& release) noexcept {
  try {
    release();
  } catch (...) {
  }
}

}  // namespace blipft
