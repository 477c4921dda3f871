// The folder of checkpoints and the time limit of a run; see run_settings.h.
#include "blipft/run_settings.h"

#include <charconv>

#include "blipft/error.h"

namespace blipft {

// Parses a time in Slurm's notation: minutes, MM:SS, H:MM:SS, D-HH:MM, D-HH:MM:SS. A field after another one is at most
// 59, hours after days at most 23.
double time_limit_seconds(const RunSettings& config) {
  const std::string& text = config.checkpoint.time_limit.text;
  if (text == "none") return 0;
  const auto refuse = [&] {
    throw UserError(concat(location_of(config, "checkpoint.time_limit"), ": checkpoint.time_limit: found ", "\"", brief(text), "\"",
                           ", expected none, minutes, MM:SS, H:MM:SS, D-HH:MM or D-HH:MM:SS"));
  };
  const auto number = [&](const std::string& digits) {
    int64_t value = -1;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || stop != digits.data() + digits.size() || value < 0 || value > 1'000'000) refuse();
    return static_cast<double>(value);
  };
  const size_t dash = text.find('-');
  const bool days = dash != std::string::npos;
  std::vector<double> fields;
  for (size_t begin = days ? dash + 1 : 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    fields.push_back(number(text.substr(begin, end - begin)));
    if (fields.back() > (fields.size() > 1 ? 59 : days ? 23 : 1e6)) refuse();
    begin = end + 1;
  }
  if (fields.size() > 3) refuse();
  double unit = days || fields.size() == 3 ? 3600 : 60, seconds = days ? 86400 * number(text.substr(0, dash)) : 0;
  for (const double field : fields) seconds += field * unit, unit /= 60;
  if (seconds == 0) refuse();
  return seconds;
}

std::string checkpoints_folder(const RunSettings& config) {
  return config.checkpoint.path.empty() ? config.output.path + "/checkpoints" : config.checkpoint.path;
}

}  // namespace blipft
