// Digests of weights and data, computed during the first steps; see content_check.h.
#include "checkpoint/content_check.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "io/crc32c.h"
#include "io/digest.h"

namespace blipft {

namespace {

constexpr int64_t kChunkBytes = int64_t{16} << 20;  // part of a file with its own checksum
constexpr int64_t kPieceOfChunk = int64_t{1} << 20;  // size of one read: it fits in the CPU's cache
constexpr const char* kContents = "contents of ";  // prefix of the names of facts

std::string name_of(const WeightFiles& source, const std::string& file) {
  return concat(source.kind, " ", std::filesystem::path(file).filename().string());
}

// Returns a value that is equal on two ranks if they have opened the same files, not copies.
uint64_t identity_of(const std::vector<WeightFiles>& sources) {
  io::Digest digest;
  for (const WeightFiles& source : sources)
    for (const auto& [file, bytes] : source.reader->files()) digest.add(source.reader->identity(file));
  return digest.value();
}

// Returns the bytes of the checksums, to be gathered.
std::string packed(const std::vector<uint32_t>& sums) {
  return {reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(uint32_t)};
}

}  // namespace

Fact data_content_fact(const std::string& key, const std::string& path, const Dataset& dataset) {
  io::Digest digest;
  dataset.identify_contents([&](std::string_view text, int64_t bytes) { digest.add(text), digest.add(bytes); });
  return {concat(kContents, "the data at ", key), concat("digest ", digest.text()), path, key == "data.val_path"};
}

void check_same_samples(const std::string& key, const std::string& path, const Dataset& dataset,
                        const World& world) {
  if (world.size() == 1) return;
  Facts facts;
  world.run_agreeing_on_errors([&] { facts = {data_fact(key, path, dataset), data_content_fact(key, path, dataset)}; });
  compare_facts(world, facts, "give all machines the same data");
}

std::vector<ContentCheck::Chunk> ContentCheck::chunks_of(const std::vector<WeightFiles>& sources) {
  std::vector<Chunk> chunks;
  for (const WeightFiles& source : sources)
    for (const auto& [file, bytes] : source.reader->files())
      for (int64_t at = 0; at < bytes; at += kChunkBytes)
        chunks.push_back({&source, file, at, std::min(kChunkBytes, bytes - at)});
  return chunks;
}

std::vector<uint32_t> ContentCheck::read(const std::vector<Chunk>& chunks, int64_t threads,
                                         const std::atomic<bool>& stops) {
  std::vector<uint32_t> sums(chunks.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    std::vector<char> piece(static_cast<size_t>(kPieceOfChunk));
    for (size_t i = next++; i < chunks.size() && !stops; i = next++) {
      const Chunk& chunk = chunks[i];
      for (int64_t at = 0; at < chunk.bytes; at += kPieceOfChunk) {
        const int64_t bytes = std::min(kPieceOfChunk, chunk.bytes - at);
        chunk.source->reader->read_file(chunk.file, chunk.offset + at, bytes, piece.data());
        sums[i] = io::crc32c(piece.data(), bytes, sums[i]);
      }
    }
  };
  std::vector<std::future<void>> others;
  const int64_t maximum = std::min<int64_t>(threads, static_cast<int64_t>(chunks.size()));
  for (int64_t i = 1; i < maximum; ++i) others.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& other : others) other.get();
  // If a file was modified meanwhile, the run may have loaded other bytes than these.
  for (const Chunk& chunk : chunks) chunk.source->reader->check_unchanged(chunk.file);
  return sums;
}

Facts ContentCheck::facts_of(const std::vector<Chunk>& chunks, const std::vector<uint32_t>& sums) {
  Facts facts;
  io::Digest digest;
  for (size_t i = 0; i < chunks.size(); ++i) {
    digest.add(static_cast<int64_t>(sums[i]));
    const bool last = i + 1 == chunks.size() || chunks[i + 1].file != chunks[i].file;
    if (!last) continue;
    facts.push_back({kContents + name_of(*chunks[i].source, chunks[i].file), concat("digest ", digest.text()),
                     chunks[i].file});
    digest = {};
  }
  return facts;
}

Facts content_facts(const WeightFiles& source, int64_t threads) {
  const std::vector<WeightFiles> sources = {source};
  const std::vector<ContentCheck::Chunk> chunks = ContentCheck::chunks_of(sources);
  return ContentCheck::facts_of(chunks, ContentCheck::read(chunks, threads, std::atomic<bool>(false)));
}

void check_same_weights(const RunSettings& config, const World& world, std::vector<WeightFiles> sources, int64_t threads) {
  if (world.size() == 1) return;
  const uint64_t mine = identity_of(sources);
  uint64_t first = mine;
  world.broadcast(&first, sizeof first, 0);
  if (world.any(mine == first ? 0 : 1) == 0) return;
  ContentCheck check(config, world, nullptr, threads);
  check.begin_weights(std::move(sources));
  check.finish();
}

ContentCheck::ContentCheck(const RunSettings& config, const World& world, const ResumePoint* resume, int64_t threads)
    : config_(config), world_(world), resume_(resume), threads_(std::max<int64_t>(1, threads)) {}

ContentCheck::~ContentCheck() { stops_ = true; }

void ContentCheck::begin_data(const RunData& data) {
  data_ = std::async(std::launch::async, [this, &data] {
    Facts facts = {data_content_fact("data.path", config_.data.path, *data.training.dataset)};
    if (!config_.data.val_path.empty())
      facts.push_back(data_content_fact("data.val_path", config_.data.val_path, *data.validation.dataset));
    return facts;
  });
}

void ContentCheck::begin_weights(std::vector<WeightFiles> sources) {
  sources_ = std::move(sources);
  chunks_ = chunks_of(sources_);
  const uint64_t mine = identity_of(sources_);
  files_of_ranks_.resize(static_cast<size_t>(world_.size()));
  world_.gather(&mine, sizeof mine, files_of_ranks_.data());
  world_.broadcast(files_of_ranks_.data(), static_cast<int64_t>(files_of_ranks_.size() * sizeof mine), 0);
  // The ranks that have opened the same files share the chunks: this rank reads every `sharing`-th chunk.
  const auto self = files_of_ranks_.begin() + world_.rank();
  const auto first = static_cast<size_t>(std::count(files_of_ranks_.begin(), self, mine));
  const auto sharing = static_cast<size_t>(std::count(files_of_ranks_.begin(), files_of_ranks_.end(), mine));
  std::vector<Chunk> own;
  for (size_t i = first; i < chunks_.size(); i += sharing) own.push_back(chunks_[i]);
  weights_ = std::async(std::launch::async, [this, own = std::move(own)] { return read(own, threads_, stops_); });
}

bool ContentCheck::ready() const {
  const auto has_ended = [](const auto& reading) {
    return reading.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  const uint64_t waits = has_ended(data_) && has_ended(weights_) ? 0 : 1;
  return (world_.size() > 1 ? world_.any(waits) : waits) == 0;
}

void ContentCheck::finish() {
  if (done_) return;
  Facts data;
  std::vector<uint32_t> mine;
  world_.run_agreeing_on_errors([&] {
    if (data_.valid()) data = data_.get();
    mine = weights_.get();
  });
  compare_facts(world_, data, "give all machines the same data");
  const std::vector<uint32_t> sums = compare_weights(mine);
  world_.run_agreeing_on_errors([&] {
    if (world_.rank() == 0) record(data, sums);
  });
  done_ = true;
  sources_.clear();
}

// Returns the checksums of all chunks of rank 0's files, on rank 0. If the checksums of another rank differ, throws
// AgreedError on all ranks; the message is that of the lowest such rank.
std::vector<uint32_t> ContentCheck::compare_weights(const std::vector<uint32_t>& mine) const {
  const std::vector<std::string> texts = world_.gather_texts(packed(mine));
  std::map<uint64_t, std::vector<uint32_t>> sums;
  std::map<uint64_t, int64_t> first_ranks;
  int64_t differing = -1;
  std::string difference;
  if (world_.rank() == 0) {
    std::map<uint64_t, size_t> before;     // number of earlier ranks with these files
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      const uint64_t files = files_of_ranks_[rank];
      const auto sharing = static_cast<size_t>(std::count(files_of_ranks_.begin(), files_of_ranks_.end(), files));
      std::vector<uint32_t>& all = sums[files];
      all.resize(chunks_.size());
      first_ranks.emplace(files, static_cast<int64_t>(rank));
      std::vector<uint32_t> theirs(texts[rank].size() / sizeof(uint32_t));
      std::memcpy(theirs.data(), texts[rank].data(), texts[rank].size());
      size_t chunk = before[files]++;
      for (const uint32_t sum : theirs) {
        if (chunk < all.size()) all[chunk] = sum;
        chunk += sharing;
      }
    }
    const std::vector<uint32_t>& own = sums[files_of_ranks_[0]];
    for (const auto& [files, rank] : first_ranks) {
      const auto differ = std::mismatch(own.begin(), own.end(), sums[files].begin());
      if (differ.first == own.end() || (differing >= 0 && rank > differing)) continue;
      const Chunk& chunk = chunks_[static_cast<size_t>(differ.first - own.begin())];
      differing = rank;
      difference = concat(name_of(*chunk.source, chunk.file), ": bytes ", chunk.offset, " to ", chunk.offset + chunk.bytes,
                          " have the checksum ", *differ.second, ", but on rank 0 (", world_.host(), ") ", *differ.first,
                          "; give all machines the same files");
    }
  }
  world_.broadcast(&differing, sizeof differing, 0);
  if (differing >= 0) {
    difference = world_.from_rank(0, difference);
    world_.agree(world_.rank() == differing ? difference : "");
  }
  return world_.rank() == 0 ? sums[files_of_ranks_[0]] : std::vector<uint32_t>();
}

// Records the facts. Facts of files that were not read now keep their values from the checkpoint that the run resumed
// from.
void ContentCheck::record(const Facts& data, const std::vector<uint32_t>& sums) {
  Facts facts = data;
  for (Fact& fact : facts_of(chunks_, sums)) facts.push_back(std::move(fact));
  if (resume_) {
    notes_ = check_same_content(config_, *resume_, facts);
    for (const auto& [name, value] : resume_->index.run)
      if (name.starts_with(kContents)) recorded_[name] = value;
  }
  for (const Fact& fact : facts) {
    const bool kept = std::all_of(sources_.begin(), sources_.end(), [&](const WeightFiles& source) {
      return source.recorded || !fact.name.starts_with(kContents + source.kind);
    });
    if (kept) recorded_[fact.name] = fact.value;
  }
}

}  // namespace blipft
