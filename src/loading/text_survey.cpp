// Texts that are tokenized before a run begins; see text_survey.h.
#include "loading/text_survey.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <numeric>

#include "blipft/error.h"
#include "loading/in_threads.h"
#include "loading/picture_reader.h"
#include "loading/sample_text.h"
#include "loading/step_order.h"
#include "loading/text_shapes.h"

namespace blipft {

namespace {

constexpr size_t kNamed = 5;                 // maximum number of names listed of samples that are left out
constexpr size_t kMaxShapes = 16;
constexpr int64_t kMaxSamplesSeen = int64_t{1} << 24;
constexpr int64_t kTextBytes = 128;          // memory of a text besides its tokens: two vectors and their allocations

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

struct Surveyed {
  TokenizedAnswers text;
  int64_t length = 0, source_length = 0;
  TextNeed pictures;
  bool learns = false, cut = false, bad = false;
  std::string name;                          // sample without a target: its name; bad sample: its error
};

}  // namespace

TextSurvey::TextSurvey(const Dataset& dataset, const Tokenizer& tokenizer, const Settings& settings) {
  surveyed_ = settings.samples > 0 ? std::min(settings.samples, dataset.size()) : dataset.size();
  std::vector<Surveyed> all(static_cast<size_t>(surveyed_));
  std::atomic<int64_t> bytes{0};
  for_each_in_threads(surveyed_, settings.threads, [&](int64_t i) {
    Surveyed& one = all[static_cast<size_t>(i)];
    try {
      const Dataset::Sample sample = dataset.read(i);
      one.name = sample.name;
      one.text = tokenize_answers(sample, tokenizer, settings.max_text_tokens, settings.vocabulary, {}, settings.decoder_start,
                                  settings.pictures);
    } catch (const UserError& error) {
      BLIPFT_USER_CHECK(settings.skip_bad, error.what(), "; data.on_bad_sample=skip leaves such samples out");
      one.bad = true;
      one.name = error.what();
      one.text = {};
      return;
    }
    for (const TokenizedText& text : one.text.texts) {
      one.cut |= text.cut;
      one.learns |= text.has_target();
      one.length = std::max(one.length, text.size());
      one.source_length = std::max(one.source_length, text.source_size());
      if (settings.pictures) one.pictures.include({0, 0, pictures_of(text.pictures, settings.pictures->patches)});
    }
    if (one.learns) one.name.clear();
    const auto texts = static_cast<int64_t>(one.text.texts.size());
    if (bytes.fetch_add(kTextBytes * texts + one.text.tokens() * 5) > settings.max_bytes) one.text = {};
  });
  const bool keeps = bytes <= settings.max_bytes;
  for (int64_t i = 0; i < surveyed_; ++i) {
    Surveyed& one = all[static_cast<size_t>(i)];
    cut_ += one.cut;
    if (one.bad) {
      ++bad_;
      if (bad_texts_.size() < kNamed) bad_texts_.push_back(one.name);
      continue;
    }
    if (!one.learns) {
      if (left_out_names_.size() < kNamed) left_out_names_.push_back(one.name);
      continue;
    }
    samples_.push_back(i);
    lengths_.push_back(one.length);
    source_lengths_.push_back(one.source_length);
    if (settings.pictures) pictures_.push_back(one.pictures.pictures);
    if (keeps) texts_.push_back(std::move(one.text));
  }
}

std::vector<int64_t> TextSurvey::work() const {
  std::vector<int64_t> rows;
  for (size_t i = 0; i < lengths_.size(); ++i)
    rows.push_back(lengths_[i] + source_lengths_[i] + (pictures_.empty() ? 0 : pictures_[i].rows));
  return rows;
}

SampleSet survey_samples(const LoadingSettings& loading, const SampleSet& samples, const Tokenizer& tokenizer,
                         const ModelInputs& inputs, int64_t threads, const char* key) {
  const int64_t size = samples.dataset->size(), requested = samples.epoch_samples;
  const std::string& path = key == std::string("data.val_path") ? loading.data.val_path : loading.data.path;
  const TextSurvey::Settings settings{.samples = requested, .max_text_tokens = loading.data.max_text_tokens,
                                      .vocabulary = inputs.text.vocabulary, .threads = threads,
                                      .skip_bad = loading.data.on_bad_sample == FaultAction::skip,
                                      .decoder_start = inputs.decoder_start,
                                      .pictures = samples.pictures.get()};
  auto survey = std::make_shared<TextSurvey>(*samples.dataset, tokenizer, settings);
  BLIPFT_USER_CHECK(!survey->samples().empty(), location_of(loading, key), ": ", key, ": ", path, ": none of the ",
                    survey->surveyed(), " texts has a token to learn among its first ",
                    loading.data.max_text_tokens, " (data.max_text_tokens)",
                    survey->left_out_names().empty() ? "" : "; the first is " + survey->left_out_names().front(),
                    survey->bad() > 0 ? concat("; ", survey->bad(), " cannot be read: ", survey->bad_texts().front())
                                      : "");
  SampleSet set{samples.dataset, requested > size ? requested : 0, survey, samples.pictures};
  const bool all = static_cast<int64_t>(survey->samples().size()) == size;
  if (!all) set.dataset = std::make_shared<DatasetSubset>(set.dataset, survey->samples());
  return set;
}

bool deals_to_ranks(const LoadingSettings& loading, const SampleSet& samples) {
  return samples.texts && samples.pictures && packs_text(loading) &&
         loading.steps.loss_normalization == LossNormalization::tokens;
}

std::string survey_text(const LoadingSettings& loading, const TextSurvey& survey) {
  std::string text = concat(survey.surveyed(), " texts");
  PictureShape pictures;
  for (const PictureShape& one : survey.pictures()) pictures.rows += one.rows, pictures.count += one.count;
  if (pictures.count > 0)
    text += concat(" with ", counted(pictures.count, "picture"), " of ", (pictures.rows + pictures.count / 2) / pictures.count,
                   " rows on average");
  if (survey.cut() > 0)
    text += concat(", ", survey.cut(), " cut to data.max_text_tokens ", loading.data.max_text_tokens);
  const auto list = [&](int64_t count, const char* why, const std::vector<std::string>& names) {
    if (count == 0) return;
    text += concat(", ", count, why, " (");
    for (const std::string& name : names) text += concat(&name == &names.front() ? "" : ", ", name);
    text += count > static_cast<int64_t>(names.size()) ? ", ...)" : ")";
  };
  list(survey.left_out(), " left out that have nothing to learn", survey.left_out_names());
  list(survey.bad(), " skipped that cannot be read", survey.bad_texts());
  return text;
}

namespace {

/// The lengths of text and source for each sample of one rank's step.
struct StepLengths {
  std::vector<int64_t> text, source;
  std::vector<PictureShape> pictures;
  explicit StepLengths(int64_t samples) : text(static_cast<size_t>(samples)), source(text.size()), pictures(text.size()) {}
  /// Sets slot `index` to the lengths of a sample of `survey`; a negative sample is an empty slot.
  void set(size_t index, const TextSurvey& survey, int64_t sample) {
    const auto i = static_cast<size_t>(std::max<int64_t>(sample, 0));
    text[index] = sample < 0 ? 0 : survey.lengths()[i];
    source[index] = sample < 0 ? 0 : survey.source_lengths()[i];
    pictures[index] = sample < 0 || survey.pictures().empty() ? PictureShape{} : survey.pictures()[i];
  }
  /// Returns the size that the step needs. The text size has a minimum for steps with empty slots: at least one row has a
  /// label, and a sample's last row has none, so one sample has two rows.
  TextNeed need(const LoadingSettings& loading, const PatchInputs& patches, int64_t largest) const {
    const bool packed = packs_text(loading);
    const int64_t batch = loading.steps.batch_size;
    return {std::max(needed_size(packed, text, batch), packed ? batch + 1 : 2), needed_size(packed, source, batch),
            needed_pictures(pictures, batch, patches, largest)};
  }
  /// Reorders the samples as the loader distributes them over micro-batches.
  void balance(int64_t micro_batches) {
    std::vector<int64_t> all;
    for (size_t i = 0; i < text.size(); ++i) all.push_back(text[i] + source[i]);
    const StepLengths before = *this;
    const std::vector<size_t> order = balanced_order(all, micro_batches);
    for (size_t i = 0; i < order.size(); ++i)
      text[i] = before.text[order[i]], source[i] = before.source[order[i]], pictures[i] = before.pictures[order[i]];
  }
};

/// Returns the lengths of the `batch` longest texts of a set. If the set repeats, the longest text may occur several
/// times.
std::vector<int64_t> longest_together(std::vector<int64_t> lengths, bool repeats, int64_t batch) {
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  if (repeats) std::fill(lengths.begin(), lengths.end(), lengths.front());
  lengths.resize(static_cast<size_t>(batch), lengths.front());
  return lengths;
}

/// Returns what the pictures of any `batch` samples need at most.
PictureShape largest_pictures(const std::vector<PictureShape>& pictures, bool repeats, int64_t batch) {
  if (pictures.empty()) return {};
  const auto most = [&](int64_t PictureShape::*member, int64_t samples) {
    std::vector<int64_t> values;
    for (const PictureShape& one : pictures) values.push_back(one.*member);
    values = longest_together(std::move(values), repeats, samples);
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  };
  return {most(&PictureShape::rows, batch), most(&PictureShape::count, batch), most(&PictureShape::largest, 1),
          most(&PictureShape::windows, batch)};
}

PatchInputs patches_of(const SampleSet& samples) { return samples.pictures ? samples.pictures->patches : PatchInputs{}; }

/// How often the run's steps need which size. `largest`: rows of the largest picture.
std::map<TextNeed, int64_t> needs_of_steps(const LoadingSettings& loading, int64_t world, const SampleSet& samples, int64_t largest) {
  const bool balances = balances_micro_batches(loading);
  const TextSurvey& survey = *samples.texts;
  const auto known = static_cast<int64_t>(survey.lengths().size());
  const int64_t batch = loading.steps.batch_size, micro_batches = loading.steps.accumulate_grad_batches;
  const Sampler sampler(sampler_of_all_ranks(loading, world, known, samples.epoch_samples));
  const bool deals = deals_to_ranks(loading, samples);
  const std::vector<int64_t> work = survey.work();
  const int64_t steps = count_steps(loading, sampler.steps_per_epoch());
  const int64_t seen = std::min(steps, std::max<int64_t>(1, kMaxSamplesSeen / (batch * micro_batches * world)));
  std::map<TextNeed, int64_t> needs;
  StepLengths lengths(batch * micro_batches);
  for (int64_t step = 0; step < seen; ++step) {
    std::vector<Sampler::Slot> slots = sampler.slots(step);
    if (deals) slots = dealt_slots(slots, work, micro_batches * world);
    for (int64_t rank = 0; rank < world; ++rank) {
      for (int64_t i = 0; i < batch * micro_batches; ++i)
        lengths.set(static_cast<size_t>(i), survey,
                    slots[static_cast<size_t>((i / batch * world + rank) * batch + i % batch)].sample);
      if (balances && !deals) lengths.balance(micro_batches);
      ++needs[lengths.need(loading, patches_of(samples), largest)];
    }
  }
  if (seen == steps) return needs;
  const bool repeats = samples.epoch_samples > known;  // later steps need at most the longest texts together
  const std::vector<int64_t> texts = longest_together(survey.lengths(), repeats, batch);
  const std::vector<int64_t> sources = longest_together(survey.source_lengths(), repeats, batch);
  const bool packed = packs_text(loading);
  needs.emplace(TextNeed{needed_size(packed, texts, batch), needed_size(packed, sources, batch),
                         largest_pictures(survey.pictures(), repeats, batch)}, 0);
  return needs;
}

/// How often the steps of one validation need which size.
std::map<TextNeed, int64_t> needs_of_validation(const LoadingSettings& loading, int64_t world, const SampleSet& samples, int64_t largest) {
  const auto known = samples.texts->lengths().size();
  const auto batch = static_cast<size_t>(loading.steps.batch_size);
  const auto steps = static_cast<size_t>(validation_steps(loading, world, static_cast<int64_t>(known)));
  std::map<TextNeed, int64_t> needs;
  for (size_t first = 0; first < known && first < steps * batch * static_cast<size_t>(world); first += batch) {
    StepLengths lengths(loading.steps.batch_size);  // the slots after the last sample are empty
    for (size_t i = 0; i < batch && first + i < known; ++i)
      lengths.set(i, *samples.texts, static_cast<int64_t>(first + i));
    ++needs[lengths.need(loading, patches_of(samples), largest)];
  }
  return needs;
}

int64_t longest_of(const std::vector<int64_t>& lengths) { return *std::max_element(lengths.begin(), lengths.end()); }

/// Returns the multiple to which packed rows are rounded up if a step needs at most `maximum`. With pictures, steps differ
/// in two sizes, and rounding adds to what the shapes leave of both.
int64_t packed_multiple(int64_t maximum, bool with_pictures) {
  const auto part = [&](int64_t parts) {
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(maximum / parts)));
  };
  return std::max(std::clamp<int64_t>(part(16), 8, with_pictures ? 16 : 64), part(512));
}

/// One side of text shapes, text or source: the longest text, the maximum size, and the multiple to which sizes are
/// rounded up.
struct Side {
  int64_t longest = 0, maximum = 0, multiple = 8;
  /// `limit`: of one text.
  Side(const LoadingSettings& loading, int64_t longest_text, int64_t max_needed, int64_t limit, bool with_pictures)
      : maximum(max_needed) {
    // A sample with something to learn has two tokens at least, so that no shape is without labels.
    longest = std::min(round_up(longest_text, 8), std::max<int64_t>(limit, 2));
    if (packs_text(loading)) {
      multiple = packed_multiple(maximum, with_pictures);
      maximum = loading.steps.batch_size * longest;
    } else {
      maximum = longest;
    }
  }
  int64_t rounded(int64_t size) const { return size == 0 ? 0 : std::min(round_up(size, multiple), maximum); }
};

}  // namespace

std::vector<TextShape> surveyed_text_shapes(const LoadingSettings& loading, int64_t world, const SampleSet& samples,
                                            const SampleSet& validation) {
  int64_t longest = longest_of(samples.texts->lengths()), source = longest_of(samples.texts->source_lengths());
  const PictureReader* const reader = samples.pictures.get();
  int64_t largest_picture = 0;
  for (const SampleSet* set : {&samples, &validation})
    if (set->texts)
      for (const PictureShape& one : set->texts->pictures()) largest_picture = std::max(largest_picture, one.largest);
  if (loading.data.text_padding == TextPadding::max) return possible_text_shapes(loading, source > 0);
  const bool packed = packs_text(loading);
  std::map<TextNeed, int64_t> needs = needs_of_steps(loading, world, samples, largest_picture);
  if (validation.texts) {
    longest = std::max(longest, longest_of(validation.texts->lengths()));
    source = std::max(source, longest_of(validation.texts->source_lengths()));
    for (const auto& [need, count] : needs_of_validation(loading, world, validation, largest_picture)) needs[need] += count;
  }
  TextNeed maximum;
  for (const auto& [need, count] : needs) maximum.include(need);
  const int64_t limit = loading.data.max_text_tokens;
  const Side texts(loading, longest, maximum.text, reader ? reader->max_rows : limit, reader), sources(loading, source, maximum.source, limit, false);
  const int64_t picture_multiple = packed_multiple(maximum.pictures.rows, true);
  // Shapes by the rows of all sides together: each has the most of each side among what it is the first to hold.
  std::map<int64_t, int64_t> counts_of_sums, counts;
  std::map<int64_t, TextNeed> largest, held_by_size;
  for (const auto& [need, count] : needs) {
    TextNeed rounded{texts.rounded(need.text), sources.rounded(need.source), need.pictures};
    rounded.pictures.rows = round_up(need.pictures.rows, picture_multiple);
    counts_of_sums[rounded.all()] += count;
    largest[rounded.all()].include(rounded);
  }
  TextNeed held{0, 0, {.largest = largest_picture}};
  for (const auto& [sum, of_sum] : largest) {
    held.include(of_sum);
    const int64_t size = reader ? held.all() : sum;
    counts[size] += counts_of_sums[sum];
    held_by_size[size] = held;
  }
  std::vector<TextShape> shapes;
  for (const int64_t size : min_padded_sizes(counts, kMaxShapes)) {
    held = held_by_size[size];
    TextShape shape = packed ? TextShape{texts.longest, held.text} : TextShape{held.text, 0};
    if (source > 0 && packed) shape.source_tokens = sources.longest, shape.packed_source_rows = held.source;
    else if (source > 0) shape.source_tokens = held.source;
    if (reader) shape.pictures = padded_pictures(held.pictures, reader->patches, picture_multiple);
    // A shape that has only more or smaller pictures than the one before takes its place.
    const bool same_rows = reader && !shapes.empty() && size_of(shapes.back()).text == size_of(shape).text &&
                           shapes.back().pictures.rows == shape.pictures.rows;
    if (same_rows) shapes.pop_back();
    shapes.push_back(shape);
  }
  return shapes;
}

TextShape mean_text_shape(const LoadingSettings& loading, int64_t world, const SampleSet& samples,
                          const std::vector<TextShape>& shapes) {
  TextShape mean = shapes.back();
  std::map<const TextShape*, int64_t> counts;
  int64_t steps = 0;
  for (const auto& [need, count] : needs_of_steps(loading, world, samples, mean.pictures.largest)) {
    const auto held = std::find_if(shapes.begin(), shapes.end() - 1,
                                   [&](const TextShape& shape) { return holds(shape, need, patches_of(samples)); });
    counts[&*held] += count;
    steps += count;
  }
  if (steps == 0) return mean;
  const auto average = [&](const auto& of) {
    int64_t sum = 0;
    for (const auto& [shape, count] : counts) sum += count * of(*shape);
    return (sum + steps / 2) / steps;
  };
  (mean.packed() ? mean.packed_rows : mean.tokens) = average([](const TextShape& shape) { return size_of(shape).text; });
  if (mean.source_tokens > 0)
    (mean.packed() ? mean.packed_source_rows : mean.source_tokens) =
        average([](const TextShape& shape) { return size_of(shape).source; });
  mean.pictures.rows = average([](const TextShape& shape) { return shape.pictures.rows; });
  mean.pictures.count = average([](const TextShape& shape) { return shape.pictures.count; });
  return mean;
}

}  // namespace blipft
