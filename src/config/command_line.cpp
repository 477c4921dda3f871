// Command line: options, the run file, overrides; and the text of --help.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "blipft/config.h"
#include "blipft/error.h"
#include "config/config_schema.h"
#include "config/nearest.h"

namespace blipft {

namespace {

struct Option {
  const char* name;
  const char* short_name;  ///< "" for none
  const char* value;       ///< what follows it; "" for nothing
  const char* doc;
};

constexpr Option options[] = {
    {"--plan", "", "", "print the memory plan and stop; needs no GPU"},
    {"--ranks", "", "N", "with --plan: plan for N ranks (default: parallel.devices)"},
    {"--node-ranks", "", "N",
     "with --plan: ranks of a machine, for parallel.shard_ranks=node (default: the GPUs that are here)"},
    {"--gpu-memory", "", "GiB",
     "with --plan: memory of one GPU (default: of the GPU that is there, else an H200's 140.4)"},
    {"--export", "", "CHECKPOINT",
     "write the model (or adapters) of a run's checkpoint under output.path=FOLDER, which must be given, and stop"},
    {"--fit", "", "GiB",
     "with --plan: settings that fit a GPU of that size (--fit 24GiB), the fastest first, with estimated times"},
    {"--print-config", "", "", "print the full effective configuration and stop"},
    {"--help", "-h", "", "print this help"},
    {"--version", "-V", "", "print the version"},
};

constexpr const char* usage_line =
    "usage: blipft [--plan [--ranks N] [--node-ranks N] [--gpu-memory GiB | --fit GiB]] [--print-config] FILE.yaml "
    "[section.key=value ...]\n"
    "       blipft --export CHECKPOINT output.path=FOLDER [section.key=value ...]";

const Option& find_option(const std::string& name) {
  std::vector<std::string> names;
  for (const Option& option : options) {
    if (name == option.name || (*option.short_name && name == option.short_name)) return option;
    names.push_back(option.name);
  }
  const std::string near = nearest_name(name, names);
  const std::string all = "; the options are " + join_names(names, " and ");
  throw UserError(concat("unknown option ", brief(name), near.empty() ? all : "; did you mean " + near + "?"));
}

constexpr int64_t most_ranks = 1 << 20;
constexpr double most_gib = 1e6;

int64_t parse_ranks(const std::string& option, const std::string& text) {
  int64_t ranks = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, ranks);
  BLIPFT_USER_CHECK(error == std::errc() && stop == end && ranks >= 1 && ranks <= most_ranks, option, ": found \"",
                    brief(text),
                    "\", expected an integer >= 1 and <= ", most_ranks);
  return ranks;
}

/// "24", "79.5GiB", "24 GiB"
double parse_gib(const std::string& option, const std::string& text) {
  double gib = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, gib);
  const std::string unit(stop, end);
  const bool known = unit.empty() || unit == "GiB" || unit == " GiB";
  BLIPFT_USER_CHECK(error == std::errc() && known && gib > 0 && gib <= most_gib, option, ": found \"", brief(text),
                    "\", expected a number of GiB > 0 and <= ", most_gib, ", as in ", option, " 24GiB");
  return gib;
}

void set_gpu_gib(CommandLine& line, const std::string& option, const std::string& text) {
  BLIPFT_USER_CHECK(line.plan_gpu_gib == 0, option, ": the size of a GPU is given already; give --gpu-memory or ",
                    "--fit, once");
  line.plan_gpu_gib = parse_gib(option, text);
  line.plan_fit = option == "--fit";
}

void set_action(CommandLine& line, CommandLine::Action action) {
  using Action = CommandLine::Action;
  if (line.action == Action::help) return;  // help is given whatever else is asked for
  const bool conflict = action != Action::help && line.action != Action::train && line.action != action;
  BLIPFT_USER_CHECK(!conflict, "--plan, --export, --print-config and --version exclude each other; give one");
  line.action = action;
}

void take_option(CommandLine& line, const Option& option, const std::string& value) {
  using Action = CommandLine::Action;
  const std::string name = option.name;
  if (name == "--plan") set_action(line, Action::plan);
  else if (name == "--print-config") set_action(line, Action::print_config);
  else if (name == "--help") set_action(line, Action::help);
  else if (name == "--version") set_action(line, Action::version);
  else if (name == "--export") set_action(line, Action::export_model), line.checkpoint = value;
  else if (name == "--ranks") line.plan_ranks = parse_ranks(name, value);
  else if (name == "--node-ranks") line.plan_node_ranks = parse_ranks(name, value);
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
  BLIPFT_USER_CHECK(!argument.empty(), "found an empty argument; ", usage_line);
  BLIPFT_USER_CHECK(line.config_file.empty(), "found \"", argument, "\" beside the run file ", line.config_file,
                    "; expected one run file, and overrides as section.key=value");
  line.config_file = argument;
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  using Action = CommandLine::Action;
  CommandLine line;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.size() < 2 || argument[0] != '-') {
      take_argument(line, argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const Option& option = find_option(name);
    const bool takes_value = *option.value != 0;
    BLIPFT_USER_CHECK(takes_value || equals == std::string::npos, option.name, " takes no value, found \"", argument,
                      "\"");
    std::string value;
    if (takes_value && equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (takes_value) {
      BLIPFT_USER_CHECK(i + 1 < argc, option.name, " needs a value: ", option.name, " ", option.value);
      value = argv[++i];
    }
    take_option(line, option, value);
  }
  if (line.action == Action::help || line.action == Action::version) return line;
  const bool plan = line.action == Action::plan;
  BLIPFT_USER_CHECK(plan || line.plan_ranks == 0,
                    "--ranks is for --plan; the number of ranks of a run is mpirun's -np");
  BLIPFT_USER_CHECK(plan || line.plan_node_ranks == 0,
                    "--node-ranks is for --plan; a run's ranks of a machine are those that mpirun starts there");
  BLIPFT_USER_CHECK(plan || line.plan_gpu_gib == 0, line.plan_fit ? "--fit" : "--gpu-memory",
                    " is for --plan; give --plan too");
  if (line.action == Action::export_model) {
    BLIPFT_USER_CHECK(line.config_file.empty(), "found \"", line.config_file, "\" beside --export ", line.checkpoint,
                      ", which has the run's configuration; expected overrides as section.key=value alone");
    return line;
  }
  BLIPFT_USER_CHECK(!line.config_file.empty(), "no run file given; ", usage_line, "; see --help");
  return line;
}

std::string help_text() {
  std::string text = concat("blipft fine-tunes LLaMA-family models and BLIP-2: mpirun -np 4 ./blipft inputs/fsdp.yaml\n\n",
                            usage_line, "\n\nOptions\n");
  const auto padded = [](std::string cell, size_t width) {
    cell.resize(std::max(cell.size() + 1, width), ' ');
    return cell;
  };
  for (const Option& option : options) {
    std::string name = *option.short_name ? concat(option.short_name, ", ", option.name) : option.name;
    if (*option.value) name += concat(" ", option.value);
    text += concat("  ", padded(name, 20), option.doc, "\n");
  }
  text += "\nKeys of the run file, with their defaults; section.key=value on the command line overrides them\n";
  const Config defaults;
  std::string section;
  for (const Key& key : config_keys()) {
    if (key.section != section) text += concat("\n", key.section, ":\n");
    section = key.section;
    const bool needed = key.allowed.required && value_text(key, defaults) == quote_scalar("");
    const std::string value = needed ? "(required)" : value_text(key, defaults);
    text += concat("  ", padded(key.name + ": " + value, 36), key.doc, " (", expected_value(key), ")\n");
  }
  return text;
}

}  // namespace blipft
