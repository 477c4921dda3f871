// The text of --help.
#include <algorithm>

#include "base/nearest.h"
#include "blipft/error.h"
#include "config/command_line.h"
#include "config/config_schema.h"

namespace blipft {

namespace {

constexpr size_t kWidth = 100;             // of a line
constexpr size_t kOptionColumn = 22, kKeyColumn = 38;

constexpr const char* kUsage[] = {
    "blipft FILE.yaml [section.key=value ...]",
    "blipft --smoke [N] FILE.yaml [section.key=value ...]",
    "blipft --plan [--fit GiB] FILE.yaml [section.key=value ...]",
    "blipft --show [N|random:N] FILE.yaml [section.key=value ...]",
    "blipft --generate FILE.yaml [--prompt TEXT] [--image FILE] [section.key=value ...]",
    "blipft --chat FILE.yaml [--system TEXT] [section.key=value ...]",
    "blipft --evaluate FILE.yaml [section.key=value ...]",
    "blipft --export CHECKPOINT output.path=FOLDER [section.key=value ...]",
};

/// `head`, then the words of `text` from column `column` on, in lines of at most kWidth characters.
std::string wrapped(const std::string& head, size_t column, const std::string& text) {
  std::string out, line = head;
  if (line.size() + 1 > column) out = line + "\n", line.clear();
  line.resize(column, ' ');
  bool empty = true;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (!empty && line.size() + 1 + end - begin > kWidth) {
      out += line + "\n";
      line.assign(column, ' ');
      empty = true;
    }
    line += (empty ? "" : " ") + text.substr(begin, end - begin);
    empty = false;
    begin = end + 1;
  }
  return out + line + "\n";
}

std::string section_text(const std::string& section) {
  const Config defaults;
  std::string text = concat("\n", section, ":\n");
  for (const Key& key : config_keys()) {
    if (key.section != section) continue;
    const bool needed = key.allowed.required && value_text(key, defaults) == quote_scalar("");
    const std::string value = needed ? "(required)" : value_text(key, defaults);
    text += wrapped(concat("  ", key.name, ": ", value), kKeyColumn, concat(key.doc, " (", expected_value(key), ")"));
  }
  return text;
}

}  // namespace

const std::vector<Option>& command_line_options() {
  static const std::vector<Option> options = {
      {"--smoke", "", "[N]",
       "tries N steps (5 if not given) and one batch of validation, saves nothing, and says in one line at the end that "
       "the run works here, how fast it is and how much memory it takes"},
      {"--plan", "", "", "prints the memory plan and stops; it needs no GPU; with --generate that of generation"},
      {"--fit", "", "GiB",
       "with --plan: prints settings that fit a GPU of that size (--fit 24GiB), the fastest first, with estimated times; sizes "
       "may be GiB (also G, or no unit), GB (10^9 bytes) or MiB"},
      {"--ranks", "", "N", "with --plan: plans for N ranks (default: parallel.devices)"},
      {"--node-ranks", "", "N",
       "with --plan: the ranks of a machine, for parallel.shard_ranks=node (default: the GPUs that are here)"},
      {"--gpu-memory", "", "GiB",
       "with --plan: the memory of one GPU, in a unit of --fit (default: that of the GPU that is here, else an H200's 140.4)"},
      {"--show", "", "[N]",
       "prints the first N training samples (3 if not given), or random ones (--show random:5): text, ids, which tokens are "
       "trained, where it is cut, sizes of pictures; and a table of all lengths. It needs no weights and no GPU"},
      {"--generate", "", "",
       "answers the prompts of generate.path, or captions its pictures, and writes the answers under output.path"},
      {"--evaluate", "", "", "the same, and scores the answers, and the loss of a held-out set, by evaluate.metrics"},
      {"--prompt", "", "TEXT", "with --generate: answers this one, on the terminal"},
      {"--image", "", "FILE", "with --generate: the picture that goes with the prompt, or that is captioned"},
      {"--system", "", "TEXT", "with --prompt or --chat: the system message"},
      {"--chat", "", "",
       "answers what you write, line by line, as one conversation until Ctrl-D; /new begins another one, /picture FILE shows a "
       "picture"},
      {"--export", "", "CHECKPOINT",
       "writes the model (or adapters) of a run's checkpoint under output.path=FOLDER, which you must give, and stops"},
      {"--print-config", "", "", "prints the whole effective configuration and stops"},
      {"--recipes", "", "", "lists the run files that come with blipft; @NAME stands for one of them, wherever blipft is started"},
      {"--help", "-h", "[SECTION]", "prints this help, or the keys of one section: --help train"},
      {"--version", "-V", "", "prints the version, and the libraries that the program was built with and found"},
  };
  return options;
}

std::string usage_line() {
  std::string text = "usage: ";
  for (const char* usage : kUsage) text += concat(text.size() > 7 ? "\n       " : "", usage);
  return text;
}

std::string help_text(const std::string& topic) {
  const std::string section = topic.substr(0, topic.find('.'));  // train.lr is a key of train
  const std::vector<std::string>& sections = config_sections();
  const bool known = std::find(sections.begin(), sections.end(), section) != sections.end();
  BLIPFT_USER_CHECK(section.empty() || known, "--help: found \"", brief(topic), "\", expected one of the sections ",
                    join_names(sections));
  if (known) return section_text(section).substr(1);
  std::string text = "blipft fine-tunes LLaMA and its relatives, T5, BLIP-2 and InstructBLIP, on one GPU or on many.\n\n" + usage_line() +
                     "\n\nOn several GPUs it is started by MPI: mpirun -np 4 ./blipft inputs/fsdp.yaml\n\nOptions\n";
  for (const Option& option : command_line_options()) {
    std::string name = *option.short_name ? concat(option.short_name, ", ", option.name) : option.name;
    if (*option.value) name += concat(" ", option.value);
    text += wrapped("  " + name, kOptionColumn, option.doc);
  }
  text += "\nThe keys of a run file follow, with their defaults. section.key=value on the command line wins over\n"
          "the file; keys of the file that contradict it are left out, and a note says so.\n";
  for (const std::string& each : sections) text += section_text(each);
  return text;
}

}  // namespace blipft
