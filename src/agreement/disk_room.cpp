// Room on the disks; see disk_room.h.
#include "agreement/disk_room.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/memory_text.h"
#include "blipft/error.h"
#include "io/file.h"

namespace blipft {

namespace fs = std::filesystem;

namespace {

struct Disk {
  std::string folder;                      // a folder on this disk, for messages
  int64_t free = 0, needed = 0, all = 0;
  std::string list;                        // "model 14.00 GiB, trace 1.00 GiB"
};

// Returns the device number of `folder`, or of its nearest existing parent folder. `found` becomes the path of that
// folder.
dev_t device_of(const std::string& folder, std::string& found) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error);
  while (!fs::exists(path, error) && path != path.root_path()) path = path.parent_path();
  found = path.string();
  struct stat status{};
  BLIPFT_USER_CHECK(::stat(found.c_str(), &status) == 0, found, ": cannot be looked at: ", io::errno_text());
  return status.st_dev;
}

}  // namespace

std::string check_room(const KeyLocations& places, const std::vector<FileToWrite>& files,
                       const std::vector<FileToWrite>& reclaimed) {
  std::map<dev_t, Disk> disks;
  std::string folder;
  for (const FileToWrite& file : files) {
    const auto [found, is_new] = disks.try_emplace(device_of(file.folder, folder));
    Disk& disk = found->second;
    if (is_new) disk.folder = file.folder, disk.free = io::free_bytes(folder);
    disk.all += file.bytes;
    if (file.needed) disk.needed += file.bytes;
    disk.list += concat(disk.list.empty() ? "" : ", ", file.what, " ", memory_text(file.bytes));
  }
  for (const FileToWrite& file : reclaimed)
    if (const auto disk = disks.find(device_of(file.folder, folder)); disk != disks.end()) disk->second.free += file.bytes;
  std::string warning;
  for (const auto& [device, disk] : disks) {
    const std::string text = concat("the disk of ", disk.folder, " has ", memory_text(disk.free),
                                    " free, but this run is going to write ", memory_text(disk.all), " there: ",
                                    disk.list);
    BLIPFT_USER_CHECK(disk.needed <= disk.free, location_of(places, "output.path"), ": output.path: ", text,
                      "; free some, or choose another output.path");
    if (disk.all > disk.free) warning = text;
  }
  return warning;
}

}  // namespace blipft
