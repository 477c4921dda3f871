// The offsets of the parts in a step's block; see batch.h.
#include "blipft/batch.h"

namespace blipft {

namespace {
int64_t align(int64_t bytes) { return (bytes + 255) / 256 * 256; }  // same alignment as device allocations
}  // namespace

BatchLayout::BatchLayout(const ModelInputs& inputs, int64_t micro_batches, int64_t batch_size, const TextShape& text)
    : inputs_(inputs), micro_batches_(micro_batches), batch_size_(batch_size), text_(text) {
  const int64_t b = batch_size, p = inputs.picture_size;
  if (inputs.has_picture()) add(BatchPart::pixels, DType::u8, {b, p, p, 3});
  add(BatchPart::ids, DType::i32, {b, text.tokens});
  add(BatchPart::labels, DType::i32, {labels()});
  add(BatchPart::lengths, DType::i32, {b});
  add(BatchPart::sample_keys, DType::i64, {b});
  add(BatchPart::label_counts, DType::f32, {1});
  if (inputs.positions) add(BatchPart::positions, DType::i32, {rows()});
  if (inputs.key_lengths) add(BatchPart::key_lengths, DType::i32, {b});
  if (inputs.label_rows) add(BatchPart::label_rows, DType::i32, {labels()});
  if (text.packed()) {
    add(BatchPart::starts, DType::i32, {b + 1});
    add(BatchPart::padded_rows, DType::i32, {rows()});
  }
  if (inputs.instruction) {
    for (const BatchPart part : {BatchPart::instruction_ids, BatchPart::instruction_places})
      add(part, DType::i32, {b, instruction_tokens()});
    for (const BatchPart part : {BatchPart::instruction_lengths, BatchPart::instruction_key_lengths})
      add(part, DType::i32, {b});
  }
  if (inputs.instruction && text.packed()) {
    add(BatchPart::instruction_starts, DType::i32, {b + 1});
    add(BatchPart::instruction_padded_rows, DType::i32, {instruction_rows()});
    add(BatchPart::instruction_text_starts, DType::i32, {b + 1});
    add(BatchPart::instruction_text_padded_rows, DType::i32, {instruction_text_rows()});
  }
  if (!inputs.has_source()) return;
  add(BatchPart::source_ids, DType::i32, {b, text.source_tokens});
  add(BatchPart::source_lengths, DType::i32, {b});
  add(BatchPart::source_key_lengths, DType::i32, {b});
  if (!text.packed()) return;
  add(BatchPart::source_starts, DType::i32, {b + 1});
  add(BatchPart::source_padded_rows, DType::i32, {source_rows()});
}

void BatchLayout::add(BatchPart part, DType dtype, const Shape& shape) {
  places_[static_cast<size_t>(part)] = {dtype, shape, bytes_};
  bytes_ += align(micro_batches_ * shape.numel() * dtype_size(dtype));
}

Tensor BatchLayout::whole(BatchPart part, void* block) const {
  const Place& p = place(part);
  if (p.offset < 0) return {};
  return {static_cast<char*>(block) + p.offset, p.dtype, {micro_batches_ * p.shape.numel()}};
}

Tensor BatchLayout::of(BatchPart part, void* block, int64_t m) const {
  const Tensor all = whole(part, block);
  const Shape& shape = place(part).shape;
  return all ? all.part(m * shape.numel(), shape) : Tensor{};
}

MicroBatch BatchLayout::micro_batch(void* block, int64_t m) const {
  MicroBatch batch;
  batch.samples = batch_size_;
  batch.max_rows = inputs_.text_prefix() + text_.tokens;
  batch.rows = rows();
  batch.pixels = of(BatchPart::pixels, block, m);
  batch.ids = of(BatchPart::ids, block, m);
  batch.labels = of(BatchPart::labels, block, m);
  batch.lengths = of(BatchPart::lengths, block, m);
  batch.sample_keys = of(BatchPart::sample_keys, block, m);
  batch.positions = of(BatchPart::positions, block, m);
  batch.key_lengths = of(BatchPart::key_lengths, block, m);
  batch.label_rows = of(BatchPart::label_rows, block, m);
  batch.packing = {of(BatchPart::starts, block, m), of(BatchPart::padded_rows, block, m)};
  if (inputs_.instruction) {
    InstructionBatch& instruction = batch.instruction;
    instruction.max_rows = inputs_.instruction.prefix_rows + instruction_tokens();
    instruction.rows = instruction_rows();
    instruction.ids = of(BatchPart::instruction_ids, block, m);
    instruction.places = of(BatchPart::instruction_places, block, m);
    instruction.lengths = of(BatchPart::instruction_lengths, block, m);
    instruction.key_lengths = of(BatchPart::instruction_key_lengths, block, m);
    instruction.packing = {of(BatchPart::instruction_starts, block, m), of(BatchPart::instruction_padded_rows, block, m)};
    instruction.text_packing = {of(BatchPart::instruction_text_starts, block, m),
                                of(BatchPart::instruction_text_padded_rows, block, m)};
  }
  if (!inputs_.has_source()) return batch;
  batch.source = {.max_rows = inputs_.prefix_rows + text_.source_tokens, .rows = source_rows(),
                  .ids = of(BatchPart::source_ids, block, m), .lengths = of(BatchPart::source_lengths, block, m),
                  .key_lengths = of(BatchPart::source_key_lengths, block, m),
                  .packing = {of(BatchPart::source_starts, block, m), of(BatchPart::source_padded_rows, block, m)}};
  return batch;
}

}  // namespace blipft
