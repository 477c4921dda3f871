// Version: the release and the source that this program was built from, and the libraries that it runs with.
#pragma once

#include <string>
#include <vector>

namespace blipft {

/// Returns the release: "0.9.0".
const char* version_number();
/// Returns the git commit as 12 hexadecimal digits, or "unknown".
const char* version_commit();
/// Returns the compiler and the processors it built for: "g++ 12.2.0, x86-64-v3".
std::string version_compiler();
/// Returns the build id that the linker computed from the program's contents, in hexadecimal digits: programs with
/// equal build ids have identical bytes. Returns "unknown" if the linker stored none.
std::string version_build();

/// A library as the headers of the build named it, and as it is on this machine.
struct LibraryVersion {
  std::string name;    ///< "HDF5"
  std::string built;   ///< "1.10.8"
  std::string found;   ///< the same of the loaded library; empty if it is not known
  int same_parts = 0;  ///< the number of parts of the version, separated by ".", that must be equal; 0: none
};
/// Throws UserError if a library's version has other parts than the program needs, with what to do.
void check_libraries(const std::vector<LibraryVersion>& libraries);

}  // namespace blipft
