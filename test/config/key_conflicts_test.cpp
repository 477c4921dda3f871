// Every row of the table of conflicting keys, with every pair of its keys: one in the run file, the other on the
// command line. The test derives values, and the other keys that a valid run file needs, from the schema and the table.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/nearest.h"
#include "config/config_rules.h"
#include "config/config_schema.h"
#include "config/run_file.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

using Values = std::map<std::string, std::string>;   // "train.lr" -> "1e-3"
using Keys = std::set<std::string>;
constexpr size_t kRepairs = 20;

const Key& key_of(const std::string& full) {
  const size_t dot = full.find('.');
  const Key* key = find_key(full.substr(0, dot), full.substr(dot + 1));
  REQUIRE_MESSAGE(key, full);
  return *key;
}

std::string text_of(const Config& config, const std::string& key) { return value_text(key_of(key), config); }

/// The run file of these values, with the two keys that every run needs. `lines`: where each key stands.
std::string file_of(const Values& values, std::map<std::string, int>* lines = nullptr) {
  std::string text;
  int line = 0;
  for (const std::string& section : config_sections()) {
    std::string keys;
    const int before = line++;
    const auto add = [&](const std::string& name, const std::string& value) {
      keys += concat("  ", name, ": ", value, "\n");
      if (++line; lines) (*lines)[section + "." + name] = line;
    };
    if (section == "model" || section == "data") add("path", "p");
    for (const auto& [key, value] : values)
      if (key.starts_with(section + ".")) add(key.substr(section.size() + 1), value);
    if (keys.empty()) line = before;
    else text += section + ":\n" + keys;
  }
  return text;
}

std::vector<std::string> overrides_of(const Values& values) {
  std::vector<std::string> all;
  for (const auto& [key, value] : values) all.push_back(key + "=" + value);
  return all;
}

Config unresolved(const Values& values) {
  Config config = read_values("run.yaml", file_of(values));
  set_implied_defaults(config);
  return config;
}

/// Values of a key to choose from; some of them may not be allowed.
std::vector<std::string> candidates(const Key& key) {
  Config defaults;
  std::vector<std::string> all = key.allowed.choices;
  for (const auto& [word, choice] : key.allowed.meant) all.push_back(choice);
  const bool list = std::holds_alternative<ChoiceListField>(key.field(defaults));
  for (std::string& one : all)
    if (list) one = "[" + one + "]";
  for (const char* other : {"true", "false", "1", "0.5", "2", "0", "-1", "[x]", "[1]", "[]", "x", "\"\""})
    all.push_back(other);
  if (!key.allowed.zero_word.empty()) all.push_back(key.allowed.zero_word);
  all.push_back(value_text(key, defaults));
  return all;
}

/// A value with which the condition holds, or does not.
std::string value_for(const Condition& condition, bool holds) {
  for (const std::string& value : candidates(key_of(condition.key))) {
    const Values values{{condition.key, value}};
    if (message_of([&] { unresolved(values); }).empty() && condition.holds(unresolved(values)) == holds) return value;
  }
  FAIL("no value of ", std::string(condition.key));
  return "";
}

/// Adds keys until no row but `except` refuses the values. Keys in `fixed` stay.
void repair(Values& values, const Keys& fixed, const KeyConflict* except = nullptr) {
  for (size_t i = 0; i < kRepairs; ++i) {
    const auto& rows = key_conflicts();
    const auto wrong = std::find_if(rows.begin(), rows.end(), [&](const KeyConflict& row) {
      return &row != except && row.refused && row.holds(unresolved(values), 1);
    });
    if (wrong == rows.end()) return;
    const auto free = std::find_if(wrong->conditions.rbegin(), wrong->conditions.rend(),
                                   [&](const Condition& one) { return fixed.count(one.key) == 0; });
    REQUIRE_MESSAGE(free != wrong->conditions.rend(), std::string(wrong->conditions[0].key));
    values[free->key] = value_for(*free, false);
  }
  FAIL("the values need too many others");
}

std::vector<std::string> conflicting_values(const KeyConflict& row) {
  std::vector<std::string> values(row.example.begin(), row.example.end());
  for (size_t i = values.size(); i < row.conditions.size(); ++i) values.push_back(value_for(row.conditions[i], true));
  return values;
}

/// One row, with `in_file` of its keys in the run file, `commanded` on the command line, and a valid file around them.
struct Try {
  Values file, command;

  Try(const KeyConflict& row, const std::vector<std::string>& values, const std::vector<bool>& commanded) {
    Values both;
    Keys fixed, fixed_in_file;
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string key = row.conditions[i].key;
      (commanded[i] ? command : file)[key] = values[i];
      both[key] = values[i];
      fixed.insert(key);
    }
    repair(both, fixed, &row);
    for (const auto& [key, value] : both)
      if (command.count(key) == 0) file[key] = value, fixed_in_file.insert(key);
    if (!command.empty()) repair(file, fixed_in_file);
  }
};

bool holds_value(const Config& config, const std::string& key, const std::string& value) {
  return text_of(config, key) == text_of(unresolved({{key, value}}), key);
}

/// The key at `loser` is in the file, and one on the command line wins over it.
void check_winner(const KeyConflict& row, const std::vector<std::string>& values, size_t loser, size_t winner) {
  // Keys of a larger row that would yield first are on the command line too.
  std::vector<bool> commanded(values.size());
  for (size_t i = 0; i < values.size(); ++i) commanded[i] = i == winner || i < loser;
  const Try both(row, values, commanded);
  std::map<std::string, int> lines;
  const std::string file = file_of(both.file, &lines), key = row.conditions[loser].key;
  CAPTURE(file);
  CAPTURE(join_names(overrides_of(both.command), " "));
  REQUIRE(any_message(file) == "");
  REQUIRE(load(file).notes.empty());
  REQUIRE(any_message(file, overrides_of(both.command)) == "");
  const Config config = load(file, overrides_of(both.command));
  for (const auto& [given, value] : both.command) CHECK_MESSAGE(holds_value(config, given, value), given);
  CHECK_FALSE(holds_value(config, key, values[loser]));
  REQUIRE(config.notes.size() == 1);
  CHECK(config.notes[0].starts_with(concat(config.file, ":", lines[key], ": ", key, ": ")));
  const auto& commands = both.command;
  CHECK(std::any_of(commands.begin(), commands.end(), [&](const auto& one) {
    return config.notes[0].ends_with(concat(" is ignored because the command line sets ", one.first, "=",
                                            text_of(config, one.first)));
  }));
  CHECK(any_message(to_yaml(config)) == "");
}

/// Values of one source, or a detail that tries to override its choice.
void check_refusal(const KeyConflict& row, const std::vector<std::string>& values, const std::vector<bool>& commanded) {
  const std::string key = row.conditions[0].key, other = row.conditions[1].key;
  CAPTURE(key);
  CAPTURE(other);
  const Try both(row, values, commanded);
  const std::string file = file_of(both.file);
  CAPTURE(file);
  CAPTURE(join_names(overrides_of(both.command), " "));
  const std::string text = any_message(file, overrides_of(both.command));
  if (!row.refused) {
    REQUIRE(text == "");
    const Config config = load(file, overrides_of(both.command));
    CHECK(config.notes.empty());
    for (size_t i = 0; i < values.size(); ++i) CHECK(holds_value(config, row.conditions[i].key, values[i]));
    return;
  }
  const std::string location = commanded[0] ? concat("override \"", key, "=", values[0], "\"") : "FILE:";
  CHECK(text.starts_with(location));
  CHECK(contains(text, concat(": ", key, ": ")));
  for (size_t i = 1; i < values.size(); ++i) CHECK(contains(text, concat(" ", row.conditions[i].key, " ")));
  const size_t remedy = text.find(". ");   // a sentence that begins with what to do
  REQUIRE(remedy != std::string::npos);
  for (const char* verb : {"Set ", "Remove ", "Add ", "Lower "})
    if (text.substr(remedy + 2).starts_with(verb)) return;
  FAIL_CHECK(text);
}

}  // namespace

TEST_SUITE("config") {
  TEST_CASE("key conflicts: the command line wins over the run file for every pair of every row, with one note") {
    for (const KeyConflict& row : key_conflicts()) {
      const std::vector<std::string> values = conflicting_values(row);
      const size_t losers = row.yields == KeyConflict::Yields::first_key ? 1 : values.size();
      for (size_t loser = 0; loser < losers; ++loser)
        for (size_t winner = 0; winner < values.size(); ++winner) {
          if (winner == loser) continue;
          const std::string loser_key = row.conditions[loser].key, winner_key = row.conditions[winner].key;
          CAPTURE(loser_key);
          CAPTURE(winner_key);
          check_winner(row, values, loser, winner);
          if (row.conditions[winner].kind != Condition::Kind::stated) continue;
          std::vector<std::string> defaults = values;  // to state the default value is to state something
          defaults[winner] = text_of(Config(), row.conditions[winner].key);
          check_winner(row, defaults, loser, winner);
        }
    }
  }

  TEST_CASE("key conflicts: values of one source are refused, or stay without a note") {
    for (const KeyConflict& row : key_conflicts()) {
      const std::vector<std::string> values = conflicting_values(row);
      check_refusal(row, values, std::vector<bool>(values.size(), false));
      check_refusal(row, values, std::vector<bool>(values.size(), true));
    }
  }

  TEST_CASE("key conflicts: a detail on the command line does not override the choice of the run file") {
    for (const KeyConflict& row : key_conflicts()) {
      if (row.yields != KeyConflict::Yields::first_key) continue;
      const std::vector<std::string> values = conflicting_values(row);
      std::vector<bool> commanded(values.size(), false);
      commanded[0] = true;
      check_refusal(row, values, commanded);
    }
  }

  // Finds refusals of two keys that are no row of the table.
  TEST_CASE("key conflicts: every pair of keys of the schema that a run file may not give together [slow]") {
    using Pairs = std::vector<std::pair<std::string, std::string>>;
    const Pairs needed{{"model.path", "p"}, {"data.path", "p"}};
    const auto refusal = [&](Pairs values, const std::vector<std::string>& overrides) {
      values.insert(values.begin(), needed.begin(), needed.end());
      std::sort(values.begin(), values.end());
      return message_of([&] { config_from_values(values, "FILE", overrides); });
    };
    Pairs fine;                              // values that a run file may give alone, two of each key
    for (const Key& key : config_keys())
      for (const std::string& value : candidates(key)) {
        const auto is_known = [&](const auto& one) { return one.first == key.full() && one.second == value; };
        const bool enough = fine.size() > 1 && fine[fine.size() - 2].first == key.full();
        if (enough || key.name == "path" || std::any_of(fine.begin(), fine.end(), is_known)) continue;
        if (refusal({{key.full(), value}}, {}).empty()) fine.emplace_back(key.full(), value);
      }
    for (const auto& in_file : fine)
      for (const auto& commanded : fine) {
        const std::vector<std::string> overrides{commanded.first + "=" + commanded.second};
        const std::string text = in_file.first == commanded.first ? "" : refusal({in_file}, overrides);
        const std::string location = concat("override \"", overrides[0], "\": ", commanded.first);
        if (text.empty()) continue;
        // A detail that cannot override its choice, or the micro-batch that the program may not choose.
        CHECK_MESSAGE((text.starts_with(location) || contains(text, "Set train.batch_size to a number")), text);
      }
  }

  TEST_CASE("key conflicts: what is ignored causes no further conflict") {
    const std::string file = "model: {path: m}\ndata: {path: d, val_path: v}\ntrain: {early_stopping_patience: 2}\n"
                             "checkpoint: {keep_best: cider}\nevaluate: {samples: 9, every: 2}\n"
                             "output: {save_model: true, save_best: true}\n";
    CHECK(load(file).notes.empty());
    const Config none = load(file, {"data.val_path="});
    CHECK(none.notes.size() == 5);
    for (const std::string& note : none.notes) CHECK(note.ends_with(" sets data.val_path=\"\""));
    CHECK_FALSE(none.output.save_best);
  }

  TEST_CASE("key conflicts: limits, warm-up and the samples of a step") {
    const auto train = [](const std::string& keys, const std::vector<std::string>& overrides) {
      Config config = load(base + "train: {" + keys + "}\n", overrides);
      CHECK(config.notes.size() == 1);
      return config;
    };
    CHECK(train("warmup_ratio: 0.5", {"train.warmup_steps=0"}).train.warmup_ratio == 0);
    CHECK(train("max_steps: 4", {"train.max_epochs=5"}).steps.max_steps == -1);
    CHECK(train("max_steps: 4", {"train.max_epochs=1"}).steps.max_epochs == 1);
    CHECK(train("max_epochs: 5", {"train.max_steps=4"}).steps.max_epochs == -1);
    const StepsSection total = train("batch_size: 16", {"train.total_batch_size=8"}).steps;
    CHECK(total.batch_size == 0);          // auto
    CHECK(total.accumulate_grad_batches == 0);
    const StepsSection micro = train("total_batch_size: 8", {"train.batch_size=16"}).steps;
    CHECK(micro.total_batch_size == 0);
    CHECK(micro.accumulate_grad_batches == 1);
    // A step of 24 samples has room for a micro-batch of 16 on one rank, and not on two.
    const RunFile file(base + "train: {batch_size: 16}\n");
    for (const int64_t ranks : {1, 2}) {
      const Config config = load_config(file.name(), {"train.total_batch_size=24"}, ranks);
      CHECK(config.steps.batch_size == (ranks == 1 ? 16 : 0));
      CHECK(config.notes.size() == (ranks == 1 ? 0 : 1));
      CHECK_NOTHROW(resolve_for_ranks(config, ranks));
    }
    // No limit is no statement against the other limit.
    CHECK(load(base + "train: {max_steps: 4}\n", {"train.max_epochs=-1"}).steps.max_steps == 4);
    CHECK(load(base + "train: {max_epochs: 5}\n", {"train.max_steps=-1"}).steps.max_epochs == 5);
    // If the loss depends on the micro-batch, the program cannot choose another one.
    const std::string padded = base + "train: {batch_size: 16, loss_on_padding: true}\n";
    CHECK(load(padded, {"train.total_batch_size=8"}).steps.batch_size == 16);
  }
}
