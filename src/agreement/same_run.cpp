// Compares the inputs of the ranks; see same_run.h.
#include "agreement/same_run.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>

#include "io/digest.h"
#include "io/file.h"
#include "io/safetensors_header.h"
#include "weights/model_files.h"

namespace blipft {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kPiece = int64_t{1} << 20;       // bytes that are read at a time
constexpr int64_t kMaxOfFile = int64_t{256} << 20;  // bytes of a file that the digest covers
constexpr size_t kShown = 80;                      // characters of a value in a message

// Returns size and digest of a file. `header_alone`: the digest covers only the header of a safetensors file, because
// its tensors may have hundreds of gigabytes.
std::string describe_file(const std::string& path, bool header_alone, int64_t max_bytes = kMaxOfFile) {
  try {
    const io::FileDescriptor file = io::open_for_reading(path);
    const int64_t size = io::file_size(file, path);
    int64_t read = std::min(size, max_bytes);
    if (header_alone) {
      uint64_t length = 0;
      if (size >= 8) io::read_at(file, 0, &length, 8, path);
      read = std::min<int64_t>(size, 8 + static_cast<int64_t>(std::min<uint64_t>(length, io::max_header_bytes)));
    }
    io::Digest digest;
    std::string piece;
    for (int64_t at = 0; at < read; at += kPiece) {
      piece.resize(static_cast<size_t>(std::min(kPiece, read - at)));
      io::read_at(file, at, piece.data(), static_cast<int64_t>(piece.size()), path);
      digest.add(piece);
    }
    return concat(size, " bytes, ", header_alone ? "header " : "", digest.text());
  } catch (const UserError& error) {
    return error.what();
  }
}

uint64_t digest_of(const Facts& facts) {
  io::Digest digest;
  for (const Fact& fact : facts) digest.add(fact.name), digest.add(fact.value);
  return digest.value();
}

// Returns a list of facts as one text for sending: name, value and location of each fact, each followed by a zero byte.
std::string packed(const Facts& facts) {
  std::string text;
  for (const Fact& fact : facts)
    for (const std::string* part : {&fact.name, &fact.value, &fact.location}) text += part->c_str(), text += '\0';
  return text;
}

Facts unpacked(const std::string& text) {
  Facts facts;
  size_t at = 0;
  const auto next = [&] {
    std::string part = text.c_str() + at;
    at += part.size() + 1;
    return part;
  };
  while (at < text.size()) {
    Fact& fact = facts.emplace_back();
    fact.name = next(), fact.value = next(), fact.location = next();
  }
  return facts;
}

// Returns `value` as one line for a message. A long value begins shortly before its first difference from `other`.
std::string shown(const std::string& value, const std::string& other) {
  const auto differ = std::mismatch(value.begin(), value.end(), other.begin(), other.end());
  const auto same = static_cast<size_t>(differ.first - value.begin());
  const size_t from = value.size() > kShown && same > kShown / 2 ? same - kShown / 4 : 0;
  std::string text = (from > 0 ? "..." : "") + value.substr(from, kShown) + (value.size() > from + kShown ? "..." : "");
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string value_text(const Fact* fact, const Fact* other) {
  if (!fact) return "missing";
  const std::string value = shown(fact->value, other ? other->value : "");
  return fact->location.empty() ? value : concat(value, " (", fact->location, ")");
}

// Returns a text about the facts that differ: the first one with the values of both sides, and the names of some more.
std::string difference(const Facts& mine, const Facts& theirs, const std::string& their_host) {
  std::map<std::string, const Fact*> found;
  for (const Fact& fact : theirs) found[fact.name] = &fact;
  std::vector<std::pair<const Fact*, const Fact*>> differ;  // mine, theirs; null: this side does not have the fact
  for (const Fact& fact : mine) {
    const auto other = found.find(fact.name);
    if (other == found.end()) differ.push_back({&fact, nullptr});
    else if (other->second->value != fact.value) differ.push_back({&fact, other->second});
    if (other != found.end()) found.erase(other);
  }
  for (const auto& [name, fact] : found) differ.push_back({nullptr, fact});
  const auto& [own, other] = differ.at(0);
  const auto name = [](const auto& pair) { return (pair.first ? pair.first : pair.second)->name; };
  std::string text = concat(name(differ[0]), " is ", value_text(own, other), ", but on rank 0 (", their_host, ") it is ",
                            value_text(other, own));
  constexpr size_t kNamed = 5;             // with a wrong run file nearly all facts differ
  for (size_t i = 1; i < std::min(differ.size(), kNamed); ++i)
    text += concat(i == 1 ? "; also different: " : ", ", name(differ[i]));
  if (differ.size() > kNamed) text += concat(" and ", differ.size() - kNamed, " more");
  return text;
}

}  // namespace

Facts file_facts(const std::string& kind, const std::string& directory, bool weights) {
  Facts facts;
  std::error_code error;
  for (fs::directory_iterator item(directory, error), end; !error && item != end; item.increment(error)) {
    const std::string name = item->path().filename().string(), path = item->path().string();
    const bool tensors = name.ends_with(".safetensors");
    const bool read = tensors ? weights : name == "config.json" || name == "adapter_config.json" ||
                                              (weights && name.ends_with(".index.json"));
    if (read) facts.push_back({concat(kind, " ", name), describe_file(path, tensors), directory});
    if (name == "generation_config.json")
      facts.push_back({concat(kind, " ", name), describe_file(path, false), directory, true});
  }
  if (!error)
    for (const std::string& name : input_files(directory))
      facts.push_back({concat(kind, " ", name), describe_file(directory + "/" + name, false), directory});
  std::sort(facts.begin(), facts.end(), [](const Fact& a, const Fact& b) { return a.name < b.name; });
  return facts;
}

Fact whole_file_fact(const std::string& name, const std::string& path) {
  return {name, describe_file(path, false, INT64_MAX), path};
}

Fact data_fact(const std::string& key, const std::string& path, const Dataset& dataset) {
  io::Digest digest;
  dataset.identify([&](std::string_view text, int64_t bytes) { digest.add(text), digest.add(bytes); });
  return {concat("the data at ", key), concat(dataset.size(), " samples, digest ", digest.text()), path,
          key == "data.val_path"};
}

Facts template_facts(const EngineSettings& config, const std::string& text) {
  if (text.empty()) return {};
  io::Digest digest;
  digest.add(text);
  return {{"the text of data.chat_template", concat(text.size(), " bytes, ", digest.text()),
           config.data.chat_template.text}};
}

Facts read_facts(const EngineSettings& config, const RunData& data) {
  Facts facts = file_facts("model file", config.model.path, config.model.init == InitialWeights::pretrained);
  facts.push_back(data_fact("data.path", config.data.path, *data.training.dataset));
  if (!config.data.val_path.empty())
    facts.push_back(data_fact("data.val_path", config.data.val_path, *data.validation.dataset));
  // Texts are dealt to ranks by the rows of their pictures: all ranks need the same sizes.
  const std::string pictures = digest_of_pictures(data.training), of_validation = digest_of_pictures(data.validation);
  if (!pictures.empty()) facts.push_back({"the sizes of the pictures at data.path", pictures, config.data.path, false});
  if (!config.data.val_path.empty() && !of_validation.empty())
    facts.push_back({"the sizes of the pictures at data.val_path", of_validation, config.data.val_path, true});
  for (Fact& fact : template_facts(config, data.texts.chosen_template)) facts.push_back(std::move(fact));
  return facts;
}

void compare_facts(const World& world, const Facts& facts, const std::string& advice) {
  const uint64_t mine = digest_of(facts);
  uint64_t first = mine;
  world.broadcast(&first, sizeof first, 0);
  if (world.max(static_cast<int64_t>(mine != first)) == 0) return;
  const Facts theirs = unpacked(world.from_rank(0, packed(facts)));
  const std::string host = world.from_rank(0, world.host());
  world.agree(mine == first ? "" : difference(facts, theirs, host) + "; " + advice);
}

void check_same_files(const EngineSettings& config, const World& world) {
  if (world.size() == 1) return;
  Facts files;
  world.run_agreeing_on_errors([&] {
    files = file_facts("model file", config.model.path, config.model.init == InitialWeights::pretrained);
    if (config.adapter.path.empty()) return;
    for (Fact& fact : file_facts("adapter file", config.adapter.path, true)) files.push_back(std::move(fact));
  });
  compare_facts(world, files, "give all machines the same files");
}

void check_same_data(const EngineSettings& config, const RunData& data, const World& world) {
  if (world.size() == 1) return;
  Facts facts;
  world.run_agreeing_on_errors([&] { facts = read_facts(config, data); });
  compare_facts(world, facts, "give all machines the same data");
}

}  // namespace blipft
