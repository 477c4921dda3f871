// Texts that are tokenized before a run begins; see text_survey.h.
#include "loading/text_survey.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <numeric>

#include "blipft/error.h"
#include "loading/in_threads.h"
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
      // One token more than allowed shows that a text is too long. With a decoder_start, tokenize_answers() sets `cut`
      // for source and text itself.
      const int64_t more = settings.decoder_start < 0 ? 1 : 0;
      one.text = tokenize_answers(sample, tokenizer, settings.max_text_tokens + more, settings.vocabulary, {},
                                  settings.decoder_start);
    } catch (const UserError& error) {
      BLIPFT_USER_CHECK(settings.skip_bad, error.what(), "; data.on_bad_sample=skip leaves such samples out");
      one.bad = true;
      one.name = error.what();
      one.text = {};
      return;
    }
    for (TokenizedText& text : one.text.texts) {
      one.cut |= text.cut || text.size() > settings.max_text_tokens;
      const int64_t length = std::min(text.size(), settings.max_text_tokens);
      text.ids.resize(static_cast<size_t>(length));
      text.is_label.resize(static_cast<size_t>(length));
      one.learns |= text.has_target();
      one.length = std::max(one.length, length);
      one.source_length = std::max(one.source_length, text.source_size());
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
    if (keeps) texts_.push_back(std::move(one.text));
  }
}

SampleSet survey_samples(const LoadingSettings& loading, std::shared_ptr<const Dataset> dataset, const Tokenizer& tokenizer,
                         const ModelInputs& inputs, int64_t threads, int64_t requested, const char* key) {
  const int64_t size = dataset->size();
  const std::string& path = key == std::string("data.val_path") ? loading.data.val_path : loading.data.path;
  const TextSurvey::Settings settings{.samples = requested, .max_text_tokens = loading.data.max_text_tokens,
                                      .vocabulary = inputs.text.vocabulary, .threads = threads,
                                      .skip_bad = loading.data.on_bad_sample == FaultAction::skip,
                                      .decoder_start = inputs.decoder_start};
  auto survey = std::make_shared<TextSurvey>(*dataset, tokenizer, settings);
  BLIPFT_USER_CHECK(!survey->samples().empty(), location_of(loading, key), ": ", key, ": ", path, ": none of the ",
                    survey->surveyed(), " texts has a token to learn among its first ",
                    loading.data.max_text_tokens, " (data.max_text_tokens)",
                    survey->left_out_names().empty() ? "" : "; the first is " + survey->left_out_names().front(),
                    survey->bad() > 0 ? concat("; ", survey->bad(), " cannot be read: ", survey->bad_texts().front())
                                      : "");
  SampleSet set{std::move(dataset), requested > size ? requested : 0, survey};
  const bool all = static_cast<int64_t>(survey->samples().size()) == size;
  if (!all) set.dataset = std::make_shared<DatasetSubset>(set.dataset, survey->samples());
  return set;
}

std::string survey_text(const LoadingSettings& loading, const TextSurvey& survey) {
  std::string text = concat(survey.surveyed(), " texts");
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

/// Returns the size that texts of these lengths, and their sources if any, need. The text size has a minimum for steps
/// with empty slots: at least one row has a label, and a sample's last row has none, so one sample has two rows.
TextNeed need_of(const LoadingSettings& loading, std::span<const int64_t> lengths, std::span<const int64_t> sources) {
  const bool packed = packs_text(loading);
  const int64_t text = needed_size(packed, lengths, loading.steps.batch_size);
  return {std::max(text, packed ? loading.steps.batch_size + 1 : 2),
          needed_size(packed, sources, loading.steps.batch_size)};
}

/// The lengths of text and source for each sample of one rank's step.
struct StepLengths {
  std::vector<int64_t> text, source;
  explicit StepLengths(int64_t samples) : text(static_cast<size_t>(samples)), source(text.size()) {}
  /// Sets slot `location` to the lengths of a sample of `survey`; a negative sample is an empty slot.
  void set(size_t index, const TextSurvey& survey, int64_t sample) {
    text[index] = sample < 0 ? 0 : survey.lengths()[static_cast<size_t>(sample)];
    source[index] = sample < 0 ? 0 : survey.source_lengths()[static_cast<size_t>(sample)];
  }
  /// Reorders the samples as the loader distributes them over micro-batches.
  void balance(int64_t micro_batches) {
    std::vector<int64_t> all;
    for (size_t i = 0; i < text.size(); ++i) all.push_back(text[i] + source[i]);
    const StepLengths before = *this;
    const std::vector<size_t> order = balanced_order(all, micro_batches);
    for (size_t i = 0; i < order.size(); ++i) text[i] = before.text[order[i]], source[i] = before.source[order[i]];
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

/// How often the run's steps need which size.
std::map<TextNeed, int64_t> needs_of_steps(const LoadingSettings& loading, int64_t world, const SampleSet& samples) {
  const bool balances = balances_micro_batches(loading);
  const TextSurvey& survey = *samples.texts;
  const auto known = static_cast<int64_t>(survey.lengths().size());
  const int64_t batch = loading.steps.batch_size, micro_batches = loading.steps.accumulate_grad_batches;
  // One rank with the micro-batches of all: micro-batch m of rank r is its (m * world + r)-th.
  Sampler::Settings whole = sampler_settings(loading, 0, 1, known, samples.epoch_samples);
  whole.micro_batches *= world;
  const Sampler sampler(whole);
  const int64_t steps = count_steps(loading, sampler.steps_per_epoch());
  const int64_t seen = std::min(steps, std::max<int64_t>(1, kMaxSamplesSeen / (batch * micro_batches * world)));
  std::map<TextNeed, int64_t> needs;
  StepLengths lengths(batch * micro_batches);
  for (int64_t step = 0; step < seen; ++step) {
    const std::vector<Sampler::Slot> slots = sampler.slots(step);
    for (int64_t rank = 0; rank < world; ++rank) {
      for (int64_t i = 0; i < batch * micro_batches; ++i)
        lengths.set(static_cast<size_t>(i), survey,
                    slots[static_cast<size_t>((i / batch * world + rank) * batch + i % batch)].sample);
      if (balances) lengths.balance(micro_batches);
      ++needs[need_of(loading, lengths.text, lengths.source)];
    }
  }
  if (seen == steps) return needs;
  const bool repeats = samples.epoch_samples > known;  // later steps need at most the longest texts together
  const std::vector<int64_t> texts = longest_together(survey.lengths(), repeats, batch);
  const std::vector<int64_t> sources = longest_together(survey.source_lengths(), repeats, batch);
  const bool packed = packs_text(loading);
  needs.emplace(TextNeed{needed_size(packed, texts, batch), needed_size(packed, sources, batch)}, 0);
  return needs;
}

/// How often the steps of one validation need which size.
std::map<TextNeed, int64_t> needs_of_validation(const LoadingSettings& loading, int64_t world, const SampleSet& samples) {
  const auto known = samples.texts->lengths().size();
  const auto batch = static_cast<size_t>(loading.steps.batch_size);
  const auto steps = static_cast<size_t>(validation_steps(loading, world, static_cast<int64_t>(known)));
  std::map<TextNeed, int64_t> needs;
  for (size_t first = 0; first < known && first < steps * batch * static_cast<size_t>(world); first += batch) {
    StepLengths lengths(loading.steps.batch_size);  // the slots after the last sample are empty
    for (size_t i = 0; i < batch && first + i < known; ++i)
      lengths.set(i, *samples.texts, static_cast<int64_t>(first + i));
    ++needs[need_of(loading, lengths.text, lengths.source)];
  }
  return needs;
}

int64_t longest_of(const std::vector<int64_t>& lengths) { return *std::max_element(lengths.begin(), lengths.end()); }

/// One side of text shapes, text or source: the longest text, the maximum size, and the multiple to which sizes are
/// rounded up.
struct Side {
  int64_t longest = 0, maximum = 0, multiple = 8;
  Side(const LoadingSettings& loading, int64_t longest_text, int64_t max_needed) : maximum(max_needed) {
    // A sample with something to learn has two tokens at least, so that no shape is without labels.
    longest = std::min(round_up(longest_text, 8), std::max<int64_t>(loading.data.max_text_tokens, 2));
    const auto part = [&](int64_t parts) {
      return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(maximum / parts)));
    };
    if (packs_text(loading)) {
      multiple = std::max(std::clamp<int64_t>(part(16), 8, 64), part(512));
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
  if (loading.data.text_padding == TextPadding::max) return possible_text_shapes(loading, source > 0);
  const bool packed = packs_text(loading);
  std::map<TextNeed, int64_t> needs = needs_of_steps(loading, world, samples);
  if (validation.texts) {
    longest = std::max(longest, longest_of(validation.texts->lengths()));
    source = std::max(source, longest_of(validation.texts->source_lengths()));
    for (const auto& [need, count] : needs_of_validation(loading, world, validation)) needs[need] += count;
  }
  TextNeed maximum;
  for (const auto& [need, count] : needs) maximum = {std::max(maximum.text, need.text), std::max(maximum.source, need.source)};
  const Side texts(loading, longest, maximum.text), sources(loading, source, maximum.source);
  // Shapes by the rows of both sides together: each has the most of either side among what it is the first to hold.
  std::map<int64_t, int64_t> counts;
  std::map<int64_t, TextNeed> largest;
  for (const auto& [need, count] : needs) {
    const TextNeed rounded{texts.rounded(need.text), sources.rounded(need.source)};
    counts[rounded.all()] += count;
    TextNeed& of_size = largest[rounded.all()];
    of_size = {std::max(of_size.text, rounded.text), std::max(of_size.source, rounded.source)};
  }
  std::vector<TextShape> shapes;
  TextNeed held;
  auto next = largest.begin();
  for (const int64_t size : min_padded_sizes(counts, kMaxShapes)) {
    for (; next != largest.end() && next->first <= size; ++next)
      held = {std::max(held.text, next->second.text), std::max(held.source, next->second.source)};
    TextShape shape = packed ? TextShape{texts.longest, held.text} : TextShape{held.text, 0};
    if (source > 0 && packed) shape.source_tokens = sources.longest, shape.packed_source_rows = held.source;
    else if (source > 0) shape.source_tokens = held.source;
    shapes.push_back(shape);
  }
  return shapes;
}

TextShape mean_text_shape(const LoadingSettings& loading, int64_t world, const SampleSet& samples,
                          const std::vector<TextShape>& shapes) {
  TextShape mean = shapes.back();
  int64_t steps = 0;
  TextNeed sum;
  for (const auto& [need, count] : needs_of_steps(loading, world, samples)) {
    const auto held = std::find_if(shapes.begin(), shapes.end() - 1,
                                   [&](const TextShape& shape) { return holds(shape, need); });
    steps += count;
    sum = {sum.text + count * size_of(*held).text, sum.source + count * size_of(*held).source};
  }
  if (steps == 0) return mean;
  (mean.packed() ? mean.packed_rows : mean.tokens) = (sum.text + steps / 2) / steps;
  if (mean.source_tokens > 0)
    (mean.packed() ? mean.packed_source_rows : mean.source_tokens) = (sum.source + steps / 2) / steps;
  return mean;
}

}  // namespace blipft
