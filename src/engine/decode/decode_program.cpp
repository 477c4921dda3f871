// Passes that read prompts and decode; see decode_program.h.
#include "engine/decode/decode_program.h"

#include <algorithm>
#include <cstring>

#include "engine/decode/decode_state.h"
#include "ops/beam_search.h"

namespace blipft {

DecodeProgram::DecodeProgram(const DecodeParts& parts, DecodeProgramSettings settings)
    : parts_(parts), settings_(std::move(settings)), inputs_(parts.model->inputs()),
      layout_(inputs_, 1, settings_.prompts, settings_.prompt_text), state_(std::make_unique<State>()) {
  const DecodeProgramSettings& s = settings_;
  BLIPFT_CHECK(s.beams >= 1 && s.slots >= s.beams && s.slots % s.beams == 0, s.slots, " slots for ", s.beams, " beams");
  BLIPFT_CHECK(!inputs_.has_source() || s.prompt_text.packed_source_rows == s.prompts * s.prompt_text.source_tokens,
               "sources of ", s.prompt_text.packed_source_rows, " rows, and any ", s.prompts, " prompts of ",
               s.prompt_text.source_tokens, " ids are to fit");
  BLIPFT_CHECK(s.max_ids >= 2 && s.prompts >= 1 && s.prompt_text.packed(), "generation of ", s.max_ids, " ids, ",
               s.prompts, " prompts at once, packed");
  if (parts_.own_workspace)
    workspace_ = parts_.arena->persistent(Owner::workspace, "workspace of the ops", DType::u8, {2 * kWorkspaceBytes});
  Block data, cache;
  lay_out(data, cache, *state_);
  data_bytes_ = data.bytes();
  cache_bytes_ = cache.bytes();
}

DecodeProgram::~DecodeProgram() = default;

int64_t DecodeProgram::cache_bytes() const { return cache_bytes_; }

const char* DecodeProgram::pass_name(Pass pass) {
  switch (pass) {
    case Pass::prompts: return "reading of prompts";
    case Pass::token: return "token of every slot";
    case Pass::scores: return "scoring of texts";
    case Pass::units: return "gathering of all units";
  }
  return "?";
}

void DecodeProgram::lay_out(Block& data, Block& cache, State& state) const {
  const int64_t s = settings_.slots, l = settings_.max_ids, g = settings_.prompts, b = settings_.beams;
  const int64_t v = inputs_.text.vocabulary, rows = layout_.rows(), c = positions();
  const auto i32 = [&](const Shape& shape) { return data.add(DType::i32, shape); };
  state.batch = data.add(DType::u8, {layout_.bytes()});
  state.row_slots = i32({rows});
  state.row_positions = i32({rows});
  state.last_rows = i32({g, 1});
  state.prompt_slots = i32({g});
  state.prompt_limits = i32({g});
  const bool has_deltas = inputs_.text.position_axes == 3;
  if (has_deltas) state.prompt_deltas = i32({g});
  if (inputs_.has_source()) {
    state.memory_slots = i32({layout_.rows(BatchStream::source)});
    state.memory_positions = i32({layout_.rows(BatchStream::source)});
  }
  state.prompt_bytes = data.bytes();
  state.decode = {.ids = i32({s, l}), .lengths = i32({s}), .prompt_lengths = i32({s}), .limits = i32({s}),
                  .keys = data.add(DType::i64, {s}), .done = i32({s})};
  if (!settings_.ends.empty()) state.ends = i32({static_cast<int64_t>(settings_.ends.size())});
  state.tokens = i32({s, 1});
  state.row_of_slot = i32({s});
  state.lengths = i32({s});
  if (has_deltas) state.slot_deltas = i32({s}), state.rotary_positions = i32({s});
  state.scores = data.add(DType::f32, {std::max(s, g * b), v});
  state.log_probs = data.add(DType::f32, {s, l});
  if (settings_.scores) {
    state.row_loss = data.add(DType::f32, {layout_.labels()});
    state.loss = data.add(DType::f32, {1});
    state.loss_weight = data.add(DType::f32, {1});
  }
  if (b > 1) {
    state.sources = i32({s, c});
    state.sources_before = i32({s, c});
    state.ids_before = i32({s, l});
    state.beam_scores = data.add(DType::f32, {texts(), b});
    state.finished_scores = data.add(DType::f32, {texts(), b});
    state.finished_ids = i32({texts(), b, l});
    state.finished_lengths = i32({texts(), b});
    state.closed = i32({texts()});
  }
  const auto add_caches = [&](std::vector<KvCache>& layers, const std::vector<int64_t>& widths, int64_t slots,
                              int64_t each) {
    layers.clear();
    for (const int64_t width : widths) {
      const Tensor keys = cache.add(parts_.compute, {slots * each, width});
      layers.push_back({keys, cache.add(parts_.compute, keys.shape), each});
    }
  };
  add_caches(state.layers, parts_.model->cache_widths(), s, c);
  if (!inputs_.has_source()) return;
  state.memory_lengths = i32({s});
  if (b > 1) state.memory_sources = i32({s, memory_positions()});
  add_caches(state.memory_layers, parts_.model->memory_widths(), texts(), memory_positions());
}

bool DecodeProgram::has(Pass pass) const {
  return pass == Pass::scores ? settings_.scores : pass != Pass::units || settings_.keeps_units;
}

std::vector<std::string> DecodeProgram::passes() const {
  std::vector<std::string> names;
  for (const Pass pass : {Pass::units, Pass::prompts, Pass::token, Pass::scores})
    if (has(pass)) names.push_back(pass_name(pass));
  return names;
}

void DecodeProgram::record_passes() {
  for (const Pass pass : {Pass::units, Pass::prompts, Pass::token, Pass::scores})
    if (has(pass)) enqueue(pass);
}

void DecodeProgram::bind() {
  Device& device = *parts_.device;
  if (parts_.own_workspace) {
    workspace_ = parts_.arena->resolve(workspace_);
    parts_.ops->set_workspace(workspace_);
  }
  forked_ = device.create_event();
  joined_ = device.create_event();
  copied_ = device.create_event();
  host_block_ = std::make_unique<HostMemory>(device, state_->prompt_bytes);
  const int64_t s = settings_.slots, l = settings_.max_ids;
  const int64_t view = 4 * (2 * s * l + 2 * s + s * l + 2 * s) + 8 * Block::kAlignment;
  for (int64_t i = 0; i < kViews; ++i) views_.push_back(std::make_unique<Readback>(device, view));
  const char* const pass = pass_name(Pass::prompts);
  Block data(parts_.arena->kept(pass, 1).data), cache(parts_.arena->kept(pass, 0).data);
  lay_out(data, cache, *state_);
}

void DecodeProgram::begin() {
  const Stream stream = parts_.device->compute_stream();
  const State& state = *state_;
  parts_.device->synchronize(stream);
  if (has(Pass::units)) run(Pass::units);
  for (const Tensor& tensor : {state.decode.ids, state.decode.lengths, state.decode.prompt_lengths, state.decode.limits,
                               state.decode.keys, state.decode.done, state.sources, state.finished_lengths,
                               state.finished_ids, state.closed, state.log_probs, state.memory_lengths, state.slot_deltas})
    if (tensor) parts_.device->zero(tensor.data, tensor.bytes(), stream);
  for (const Tensor& tensor : {state.beam_scores, state.finished_scores})
    if (tensor) parts_.ops->fill(tensor, kNoBeamScore, stream);
  // Unused cache rows must not contain NaN: a NaN times a probability of 0 is NaN.
  for (const std::vector<KvCache>* layers : {&state.layers, &state.memory_layers})
    for (const KvCache& layer : *layers)
      for (const Tensor& tensor : {layer.keys, layer.values}) parts_.device->zero(tensor.data, tensor.bytes(), stream);
  begin_memory();
  if (state.ends) {
    parts_.device->copy(state.ends.data, settings_.ends.data(), state.ends.bytes(), stream);
    parts_.device->synchronize(stream);    // `ends` is not page-locked
  }
  sent_ = seen_ = 0;
}

// Lets all beams of a text attend to the encoder output of its prompt.
void DecodeProgram::begin_memory() {
  if (!state_->memory_sources) return;
  std::vector<int32_t> sources;
  for (int64_t s = 0; s < settings_.slots; ++s)
    sources.insert(sources.end(), static_cast<size_t>(memory_positions()), static_cast<int32_t>(s / settings_.beams));
  const Stream stream = parts_.device->compute_stream();
  parts_.device->copy(state_->memory_sources.data, sources.data(), state_->memory_sources.bytes(), stream);
  parts_.device->synchronize(stream);      // `sources` is not page-locked
}

bool DecodeProgram::fits(int64_t prompts, int64_t ids) const {
  if (inputs_.has_source()) return prompts <= settings_.prompts;
  const int64_t others = settings_.prompts - prompts;  // empty slots use one row each
  return prompts <= settings_.prompts && ids + others <= settings_.prompt_text.packed_rows;
}

// Writes at most G samples, with pictures if the model reads any, to the host block. The other slots stay empty.
void DecodeProgram::write_batch(std::vector<BatchSample>& samples, std::span<const uint8_t* const> pixels) {
  parts_.device->synchronize(copied_);      // the previous batch has been copied
  char* const block = host_block_->get();
  const auto bytes = static_cast<size_t>(3 * inputs_.picture_size * inputs_.picture_size);
  const auto pictures = inputs_.has_picture() ? static_cast<int64_t>(samples.size()) : 0;
#pragma omp parallel for                   // the device waits for these copies
  for (int64_t i = 0; i < pictures; ++i)
    std::memcpy(BatchWriter::pixels(layout_, block, i), pixels[static_cast<size_t>(i)], bytes);
  BatchSample absent;
  absent.absent = true;
  samples.resize(static_cast<size_t>(settings_.prompts), absent);
  BatchWriter(parts_.pad_id, false).write(layout_, samples, block);
}

// Returns the difference between position and index of the rows behind these pictures: see text_positions().
static int32_t position_delta(const std::vector<PictureSegment>& pictures) {
  int64_t delta = 0;
  for (const PictureSegment& picture : pictures) delta += std::max(picture.height, picture.width) - picture.cells();
  return static_cast<int32_t>(delta);
}

// Writes the host block: the batch, the cache position of each row, and the slots and limits of the texts.
void DecodeProgram::write_prompts(std::span<const NewText> texts) {
  char* const block = host_block_->get();
  State host;
  Block data(block), cache;
  lay_out(data, cache, host);
  std::vector<BatchSample> samples;
  std::vector<const uint8_t*> pixels;
  for (const NewText& text : texts) {
    BatchSample sample{{}, text.key};
    if (inputs_.has_source()) sample.text.ids = {inputs_.decoder_start}, sample.text.source = text.ids;
    else sample.text.ids = text.ids;
    sample.text.instruction = text.instruction;
    sample.text.pictures = text.pictures;
    sample.text.is_label.assign(sample.text.ids.size(), 0);
    samples.push_back(std::move(sample));
    pixels.push_back(text.pixels);
  }
  write_batch(samples, pixels);
  const MicroBatch batch = layout_.micro_batch(block, 0);
  std::fill_n(host.row_slots.as<int32_t>(), host.row_slots.numel(), -1);
  std::fill_n(host.row_positions.as<int32_t>(), host.row_positions.numel(), -1);
  const int32_t* starts = batch.text.packing.starts.as<const int32_t>();
  for (size_t i = 0; i < samples.size(); ++i) {
    const int32_t start = starts[i];
    host.last_rows.as<int32_t>()[i] = start;
    host.prompt_slots.as<int32_t>()[i] = -1;
    host.prompt_limits.as<int32_t>()[i] = 0;
    if (host.prompt_deltas) host.prompt_deltas.as<int32_t>()[i] = position_delta(samples[i].text.pictures);
    if (samples[i].absent) continue;
    const auto rows = static_cast<int32_t>(inputs_.text.first_rows + ids_before(static_cast<int64_t>(texts[i].ids.size())));
    for (int32_t t = 0; t < rows; ++t) {
      host.row_slots.as<int32_t>()[start + t] = static_cast<int32_t>(texts[i].slot);
      host.row_positions.as<int32_t>()[start + t] = t;
    }
    host.last_rows.as<int32_t>()[i] = start + rows - 1;
    host.prompt_slots.as<int32_t>()[i] = static_cast<int32_t>(texts[i].slot / settings_.beams);
    host.prompt_limits.as<int32_t>()[i] = static_cast<int32_t>(texts[i].limit);
  }
  if (inputs_.has_source()) write_memory_rows(texts, batch, host);
}

// Writes the cache positions of the encoder's rows.
void DecodeProgram::write_memory_rows(std::span<const NewText> texts, const MicroBatch& batch, State& host) const {
  std::fill_n(host.memory_slots.as<int32_t>(), host.memory_slots.numel(), -1);
  std::fill_n(host.memory_positions.as<int32_t>(), host.memory_positions.numel(), -1);
  for (size_t i = 0; i < texts.size(); ++i) {
    const int32_t start = batch.source.packing.starts.as<const int32_t>()[i];
    for (int32_t t = 0; t < batch.source.key_lengths.as<const int32_t>()[i]; ++t) {
      host.memory_slots.as<int32_t>()[start + t] = static_cast<int32_t>(texts[i].slot / settings_.beams);
      host.memory_positions.as<int32_t>()[start + t] = t;
    }
  }
}

void DecodeProgram::read_prompts(std::span<const NewText> texts) {
  Device& device = *parts_.device;
  const Stream stream = device.compute_stream();
  int64_t ids = 0;
  for (const NewText& text : texts) {
    const auto count = static_cast<int64_t>(text.ids.size());
    const TextShape& shape = settings_.prompt_text;
    BLIPFT_CHECK(count >= 1 && ids_before(count) < text.limit && text.limit <= settings_.max_ids &&
                     count <= (inputs_.has_source() ? shape.source_tokens : shape.tokens),
                 "a prompt of ", count, " ids that is to end at ", text.limit);
    BLIPFT_CHECK(text.slot >= 0 && text.slot + settings_.beams <= settings_.slots && text.slot % settings_.beams == 0,
                 "no slot ", text.slot);
    ids += count;
  }
  BLIPFT_CHECK(fits(static_cast<int64_t>(texts.size()), ids), texts.size(), " prompts of ", ids,
               " ids do not fit a reading");
  write_prompts(texts);
  device.copy(state_->batch.data, host_block_->get(), state_->prompt_bytes, stream);
  device.record(copied_, stream);
  run(Pass::prompts);
}

std::vector<TextLikelihood> DecodeProgram::score(std::span<const BatchSample> texts,
                                                 std::span<const uint8_t* const> pixels) {
  BLIPFT_CHECK(settings_.scores && static_cast<int64_t>(texts.size()) <= settings_.prompts, texts.size(),
               " texts to be scored");
  Device& device = *parts_.device;
  const Stream stream = device.compute_stream();
  std::vector<BatchSample> samples(texts.begin(), texts.end());
  write_batch(samples, pixels);
  device.copy(state_->batch.data, host_block_->get(), layout_.bytes(), stream);
  device.record(copied_, stream);
  run(Pass::scores);
  std::vector<float> losses(static_cast<size_t>(layout_.labels()));
  device.copy(losses.data(), state_->row_loss.data, state_->row_loss.bytes(), stream);
  device.synchronize(stream);
  // The labels of a sample are consecutive: one for each of its text rows except the last.
  const MicroBatch batch = layout_.micro_batch(host_block_->get(), 0);
  const int32_t *labels = batch.text.labels.as<const int32_t>(), *starts = batch.text.packing.starts.as<const int32_t>();
  std::vector<TextLikelihood> likelihoods(texts.size());
  int64_t at = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const int64_t count = starts[i + 1] - starts[i] - inputs_.text.first_rows - 1;
    for (int64_t end = at + count; at < end; ++at) {
      if (labels[at] < 0) continue;
      likelihoods[i].log_likelihood -= static_cast<double>(losses[static_cast<size_t>(at)]);
      ++likelihoods[i].tokens;
    }
  }
  return likelihoods;
}

void DecodeProgram::decode(int64_t tokens) {
  for (int64_t i = 0; i < tokens; ++i) run(Pass::token);
}

void DecodeProgram::stop(int64_t slot) {
  parts_.ops->fill_i32(state_->decode.done.part(slot, {1}), kStopped, parts_.device->compute_stream());
}

void DecodeProgram::run(Pass pass) {
  Program& program = programs_[static_cast<size_t>(pass)];
  const Stream stream = parts_.device->compute_stream();
  if (!parts_.graphs || !program.warm) {   // the first pass times matrix products
    enqueue(pass);
    program.warm = true;
    return;
  }
  if (!program.graph) program.graph = parts_.device->capture(stream, [this, pass] { enqueue(pass); });
  program.graph->launch(stream);
}

CacheCall DecodeProgram::cache_call() const {
  return {.layers = state_->layers, .positions = state_->row_of_slot, .memory_layers = state_->memory_layers};
}

void DecodeProgram::enqueue(Pass pass) {
  Arena& arena = *parts_.arena;
  arena.begin_pass(pass_name(pass));
  if (parts_.spans) parts_.spans->begin_pass(pass_name(pass), [](const Unit&, Phase) { return 0.0; });
  const Tensor cache = arena.take_kept(Owner::cache, "keys and values", DType::u8, {cache_bytes_});
  const Tensor data = arena.take_kept(Owner::data, "texts being generated", DType::u8, {data_bytes_});
  Block data_block(data.data), cache_block(cache.data);
  lay_out(data_block, cache_block, *state_);
  const StepContext context{.ops = *parts_.ops, .device = *parts_.device, .arena = arena, .units = *parts_.strategy,
                            .stream = parts_.device->compute_stream(), .side = parts_.device->side_stream(),
                            .forked = forked_, .joined = joined_, .observer = parts_.observer, .seed = 0,
                            .training = false, .max_coded_rows = parts_.ops->coded_rows(parts_.compute)};
  if (pass == Pass::units) parts_.strategy->begin_evaluation(0, UnitsOfEvaluation::gather);
  else
    parts_.strategy->begin_evaluation(static_cast<size_t>(pass), settings_.keeps_units ? UnitsOfEvaluation::kept
                                                                                       : UnitsOfEvaluation::as_used);
  if (pass == Pass::prompts) enqueue_prompts(context);
  else if (pass == Pass::token) enqueue_token(context);
  else if (pass == Pass::scores) enqueue_scores(context);
  parts_.strategy->finish_backward();
  arena.give(data);
  arena.give(cache);
  arena.end_pass();
}

void DecodeProgram::enqueue_prompts(const StepContext& context) {
  MicroBatch batch = layout_.micro_batch(state_->batch.data, 0);
  batch.pixel_statistics = parts_.pixel_statistics;
  begin_texts(batch);
  CacheCall cache = cache_call();
  cache.slots = state_->row_slots;
  cache.positions = state_->row_positions;
  cache.last_rows = state_->last_rows;
  cache.memory_slots = state_->memory_slots;
  cache.memory_positions = state_->memory_positions;
  const Tensor logits = parts_.model->read_prompts(context, batch, cache);
  choose(logits, true);
  context.arena.give(logits);
}

// Initializes the slots whose prompts are read, from the batch, prompt_limits and prompt_slots.
void DecodeProgram::begin_texts(const MicroBatch& batch) {
  const State& state = *state_;
  parts_.ops->begin_texts({.beams = settings_.beams, .texts = state.prompt_slots, .ids = batch.text.ids,
                           .lengths = batch.text.lengths, .limits = state.prompt_limits, .keys = batch.sample_keys,
                           .memory_rows = batch.source.key_lengths, .deltas = state.prompt_deltas, .state = state.decode,
                           .memory_lengths = state.memory_lengths, .slot_deltas = state.slot_deltas, .sources = state.sources,
                           .finished_lengths = state.finished_lengths, .finished_scores = state.finished_scores,
                           .closed = state.closed},
                          parts_.device->compute_stream());
}

void DecodeProgram::enqueue_token(const StepContext& context) {
  context.ops.next_rows({.state = state_->decode, .prefix_rows = inputs_.text.first_rows, .slot_deltas = state_->slot_deltas,
                         .tokens = state_->tokens, .positions = state_->row_of_slot, .cache_lengths = state_->lengths,
                         .rotary_positions = state_->rotary_positions},
                        context.stream);
  CacheCall cache = cache_call();
  cache.tokens = state_->tokens;
  cache.lengths = state_->lengths;
  cache.rotary_positions = state_->rotary_positions;
  cache.sources = state_->sources;
  cache.sharing = settings_.beams;
  cache.memory_lengths = state_->memory_lengths;
  cache.memory_sources = state_->memory_sources;
  const Tensor logits = parts_.model->decode(context, cache);
  choose(logits, false);
  context.arena.give(logits);
}

void DecodeProgram::enqueue_scores(const StepContext& context) {
  MicroBatch batch = layout_.micro_batch(state_->batch.data, 0);
  batch.pixel_statistics = parts_.pixel_statistics;
  batch.loss = state_->loss;
  batch.loss_weight = state_->loss_weight;
  batch.row_loss = state_->row_loss;
  context.ops.fill(state_->loss_weight, 1, context.stream);
  context.ops.fill(state_->loss, 0, context.stream);
  parts_.model->forward_loss(context, batch);
}

// Chooses the next token of each text. `first`: the first token after the prompt.
void DecodeProgram::choose(const Tensor& logits, bool first) {
  const Stream stream = parts_.device->compute_stream();
  const State& state = *state_;
  TokenRules rules = settings_.rules;
  rules.ends = state.ends;
  if (settings_.beams == 1) {
    parts_.ops->pick_tokens({.logits = logits, .slots = first ? state.prompt_slots : Tensor{}, .rules = rules,
                             .scores = state.scores.part(0, {logits.rows(), logits.cols()}), .state = state.decode,
                             .log_probs = state.log_probs},
                            stream);
    return;
  }
  const int64_t rows = first ? logits.rows() * settings_.beams : logits.rows();
  parts_.ops->beam_step({.logits = logits, .first = first, .texts = first ? state.prompt_slots : Tensor{},
                         .beams = settings_.beams, .rules = rules, .length_penalty = settings_.length_penalty,
                         .early_stopping = settings_.early_stopping, .prefix_rows = inputs_.text.first_rows,
                         .candidates = state.scores.part(0, {rows, logits.cols()}), .state = state.decode,
                         .sources = state.sources, .ids_before = state.ids_before,
                         .sources_before = state.sources_before, .scores = state.beam_scores,
                         .finished_ids = state.finished_ids, .finished_lengths = state.finished_lengths,
                         .finished_scores = state.finished_scores, .closed = state.closed},
                        stream);
}

void DecodeProgram::read_back() {
  BLIPFT_CHECK(sent_ - seen_ < kViews, "found ", sent_ - seen_, " unread views, expected fewer than ", kViews);
  Device& device = *parts_.device;
  const Stream stream = device.compute_stream();
  Readback& to = *views_[sent_++ % kViews];
  Block block(to.memory.get());
  const State& state = *state_;
  for (const Tensor& from : {state.decode.ids, state.decode.lengths, state.decode.done, state.log_probs,
                             state.finished_ids, state.finished_lengths, state.finished_scores})
    if (from) device.copy(block.add(from.dtype, from.shape).data, from.data, from.bytes(), stream);
  device.record(to.done, stream);
}

DecodeView DecodeProgram::view() {
  BLIPFT_CHECK(seen_ < sent_, "no view was requested");
  const Readback& from = *views_[seen_++ % kViews];
  parts_.device->synchronize(from.done);
  Block block(from.memory.get());
  const State& state = *state_;
  const auto i32 = [&](const Tensor& like) -> std::span<const int32_t> {
    if (!like) return {};
    return {block.add(like.dtype, like.shape).as<const int32_t>(), static_cast<size_t>(like.numel())};
  };
  const auto f32 = [&](const Tensor& like) -> std::span<const float> {
    if (!like) return {};
    return {block.add(like.dtype, like.shape).as<const float>(), static_cast<size_t>(like.numel())};
  };
  DecodeView view{.max_ids = settings_.max_ids};
  view.ids = i32(state.decode.ids);
  view.lengths = i32(state.decode.lengths);
  view.done = i32(state.decode.done);
  view.log_probs = f32(state.log_probs);
  view.finished_ids = i32(state.finished_ids);
  view.finished_lengths = i32(state.finished_lengths);
  view.finished_scores = f32(state.finished_scores);
  return view;
}

}  // namespace blipft
