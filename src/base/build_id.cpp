// The build ID that the linker stored in this program.
#include <elf.h>
#include <link.h>

#include <cstring>

#include "blipft/version.h"

namespace blipft {

namespace {

constexpr size_t padded(size_t bytes) { return (bytes + 3) / 4 * 4; }

// Callback of dl_iterate_phdr, which calls it with the program itself first; returning 1 stops the iteration.
int look(dl_phdr_info* info, size_t, void* found) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const char* at = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    const char* end = at + segment.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const char* name = at + sizeof note;
      const char* bytes = name + padded(note.n_namesz);
      at = bytes + padded(note.n_descsz);
      if (at > end || note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 || std::memcmp(name, "GNU", 4) != 0)
        continue;
      for (size_t k = 0; k < note.n_descsz; ++k) {
        const auto byte = static_cast<unsigned char>(bytes[k]);
        *static_cast<std::string*>(found) += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
      }
      return 1;
    }
  }
  return 1;
}

}  // namespace

std::string version_build() {
  std::string found;
  dl_iterate_phdr(look, &found);
  return found.empty() ? "unknown" : found;
}

}  // namespace blipft
