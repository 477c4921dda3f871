// The offsets of the parts in a step's block; see batch.h.
#include "blipft/batch.h"

namespace blipft {

namespace {
int64_t align(int64_t bytes) { return (bytes + 255) / 256 * 256; }  // same alignment as device allocations
}  // namespace

BatchLayout::BatchLayout(const ModelInputs& inputs, int64_t micro_batches, int64_t batch_size, const TextShape& text)
    : inputs_(inputs), micro_batches_(micro_batches), batch_size_(batch_size), text_(text) {
  const int64_t p = inputs.picture_size;
  if (inputs.has_picture()) add(BatchField::pixels, DType::u8, {batch_size, p, p, 3});
  add(BatchField::sample_keys, DType::i64, {batch_size});
  add(BatchField::label_counts, DType::f32, {1});
  for (const BatchStream stream : kTextStreams)
    if (stream == BatchStream::text || inputs.of(stream)) add_stream(stream);
  if (inputs.patches) add_patches();
}

void BatchLayout::add_patches() {
  BLIPFT_CHECK(inputs_.text.pictures, "patches of pictures that stand nowhere in the text");
  const PatchInputs& in = inputs_.patches;
  const PictureShape& shape = text_.pictures;
  const int64_t rows = shape.rows * in.of_cell();
  const auto add_field = [&](BatchField field, const Shape& of, DType dtype = DType::i32) {
    add({field, BatchStream::patches}, dtype, of);
  };
  add_field(BatchField::pixels, {rows, 3 * in.side * in.side}, DType::u8);
  add_field(BatchField::positions, {4, rows});
  add_field(BatchField::sample_keys, {shape.count}, DType::i64);
  add_field(BatchField::cell_numbers, {shape.rows});
  add_field(BatchField::starts, {shape.count + 1});
  add_field(BatchField::padded_rows, {rows});
  if (in.window == 0) return;
  add_field(BatchField::window_starts, {shape.windows + 1});
  add_field(BatchField::window_padded_rows, {rows});
}

// The one table of the fields of streams.
void BatchLayout::add_stream(BatchStream stream) {
  const StreamInputs& in = inputs_.of(stream);
  const int64_t b = batch_size_, all = rows(stream), text = text_rows(stream);
  const bool packed = text_.packed(), predicted = stream == BatchStream::text;
  const struct {
    BatchField field;
    bool is_there;
    Shape shape;
  } fields[] = {{BatchField::ids, true, {b, shape(stream).tokens}},
                {BatchField::labels, predicted, {predicted ? labels() : 0}},
                {BatchField::lengths, true, {b}},
                {BatchField::positions, in.position_axes > 0, {in.position_axes, in.splits_text ? text : all}},
                {BatchField::key_lengths, in.key_lengths, {b}},
                {BatchField::label_rows, in.label_rows, {predicted ? labels() : 0}},
                {BatchField::picture_of_row, in.pictures, {all}},
                {BatchField::row_of_picture, in.pictures, {text_.pictures.rows}},
                {BatchField::last_keys, in.last_keys, {all}},
                {BatchField::starts, packed, {b + 1}},
                {BatchField::padded_rows, packed, {all}},
                {BatchField::text_starts, packed && in.splits_text, {b + 1}},
                {BatchField::text_padded_rows, packed && in.splits_text, {text}}};
  for (const auto& field : fields)
    if (field.is_there) add({field.field, stream}, DType::i32, field.shape);
}

StreamShape BatchLayout::shape(BatchStream stream) const {
  if (stream == BatchStream::instruction) stream = inputs_.has_source() ? BatchStream::source : BatchStream::text;
  return stream == BatchStream::source ? text_.source() : text_.text();
}

void BatchLayout::add(BatchPart part, DType dtype, const Shape& shape) {
  parts_.push_back({part, dtype, shape, bytes_});
  bytes_ += align(micro_batches_ * shape.numel() * dtype_size(dtype));
}

const BatchLayout::PlacedPart* BatchLayout::find(BatchPart part) const {
  for (const PlacedPart& placed : parts_)
    if (placed.part == part) return &placed;
  return nullptr;
}

std::vector<BatchPart> BatchLayout::parts() const {
  std::vector<BatchPart> parts;
  for (const PlacedPart& placed : parts_) parts.push_back(placed.part);
  return parts;
}

Tensor BatchLayout::whole(BatchPart part, void* block) const {
  const PlacedPart* placed = find(part);
  if (!placed) return {};
  return {static_cast<char*>(block) + placed->offset, placed->dtype, {micro_batches_ * placed->shape.numel()}};
}

Tensor BatchLayout::of(BatchPart part, void* block, int64_t m) const {
  const PlacedPart* placed = find(part);
  return placed ? whole(part, block).part(m * placed->shape.numel(), placed->shape) : Tensor{};
}

StreamRows BatchLayout::stream(BatchStream stream, void* block, int64_t m) const {
  const auto field = [&](BatchField name) { return of({name, stream}, block, m); };
  return {.samples = batch_size_, .first_rows = inputs_.of(stream).first_rows,
          .max_rows = inputs_.of(stream).first_rows + shape(stream).tokens, .rows = rows(stream),
          .ids = field(BatchField::ids), .lengths = field(BatchField::lengths),
          .key_lengths = field(BatchField::key_lengths), .positions = field(BatchField::positions),
          .labels = field(BatchField::labels), .label_rows = field(BatchField::label_rows),
          .sample_keys = of(BatchField::sample_keys, block, m), .picture_of_row = field(BatchField::picture_of_row),
          .row_of_picture = field(BatchField::row_of_picture), .last_keys = field(BatchField::last_keys),
          .packing = {field(BatchField::starts), field(BatchField::padded_rows)},
          .text_packing = {field(BatchField::text_starts), field(BatchField::text_padded_rows)}};
}

StreamRows BatchLayout::patches(void* block, int64_t m) const {
  const auto field = [&](BatchField name) { return of({name, BatchStream::patches}, block, m); };
  const int64_t of_cell = inputs_.patches.of_cell(), window = inputs_.patches.window;
  return {.samples = text_.pictures.count, .max_rows = text_.pictures.largest * of_cell, .rows = text_.pictures.rows * of_cell,
          .positions = field(BatchField::positions), .sample_keys = field(BatchField::sample_keys),
          .pixels = field(BatchField::pixels), .cell_numbers = field(BatchField::cell_numbers),
          .packing = {field(BatchField::starts), field(BatchField::padded_rows)},
          .windows = text_.pictures.windows, .max_window_rows = window * window * of_cell,
          .window_packing = {field(BatchField::window_starts), field(BatchField::window_padded_rows)}};
}

MicroBatch BatchLayout::micro_batch(void* block, int64_t m) const {
  MicroBatch batch;
  batch.samples = batch_size_;
  batch.pixels = of(BatchField::pixels, block, m);
  batch.sample_keys = of(BatchField::sample_keys, block, m);
  batch.text = stream(BatchStream::text, block, m);
  if (inputs_.source) batch.source = stream(BatchStream::source, block, m);
  if (inputs_.instruction) batch.instruction = stream(BatchStream::instruction, block, m);
  if (inputs_.patches) batch.patches = patches(block, m);
  return batch;
}

}  // namespace blipft
