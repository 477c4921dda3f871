// Command line: options, the run file, overrides. The text of --help is in help_text.cpp.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/nearest.h"
#include "blipft/config.h"
#include "blipft/error.h"
#include "config/command_line.h"
#include "config/config_schema.h"
#include "config/recipes.h"

namespace blipft {

namespace {

// Returns the end of an error message that shows the correct form of a key which the user wrote like an option of
// another program: --train.lr 1e-4, --learning-rate=1e-4, or train.lr 1e-4. Returns "" if the argument names no key.
std::string advice_for_key(const std::string& argument) {
  const size_t begin = std::min(argument.find_first_not_of('-'), argument.size());
  const size_t end = std::min(argument.find('=', begin), argument.size()), dot = argument.find('.', begin);
  std::string name = argument.substr(begin, end - begin);
  std::vector<std::string> meant;
  if (dot < end) {
    if (find_key(name.substr(0, dot - begin), name.substr(dot - begin + 1))) meant = {name};
  } else {
    std::replace(name.begin(), name.end(), '-', '_');
    for (const Key& key : config_keys())
      if (key.name == name || std::count(key.aliases.begin(), key.aliases.end(), name) > 0) meant.push_back(key.full());
  }
  const std::string value = end < argument.size() ? argument.substr(end + 1) : "VALUE";
  for (std::string& key : meant) key += "=" + brief(value);
  return meant.empty() ? "" : concat("; keys are given without dashes and with an =: ", join_names(meant));
}

const Option& find_option(const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  std::vector<std::string> names;
  for (const Option& option : command_line_options()) {
    if (name == option.name || (*option.short_name && name == option.short_name)) return option;
    names.push_back(option.name);
  }
  const std::string near = nearest_name(name, names);
  if (const std::string advice = advice_for_key(argument); near.empty() && !advice.empty())
    throw UserError(concat("unknown option ", brief(argument), advice));
  const std::string all = "; the options are " + join_names(names, " and ");
  throw UserError(concat("unknown option ", brief(name), near.empty() ? all : "; did you mean " + near + "?"));
}

constexpr int64_t max_ranks = 1 << 20, max_smoke_steps = 1'000'000, max_shown_samples = 1'000'000;
constexpr double max_gib = 1e6;

/// An integer, 1 <= value <= most.
int64_t parse_count(const std::string& option, const std::string& text, int64_t maximum) {
  int64_t count = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  BLIPFT_USER_CHECK(error == std::errc() && stop == end && count >= 1 && count <= maximum, option, ": found \"",
                    brief(text),
                    "\", expected an integer >= 1 and <= ", maximum);
  return count;
}

/// Returns the GiB of one memory unit, or 0 if `unit` is unknown. nvidia-smi uses MiB, names of GPUs use G or GB.
double gib_of_unit(const std::string& unit) {
  if (unit.empty() || unit == "GiB" || unit == "G") return 1;
  if (unit == "GB") return 1e9 / static_cast<double>(int64_t{1} << 30);
  return unit == "MiB" || unit == "M" ? 1.0 / 1024 : 0;
}

/// "24", "79.5GiB", "24 GiB", "24GB", "24564MiB"
double parse_gib(const std::string& option, const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const bool blank = stop + 1 < end && *stop == ' ';
  const double gib = number * gib_of_unit(std::string(stop + (blank ? 1 : 0), end));
  BLIPFT_USER_CHECK(error == std::errc() && gib > 0 && gib <= max_gib, option, ": found \"", brief(text),
                    "\", expected a number of GiB > 0 and <= ", max_gib, ", as in ", option,
                    " 24GiB, or of another unit: 24GB (10^9 bytes), 24G (GiB), 24564MiB");
  return gib;
}

void set_gpu_gib(CommandLine& line, const std::string& option, const std::string& text) {
  BLIPFT_USER_CHECK(line.plan_gpu_gib == 0, option, ": the size of a GPU is given already; give --gpu-memory or ",
                    "--fit, once");
  line.plan_gpu_gib = parse_gib(option, text);
  line.plan_fit = option == "--fit";
}

void set_shown(CommandLine& line, const std::string& option, const std::string& text) {
  const std::string random = "random:";
  line.show_random = text.starts_with(random);
  const std::string count = line.show_random ? text.substr(random.size()) : text;
  line.show_samples = count.empty() ? 3 : parse_count(option, count, max_shown_samples);
}

void set_action(CommandLine& line, CommandLine::Action action) {
  using Action = CommandLine::Action;
  if (line.action == Action::help) return;  // help is printed whatever else is requested
  const auto generates = [](Action one) { return one == Action::generate || one == Action::evaluate; };
  if ((line.action == Action::plan && generates(action)) || (generates(line.action) && action == Action::plan)) {
    line.plan_generation = true;
    line.plan_evaluation = line.action == Action::evaluate || action == Action::evaluate;
    line.action = Action::plan;
    return;
  }
  const bool conflict = action != Action::help && line.action != Action::train && line.action != action;
  BLIPFT_USER_CHECK(!conflict, "--generate, --evaluate, --plan, --show, --export, --print-config, --recipes and --version exclude each other, but for --plan with "
                    "--generate; give one");
  line.action = action;
}

// Throws UserError if the value is empty, for example because of an unset shell variable.
const std::string& not_empty(const Option& option, const std::string& value) {
  BLIPFT_USER_CHECK(!value.empty(), option.name, ": found an empty value, expected ", option.value,
                    ". Give one, or leave the option out.");
  return value;
}

void take_option(CommandLine& line, const Option& option, const std::string& value) {
  using Action = CommandLine::Action;
  const std::string name = option.name;
  if (name == "--plan") set_action(line, Action::plan);
  else if (name == "--print-config") set_action(line, Action::print_config);
  else if (name == "--help") set_action(line, Action::help), line.help_section = value;
  else if (name == "--smoke") line.smoke_steps = value.empty() ? 5 : parse_count(name, value, max_smoke_steps);
  else if (name == "--recipes") set_action(line, Action::recipes);
  else if (name == "--show") set_action(line, Action::show), set_shown(line, name, value);
  else if (name == "--version") set_action(line, Action::version);
  else if (name == "--generate") set_action(line, Action::generate);
  else if (name == "--evaluate") set_action(line, Action::evaluate);
  else if (name == "--prompt") line.prompt = not_empty(option, value);
  else if (name == "--image") line.image = not_empty(option, value);
  else if (name == "--system") line.system = not_empty(option, value);
  else if (name == "--chat") set_action(line, Action::generate), line.chat = true;
  else if (name == "--export") set_action(line, Action::export_model), line.checkpoint = not_empty(option, value);
  else if (name == "--ranks") line.plan_ranks = parse_count(name, value, max_ranks);
  else if (name == "--node-ranks") line.plan_node_ranks = parse_count(name, value, max_ranks);
  else set_gpu_gib(line, name, value);
}

/// "section.key=value", as against a file name: a name without '/' before the '='.
bool is_override(const std::string& argument) {
  const size_t equals = argument.find('=');
  return equals != std::string::npos && argument.find('/') > equals;
}

void take_argument(CommandLine& line, const std::string& argument) {
  if (is_override(argument)) {
    line.overrides.push_back(argument);
    return;
  }
  BLIPFT_USER_CHECK(!argument.empty(), "found an empty argument; ", usage_line());
  if (const std::string advice = advice_for_key(argument); argument.find('.') != std::string::npos && !advice.empty())
    throw UserError(concat("found ", brief(argument), advice));
  BLIPFT_USER_CHECK(line.config_file.empty(), "found \"", argument, "\" beside the run file ", line.config_file,
                    "; expected one run file, and overrides as section.key=value");
  line.config_file = recipe_file(argument);
}

/// Returns true if `text` can be the value of an option whose value is optional: a number of steps or samples, or a section.
bool is_optional_value(const Option& option, const std::string& text) {
  const std::string name = option.name;
  const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  if (name == "--smoke" || name == "--show") return is_number || (name == "--show" && text.starts_with("random:"));
  // Other plain words are accepted too: --help then lists the sections. Run files and overrides contain . / = or -.
  const std::string section = text.substr(0, text.find('.'));
  const std::vector<std::string>& sections = config_sections();
  return name == "--help" && (std::find(sections.begin(), sections.end(), section) != sections.end() ||
                              (!text.empty() && text.find_first_of("./=-") == std::string::npos));
}

/// Returns the value of an option, from behind its = or from the next argument; then `i` moves to that argument.
std::string value_of(const Option& option, int argc, const char* const* argv, int& i) {
  const std::string argument = argv[i];
  const size_t equals = argument.find('=');
  const bool takes_value = *option.value != 0, optional = *option.value == '[';
  BLIPFT_USER_CHECK(takes_value || equals == std::string::npos, option.name, " takes no value, found \"", argument, "\"");
  if (equals != std::string::npos) return argument.substr(equals + 1);
  if (!takes_value || (optional && (i + 1 >= argc || !is_optional_value(option, argv[i + 1])))) return "";
  BLIPFT_USER_CHECK(i + 1 < argc, option.name, " needs a value: ", option.name, " ", option.value);
  return argv[++i];
}

void check_line(const CommandLine& line) {
  using Action = CommandLine::Action;
  const bool plan = line.action == Action::plan;
  BLIPFT_USER_CHECK(plan || line.plan_ranks == 0,
                    "--ranks is for --plan; the number of ranks of a run is mpirun's -np");
  BLIPFT_USER_CHECK(plan || line.plan_node_ranks == 0,
                    "--node-ranks is for --plan; a run's ranks of a machine are those that mpirun starts there");
  BLIPFT_USER_CHECK(plan || line.plan_gpu_gib == 0, line.plan_fit ? "--fit" : "--gpu-memory",
                    " is for --plan; give --plan too");
  BLIPFT_USER_CHECK(line.smoke_steps == 0 || line.action == Action::train,
                    "--smoke tries a run, and neither plans, prints, exports nor generates; give it alone");
  BLIPFT_USER_CHECK(line.action == Action::generate || (line.prompt.empty() && line.image.empty()),
                    line.prompt.empty() ? "--image" : "--prompt", " is for --generate; give --generate too");
  BLIPFT_USER_CHECK(!line.chat || (line.action == Action::generate && line.prompt.empty()), "--chat: found ",
                    line.prompt.empty() ? "--plan" : "--prompt", " too, expected one of them. Leave the other out.");
  BLIPFT_USER_CHECK(line.system.empty() || line.chat || !line.prompt.empty(), "--system: found neither --prompt nor --chat, "
                    "expected one of them. Write the system message of a data set into its records.");
  if (line.action == Action::export_model)
    BLIPFT_USER_CHECK(line.config_file.empty(), "found \"", line.config_file, "\" beside --export ", line.checkpoint,
                      ", which has the run's configuration; expected overrides as section.key=value alone");
  else BLIPFT_USER_CHECK(!line.config_file.empty(), "no run file given; ", usage_line(), "; see --help");
}

// Actions that use the weights or the data of a run accept the run folder instead of a run file: its config.yaml is read, and
// output.path is set to the folder.
void take_run_folder(CommandLine& line) {
  using Action = CommandLine::Action;
  const bool takes_folder = line.action == Action::generate || line.action == Action::evaluate || line.plan_generation ||
                            line.action == Action::show;
  std::error_code error;
  if (!takes_folder || !std::filesystem::is_directory(line.config_file, error)) return;
  const std::string folder = line.config_file;
  line.config_file = (std::filesystem::path(folder) / "config.yaml").string();
  BLIPFT_USER_CHECK(std::filesystem::exists(line.config_file, error), folder, ": found a folder without config.yaml, ",
                    "expected a run file or the folder of a run. Name one of them.");
  const auto is_output = [](const std::string& one) { return one.starts_with("output.path="); };
  if (std::none_of(line.overrides.begin(), line.overrides.end(), is_output))
    line.overrides.push_back("output.path=" + folder);
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine line;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.size() < 2 || argument[0] != '-') {
      take_argument(line, argument);
      continue;
    }
    const Option& option = find_option(argument);
    take_option(line, option, value_of(option, argc, argv, i));
  }
  if (line.action < CommandLine::Action::help) check_line(line);
  take_run_folder(line);
  if (line.smoke_steps > 0) {              // these replace the values of the run file
    line.overrides.push_back(concat(smoke_override, "train.max_steps=", line.smoke_steps));
    line.overrides.push_back(concat(smoke_override, "train.max_epochs=-1"));
  }
  return line;
}

}  // namespace blipft
