// A step's block: which parts it has, where they lie, and what is written into them.
#include <doctest/doctest.h>

#include <numeric>

#include "blipft/error.h"
#include "blipft/config.h"
#include "blipft/loading.h"
#include "loading/sample_text.h"
#include "loading/text_shapes.h"
#include "support/choice_of.h"
#include "support/error_message.h"

using namespace blipft;
using testing::message_of;

namespace {

using Numbers = std::vector<int64_t>;

/// A block with its layout; written by `writer` from `samples`.
struct Written {
  Written(const BatchLayout& of, const BatchWriter& writer, const std::vector<BatchSample>& samples)
      : layout(of), memory(static_cast<size_t>(of.bytes()), char(0x55)) {
    writer.write(layout, samples, memory.data());
  }
  Numbers operator()(BatchPart part, int64_t m = 0) {
    const Tensor tensor = layout.of(part, memory.data(), m);
    REQUIRE(tensor);
    Numbers numbers;
    for (int64_t i = 0; i < tensor.numel(); ++i)
      numbers.push_back(tensor.dtype == DType::i32   ? tensor.as<int32_t>()[i]
                        : tensor.dtype == DType::i64 ? tensor.as<int64_t>()[i]
                                                     : static_cast<int64_t>(tensor.as<float>()[i]));
    return numbers;
  }
  BatchLayout layout;
  std::vector<char> memory;
};

/// Ids from `first` on; those before `trained_from` are not learnt.
BatchSample sample(int64_t length, int32_t first, int64_t key, int64_t trained_from = 0) {
  BatchSample made{{std::vector<int32_t>(static_cast<size_t>(length)), {}}, key};
  std::iota(made.text.ids.begin(), made.text.ids.end(), first);
  for (int64_t i = 0; i < length; ++i) made.text.is_label.push_back(i >= trained_from);
  return made;
}

const ModelInputs kEverything{.picture_size = 5, .text = {.vocabulary = 100, .max_tokens = 60, .first_rows = 3,
                                                          .position_axes = 1, .key_lengths = true, .label_rows = true}};
const ModelInputs kTwoTexts{.text = {.vocabulary = 200, .max_tokens = 60, .key_lengths = true, .label_rows = true},
                            .source = {.vocabulary = 200, .max_tokens = 60, .first_rows = 2, .key_lengths = true},
                            .decoder_start = 7};
const ModelInputs kTextOnly{.text = {.vocabulary = 100, .max_tokens = 60}};
const ModelInputs kWithInstructions{.text = {.vocabulary = 100, .max_tokens = 60},
                                    .instruction = {.vocabulary = 10, .max_tokens = 4, .first_rows = 2, .position_axes = 1,
                                                    .key_lengths = true, .splits_text = true, .tokenizer = "q"}};

const ModelInputs kPictures{.text = {.vocabulary = 100, .max_tokens = 60, .pictures = true},
                            .patches = {.side = 2, .merge = 2, .window = 4}};

/// The number of fields of all streams that a model reads.
size_t parts_of(const ModelInputs& inputs, bool packed) {
  size_t parts = inputs.has_picture() ? 3 : 2;  // keys, counts
  for (const StreamInputs& stream : {inputs.text, inputs.source, inputs.instruction})
    if (stream)
      parts += 2 + (stream.position_axes > 0) + stream.key_lengths + stream.label_rows + (packed ? 2 : 0) +
               (packed && stream.splits_text ? 2 : 0);
  return parts + 1 + (inputs.text.pictures ? 2 : 0) + (inputs.patches ? 8 : 0);  // labels, ...
}

/// "<" and ">" around every text, a word's letters as ids.
class LetterTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode_plain(const std::string& text, const EncodeOptions& = {}) const override {
    return {text.begin(), text.end()};
  }
  std::vector<int32_t> prefix_ids() const override { return {'<'}; }
  std::vector<int32_t> suffix_ids() const override { return {'>'}; }
  int64_t vocab_size() const override { return 1000; }
  int32_t pad_id() const override { return pad; }
  std::unique_ptr<TextStream> text_stream(const DecodeOptions& = {}) const override { return nullptr; }
  std::optional<int32_t> eos_id() const override { return end; }
  int32_t pad = 7;
  std::optional<int32_t> end = {};
};

std::string letters(const TokenizedText& text) { return {text.ids.begin(), text.ids.end()}; }

}  // namespace

TEST_SUITE("batch") {
  TEST_CASE("layout: parts do not overlap, begin at multiples of 256 bytes, and are there only if declared") {
    for (const ModelInputs& inputs : {kEverything, kTwoTexts, kTextOnly, kWithInstructions, kPictures})
      for (const TextShape& text : {TextShape{7, 0, 5, 0, {9, 2, 8, 5}}, TextShape{7, 17, 5, 11, {9, 2, 8, 5}}}) {
        const BatchLayout layout(inputs, 2, 3, text);
        std::vector<char> memory(static_cast<size_t>(layout.bytes()));
        int64_t end = 0;
        for (const BatchPart part : layout.parts()) {
          const Tensor tensor = layout.whole(part, memory.data()), second = layout.of(part, memory.data(), 1);
          const int64_t begin = tensor.as<char>() - memory.data();
          CHECK(begin == (end + 255) / 256 * 256);
          end = begin + tensor.bytes();
          CHECK(second.as<char>() - tensor.as<char>() == second.bytes());
        }
        CHECK(layout.parts().size() == parts_of(inputs, text.packed()));
        CHECK_FALSE(layout.whole({BatchField::labels, BatchStream::source}, memory.data()));
        CHECK(layout.bytes() == (end + 255) / 256 * 256);
      }
    CHECK(BatchLayout(kTextOnly, 1, 1, {8}).bytes() == 5 * 256);
    CHECK_FALSE(BatchLayout(kTextOnly, 1, 2, {8}) == BatchLayout(kTextOnly, 2, 1, {8}));
  }

  TEST_CASE("layout: pixels lie at the same place whatever the text") {
    for (int64_t i : {0, 3})
      CHECK(BatchWriter::pixels({kEverything, 2, 2, {8}}, nullptr, i) ==
            BatchWriter::pixels({kEverything, 2, 2, {60, 99}}, nullptr, i));
    CHECK(BatchWriter::pixels({kTextOnly, 2, 2, {8}}, nullptr, 0) == nullptr);
  }

  TEST_CASE("writer: instructions have rows of their own number, packed as the texts are") {
    BatchSample first = sample(1, 10, 100), second = sample(4, 20, 101);
    first.text.instruction = {5, 6, 7, 8};
    second.text.instruction = {9};
    Written packed({kWithInstructions, 1, 2, {5, 7}}, {1, false}, {first, second});
    CHECK(packed(BatchPart(BatchField::ids, BatchStream::instruction)) == Numbers{5, 6, 7, 8, 0, 9, 0, 0, 0, 0});
    CHECK(packed(BatchPart(BatchField::positions, BatchStream::instruction)) == Numbers{0, 1, 2, 3, 3, 0, 1});
    CHECK(packed(BatchPart(BatchField::lengths, BatchStream::instruction)) == Numbers{4, 1});
    CHECK(packed(BatchPart(BatchField::key_lengths, BatchStream::instruction)) == Numbers{6, 3});
    CHECK(packed(BatchPart(BatchField::starts, BatchStream::instruction)) == Numbers{0, 7, 11});
    CHECK(packed(BatchPart(BatchField::padded_rows, BatchStream::instruction)) == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    CHECK(packed(BatchPart(BatchField::text_starts, BatchStream::instruction)) == Numbers{0, 5, 7});
    CHECK(packed(BatchPart(BatchField::text_padded_rows, BatchStream::instruction)) == Numbers{0, 1, 2, 3, 4, 5, 6});
    CHECK(packed(BatchField::starts) == Numbers{0, 3, 7});
    const StreamRows batch = packed.layout.micro_batch(packed.memory.data(), 0).instruction;
    CHECK(batch.max_rows == 7);
    CHECK(batch.rows == 11);
    Written padded({kWithInstructions, 1, 2, {5}}, {1, false}, {first, second});
    CHECK(padded(BatchPart(BatchField::key_lengths, BatchStream::instruction)) == Numbers{6, 3});
    CHECK(padded.layout.micro_batch(padded.memory.data(), 0).instruction.rows == 14);
    first.text.instruction.resize(6, 1);
    CHECK_THROWS_WITH_AS(Written({kWithInstructions, 1, 2, {5, 7}}, {1, false}, {first, second}),
                         doctest::Contains("do not fit into 5"), Error);
  }

  TEST_CASE("writer: beside a source an instruction has the source's shape, not the text's") {
    ModelInputs inputs = kTwoTexts;
    inputs.instruction = kWithInstructions.instruction;
    BatchSample first = sample(3, 10, 100), second = sample(2, 20, 101);
    first.text.source = {31, 32};
    first.text.instruction = {5, 6, 7, 8};
    second.text.source = {41, 42, 43};
    second.text.instruction = {9};
    const std::vector<BatchSample> samples = {first, second};
    Written packed({inputs, 1, 2, {3, 5, 4, 6}}, {1, false}, samples);
    CHECK(packed(BatchField::starts) == Numbers{0, 3, 5});
    CHECK(packed(BatchPart(BatchField::starts, BatchStream::source)) == Numbers{0, 5, 10});  // the first one took a row of padding
    CHECK(packed(BatchPart(BatchField::ids, BatchStream::instruction)) == Numbers{5, 6, 7, 8, 9, 0, 0, 0});
    CHECK(packed(BatchPart(BatchField::text_starts, BatchStream::instruction)) == Numbers{0, 4, 6});
    CHECK(packed(BatchPart(BatchField::starts, BatchStream::instruction)) == Numbers{0, 6, 10});
    CHECK(packed.layout.micro_batch(packed.memory.data(), 0).instruction.rows == 10);
    Written padded({inputs, 1, 2, {3, 0, 4, 0}}, {1, false}, samples);
    CHECK(padded.layout.micro_batch(padded.memory.data(), 0).instruction.max_rows == 6);
    CHECK(padded(BatchPart(BatchField::key_lengths, BatchStream::instruction)) == Numbers{6, 3});
    // And the source of a step's shape holds it: 4 + 1 rows of instructions, 2 + 3 of sources; the text's need not.
    const std::vector<TextShape> shapes = {{8, 5, 8, 4}, {8, 5, 8, 5}, {8, 16, 8, 16}};
    CHECK(smallest_shape(shapes, samples, 2) == shapes[1]);
    first.text.instruction.resize(5, 1);
    CHECK(smallest_shape(shapes, std::vector<BatchSample>{first, second}, 2) == shapes[2]);
  }

  TEST_CASE("writer: pictures among tokens, with positions on three axes") {
    const ModelInputs inputs{.text = {.vocabulary = 100, .max_tokens = 60, .pictures = true, .position_axes = 3}};
    // 4 tokens, a picture of 2 x 3 cells, 4 tokens, a picture of 1 x 2, 5 tokens; a sample without a picture.
    std::vector<BatchSample> samples = {sample(21, 10, 0), sample(3, 40, 1), sample(2, 50, 2)};
    samples[0].text.pictures = {{4, 2, 3}, {14, 1, 2}};
    samples[2].text.pictures = {{0, 1, 1}};
    Written block({inputs, 1, 3, {21, 26, 0, 0, {10}}}, {1, false}, samples);
    CHECK(block(BatchField::positions) ==
          Numbers{0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 7, 8, 9, 10, 11, 11, 13, 14, 15, 16, 17, /**/ 0, 1, 2, /**/ 0, 1,
                  0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 7, 8, 9, 10, 11, 11, 13, 14, 15, 16, 17, /**/ 0, 1, 2, /**/ 0, 1,
                  0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, /**/ 0, 1, 2, /**/ 0, 1});
    CHECK(block(BatchField::row_of_picture) == Numbers{4, 5, 6, 7, 8, 9, 14, 15, 24, -1});
    const Numbers pictures = block(BatchField::picture_of_row);
    for (int64_t row = 0; row < 26; ++row) {
      const Numbers rows = block(BatchField::row_of_picture);
      const auto found = std::find(rows.begin(), rows.end(), row);
      CHECK(pictures[static_cast<size_t>(row)] == (found == rows.end() ? -1 : found - rows.begin()));
    }
    CHECK(block.layout.micro_batch(block.memory.data(), 0).text.positions.shape == Shape{3, 26});
    Written padded({inputs, 1, 3, {21, 0, 0, 0, {9}}}, {1, false}, samples);
    CHECK(padded(BatchField::row_of_picture) == Numbers{4, 5, 6, 7, 8, 9, 14, 15, 42});
    CHECK_THROWS_WITH_AS(Written({inputs, 1, 3, {21, 26, 0, 0, {8}}}, {1, false}, samples), doctest::Contains("into 8 rows"), Error);
    samples[1].text.pictures = {{2, 1, 2}};
    CHECK_THROWS_WITH_AS(Written({inputs, 1, 3, {21, 26, 0, 0, {20}}}, {1, false}, samples), doctest::Contains("into 3 tokens"), Error);
  }

  TEST_CASE("writer: the last row that each row sees, where rows of a picture see each other") {
    const ModelInputs inputs{.text = {.vocabulary = 100, .max_tokens = 60, .pictures = true, .last_keys = true}};
    std::vector<BatchSample> samples = {sample(9, 10, 0), sample(3, 30, 1), sample(4, 40, 2)};
    samples[0].text.pictures = {{1, 1, 3}, {6, 1, 1}, {7, 1, 2}};  // the last two are adjacent, and the sample's last rows
    samples[2].text.pictures = {{0, 2, 2}};
    for (const int64_t packed : {0, 16}) {
      Written block({inputs, 1, 3, {9, packed, 0, 0, {10}}}, {1, false}, samples);
      const Numbers last = block(BatchField::last_keys);
      const auto begin = last.begin() + (packed ? 12 : 18);
      CHECK(Numbers(last.begin(), last.begin() + 12) == Numbers{0, 3, 3, 3, 4, 5, 8, 8, 8, 0, 1, 2});
      CHECK(Numbers(begin, begin + 4) == Numbers{3, 3, 3, 3});
      CHECK(last.size() == (packed ? 16 : 27));
    }
  }

  TEST_CASE("writer: patches of pictures, by windows and cells") {
    const ModelInputs inputs{.text = {.vocabulary = 100, .max_tokens = 60, .pictures = true},
                             .patches = {.side = 2, .merge = 2, .window = 2}};
    // A picture of 3 x 3 cells and one of a cell; a sample without a picture.
    std::vector<BatchSample> samples = {sample(12, 10, 0), sample(3, 30, 1), sample(2, 40, 2)};
    std::vector<uint8_t> large(36 * 12), small(4 * 12, 7);
    for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<uint8_t>(i % 251);
    samples[0].text.pictures = {{1, 3, 3, large.data()}};
    samples[2].text.pictures = {{0, 1, 1, small.data()}};
    const TextShape shape{12, 0, 0, 0, {.rows = 13, .count = 3, .largest = 9, .windows = 7}};
    Written block({inputs, 1, 3, shape}, {1, false}, samples);
    const auto numbers = [&](BatchField field) { return block({field, BatchStream::patches}); };
    // Windows of 4, 2, 2 and 1 cells; the next picture's; 3 cells of padding in a picture and in a window.
    CHECK(block(BatchField::row_of_picture) == Numbers{1, 2, 4, 5, 3, 6, 7, 8, 9, 24, -1, -1, -1});
    CHECK(numbers(BatchField::starts) == Numbers{0, 36, 40, 52});
    CHECK(numbers(BatchField::window_starts) == Numbers{0, 16, 24, 32, 36, 40, 52, 52});
    const StreamRows patches = block.layout.micro_batch(block.memory.data(), 0).patches;
    CHECK(patches.samples == 3);
    CHECK(patches.max_rows == 36);
    CHECK(patches.rows == 52);
    CHECK(patches.max_window_rows == 16);
    CHECK(numbers(BatchField::cell_numbers) == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 18, 19, 20});
    const int64_t* const keys = patches.sample_keys.as<int64_t>();
    CHECK(keys[0] != keys[1]);
    CHECK(keys[2] == 0);                   // of padding
    const Numbers cells{0, 1, 3, 4, 2, 5, 6, 7, 8};
    for (int64_t row = 0; row < 52; ++row) {
      const int64_t cell = row < 36 ? cells[static_cast<size_t>(row / 4)] : 0, patch = row % 4;
      const int64_t y = row < 40 ? 2 * (cell / 3) + patch / 2 : 0, x = row < 40 ? 2 * (cell % 3) + patch % 2 : 0;
      CHECK(patches.positions.as<int32_t>()[row] == y);
      CHECK(patches.positions.as<int32_t>()[52 + row] == x);
      for (const int64_t axis : {2, 3})    // rows and columns of the picture
        CHECK(patches.positions.as<int32_t>()[axis * 52 + row] == (row < 36 ? 6 : row < 40 ? 2 : 0));
      for (int64_t i = 0; i < 12; ++i) {
        const int64_t pixel = 12 * (4 * cell + patch) + i;
        CHECK(patches.pixels.as<uint8_t>()[12 * row + i] == (row < 36 ? pixel % 251 : row < 40 ? 7 : 0));
      }
    }
    CHECK_THROWS_WITH_AS(Written({inputs, 1, 3, {12, 0, 0, 0, {13, 3, 8, 7}}}, {1, false}, samples), doctest::Contains("into 32"), Error);
    CHECK_THROWS_WITH_AS(Written({inputs, 1, 3, {12, 0, 0, 0, {13, 2, 9, 7}}}, {1, false}, samples), doctest::Contains("do not fit"), Error);
    CHECK_THROWS_WITH_AS(Written({inputs, 1, 3, {12, 0, 0, 0, {13, 3, 9, 5}}}, {1, false}, samples), doctest::Contains("do not fit"), Error);
    for (BatchSample& one : samples) one.text.pictures.clear();  // the tower runs on padding
    Written empty({inputs, 1, 3, shape}, {1, false}, samples);
    CHECK(empty({BatchField::starts, BatchStream::patches}) == Numbers{0, 36, 52, 52});
    CHECK(empty(BatchField::row_of_picture) == Numbers(13, -1));
  }

  TEST_CASE("writer: padded rows") {
    Written block({kEverything, 2, 2, {4}}, {1, false},
                  {sample(4, 10, 100), sample(2, 20, 101), sample(0, 30, 102), sample(1, 40, 103)});
    CHECK(block(BatchField::ids) == Numbers{10, 11, 12, 13, 20, 21, 1, 1});
    CHECK(block(BatchField::ids, 1) == Numbers{1, 1, 1, 1, 40, 1, 1, 1});
    CHECK(block(BatchField::labels) == Numbers{11, 12, 13, 21, -100, -100});
    CHECK(block(BatchField::labels, 1) == Numbers(6, -100));
    CHECK(block(BatchField::label_counts) == Numbers{4});
    CHECK(block(BatchField::label_counts, 1) == Numbers{0});
    CHECK(block(BatchField::lengths) == Numbers{4, 2});
    CHECK(block(BatchField::key_lengths, 1) == Numbers{3, 4});
    CHECK(block(BatchField::sample_keys, 1) == Numbers{102, 103});
    CHECK(block(BatchField::positions) == Numbers{0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6});
    const MicroBatch batch = block.layout.micro_batch(block.memory.data(), 1);
    CHECK(batch.samples == 2);
    CHECK(batch.text.max_rows == 7);
    CHECK(batch.text.rows == 14);
    CHECK(batch.pixels.shape == Shape{2, 5, 5, 3});
    CHECK(batch.text.ids.shape == Shape{2, 4});
    CHECK_FALSE(batch.text.packing);
  }

  TEST_CASE("writer: packed rows, padding goes to the first samples") {
    Written block({kEverything, 1, 3, {4, 9}}, {1, false}, {sample(2, 10, 0), sample(0, 0, 1), sample(3, 30, 2)});
    CHECK(block(BatchField::starts) == Numbers{0, 7, 12, 18});  // 3 + 4, 3 + 2, 3 + 3 rows
    CHECK(block(BatchField::padded_rows) ==
          Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19});
    CHECK(block(BatchField::positions) == Numbers{0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5});
    CHECK(block(BatchField::labels) == Numbers{11, -100, -100, -100, 31, 32});
    CHECK(block(BatchField::label_counts) == Numbers{3});
    CHECK(block(BatchField::key_lengths) == Numbers{5, 3, 6});
    CHECK(block(BatchField::label_rows) == Numbers{3, 4, 5, 10, 17, 18});
  }

  TEST_CASE("writer: nothing before the text, no pictures") {
    Written block({kTextOnly, 1, 2, {4, 5}}, {1, false}, {sample(2, 10, 0), sample(3, 30, 2)});
    CHECK(block(BatchField::starts) == Numbers{0, 2, 5});
    CHECK(block(BatchField::padded_rows) == Numbers{0, 1, 4, 5, 6});
    CHECK(block(BatchField::labels) == Numbers{11, 31, 32});
  }

  TEST_CASE("writer: ids that are no labels are seen and not predicted") {
    Written block({kTextOnly, 1, 2, {5}}, {1, false}, {sample(5, 10, 0, 3), sample(3, 30, 1, 9)});
    CHECK(block(BatchField::ids) == Numbers{10, 11, 12, 13, 14, 30, 31, 32, 1, 1});
    CHECK(block(BatchField::labels) == Numbers{-100, -100, 13, 14, -100, -100, -100, -100});
    CHECK(block(BatchField::label_counts) == Numbers{2});
  }

  TEST_CASE("writer: padding that is trained ends with the longest text of the micro-batch") {
    Written block({kTextOnly, 2, 2, {5}}, {1, true},
                  {sample(2, 10, 0), sample(4, 20, 1), sample(3, 30, 2), sample(0, 0, 3)});
    CHECK(block(BatchField::labels) == Numbers{11, 1, 1, -100, 21, 22, 23, -100});
    CHECK(block(BatchField::labels, 1) == Numbers{31, 32, -100, -100, 1, 1, -100, -100});
    CHECK(block(BatchField::label_counts) == Numbers{6});
    CHECK(block(BatchField::label_counts, 1) == Numbers{4});
  }

  TEST_CASE("writer: samples that do not fit are an error") {
    const BatchWriter writer(1, false);
    std::vector<char> memory(10000);
    const std::vector<BatchSample> two = {sample(3, 10, 0), sample(4, 20, 1)};
    CHECK_THROWS_AS(writer.write({kTextOnly, 1, 2, {3}}, two, memory.data()), Error);     // a text is longer
    CHECK_THROWS_AS(writer.write({kTextOnly, 1, 2, {4, 6}}, two, memory.data()), Error);  // all are
    CHECK_THROWS_AS(writer.write({kTextOnly, 1, 2, {4, 9}}, two, memory.data()), Error);  // rows beyond 2 x 4
    CHECK_THROWS_AS(writer.write({kTextOnly, 1, 3, {4}}, two, memory.data()), Error);     // one is missing
    writer.write({kTextOnly, 1, 2, {4, 7}}, two, memory.data());
  }

  TEST_CASE("writer: pixels follow their samples") {
    const BatchLayout layout(kEverything, 2, 2, {8});
    std::vector<char> memory(static_cast<size_t>(layout.bytes()));
    for (int i = 0; i < 4; ++i) std::fill_n(BatchWriter::pixels(layout, memory.data(), i), 75, uint8_t(i));
    const std::vector<size_t> order = {2, 0, 3, 1};
    BatchWriter::reorder_pixels(layout, memory.data(), order);
    for (size_t i = 0; i < 4; ++i)
      for (int64_t p : {0, 74}) CHECK(BatchWriter::pixels(layout, memory.data(), int64_t(i))[p] == order[i]);
    BatchWriter::reorder_pixels({kTextOnly, 2, 2, {8}}, nullptr, order);  // nothing to do
  }

  TEST_CASE("text shapes: the smallest that holds every micro-batch") {
    const std::vector<TextShape> packed = {{9, 8}, {9, 16}, {9, 18}}, padded = {{4}, {8}, {9}};
    const std::vector<BatchSample> samples = {sample(1, 0, 0), sample(2, 0, 1), sample(5, 0, 2), sample(4, 0, 3)};
    CHECK(smallest_shape(packed, samples, 2) == packed[1]);
    CHECK(smallest_shape(padded, samples, 2) == padded[1]);
    const std::vector<BatchSample> empty = {sample(0, 0, 0), sample(8, 0, 1)};  // a row for the empty text too
    CHECK(smallest_shape(packed, empty, 2) == packed[1]);
  }

  TEST_CASE("sources: packed by themselves, with the rows before them; padding goes where there is room") {
    std::vector<BatchSample> samples = {sample(2, 10, 1), sample(4, 20, 2)};
    samples[0].text.source = {31, 32, 33};
    samples[1].text.source = {41};
    const BatchWriter writer(9, false);
    const Written padded({kTwoTexts, 1, 2, {5, 0, 4, 0}}, writer, samples);
    const Written packed({kTwoTexts, 1, 2, {5, 7, 4, 5}}, writer, samples);
    for (Written written : {padded, packed}) {
      CHECK(written(BatchPart(BatchField::ids, BatchStream::source)) == Numbers{31, 32, 33, 9, 41, 9, 9, 9});
      CHECK(written(BatchPart(BatchField::lengths, BatchStream::source)) == Numbers{3, 1});
      CHECK(written(BatchPart(BatchField::key_lengths, BatchStream::source)) == Numbers{5, 3});
      CHECK(written(BatchField::key_lengths) == Numbers{2, 4});  // before the decoder's text stands nothing
    }
    Written rows = packed;
    CHECK(rows(BatchPart(BatchField::starts, BatchStream::source)) == Numbers{0, 6, 9});  // the first sample took a row of padding
    CHECK(rows(BatchPart(BatchField::padded_rows, BatchStream::source)) == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8});
    CHECK(rows(BatchField::starts) == Numbers{0, 3, 7});
    CHECK(rows(BatchField::labels) == Numbers{11, -100, 21, 22, 23});
    CHECK(rows(BatchField::label_rows) == Numbers{0, 1, 5, 6, 7});
    const MicroBatch batch = rows.layout.micro_batch(rows.memory.data(), 0);
    CHECK(batch.text.max_rows == 5);
    CHECK(batch.text.rows == 7);
    CHECK(batch.source.max_rows == 6);
    CHECK(batch.source.rows == 9);
  }

  TEST_CASE("shapes of two texts: the first that holds both, the last whatever comes") {
    std::vector<BatchSample> samples = {sample(2, 0, 0), sample(5, 0, 1)};
    samples[0].text.source.assign(7, 1);
    const std::vector<TextShape> packed = {{9, 8, 9, 7}, {9, 9, 9, 8}, {9, 18, 9, 18}};
    const std::vector<TextShape> padded = {{5, 0, 6, 0}, {6, 0, 7, 0}, {9, 0, 9, 0}};
    CHECK(smallest_shape(packed, samples, 2) == packed[1]);  // a row for the empty source too
    CHECK(smallest_shape(padded, samples, 2) == padded[1]);
    Config config;
    config.data.max_text_tokens = 40;
    for (const char* padding : {"packed", "longest"}) {
      config.data.text_padding = choice_of<TextPadding>(padding);
      const std::vector<TextShape> shapes = possible_text_shapes(config, true);
      CHECK(shapes.size() <= 32);
      CHECK(shapes.back().source_tokens == 40);
      CHECK(shapes.back().source_rows(4) == shapes.back().rows(4));
      for (size_t i = 1; i < shapes.size(); ++i)
        CHECK(shapes[i - 1].rows(4) + shapes[i - 1].source_rows(4) <= shapes[i].rows(4) + shapes[i].source_rows(4));
    }
  }

  TEST_CASE("tokenize two texts: each with the tokenizer's tokens around it, cut so that these stay") {
    const LetterTokenizer tokenizer;
    const Dataset::Sample sample_of{"x", {{"ask", false}, {"cat"}}, {}};
    const TokenizedText text = tokenize(sample_of, tokenizer, 50, 200, {}, 7);
    CHECK(std::string(text.source.begin(), text.source.end()) == "<ask>");
    CHECK(letters(text) == "\a<cat>");
    CHECK(text.is_label == std::vector<uint8_t>{0, 1, 1, 1, 1, 1});
    CHECK_FALSE(text.cut);
    const TokenizedText cut = tokenize(sample_of, tokenizer, 4, 200, {}, 7);
    CHECK(std::string(cut.source.begin(), cut.source.end()) == "<as>");
    CHECK(letters(cut) == "\a<c>");
    CHECK(cut.cut);
    const Dataset::Sample alone{"x", {{"cat"}}, {}};  // a caption without a prompt
    const TokenizedText caption = tokenize(alone, tokenizer, 50, 200, {}, 7);
    CHECK(std::string(caption.source.begin(), caption.source.end()) == "<>");
    CHECK(letters(caption) == "\a<cat>");
    Dataset::Sample chat = sample_of;
    chat.whole = true;
    const std::string message = message_of([&] { tokenize(chat, tokenizer, 50, 200, {}, 7); });
    CHECK_MESSAGE(message.find("x: a conversation") == 0, message);
  }

  TEST_CASE("balanced order: groups of equal size, about as long") {
    CHECK(balanced_order(Numbers{5, 1, 9, 3}, 2) == std::vector<size_t>{2, 1, 0, 3});  // 9 + 1, 5 + 3
    CHECK(balanced_order(Numbers{4, 4, 4}, 3) == std::vector<size_t>{0, 1, 2});
  }

  TEST_CASE("tokenize: segments are encoded apart and joined, the joint text is cut") {
    const LetterTokenizer tokenizer;
    const Dataset::Sample one{"x", {{"cat"}}, {}};
    CHECK(letters(tokenize(one, tokenizer, 50, 200)) == "<cat>");
    CHECK(tokenize(one, tokenizer, 50, 200).ids == tokenizer.encode("cat"));
    const Dataset::Sample two{"x", {{"ask", false}, {"answer", true}}, {}};
    const TokenizedText text = tokenize(two, tokenizer, 50, 200);
    CHECK(letters(text) == "<askanswer>");
    CHECK(text.is_label == std::vector<uint8_t>{0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1});
    CHECK(letters(tokenize(two, tokenizer, 6, 200)) == "<askan");
    CHECK(tokenize(two, tokenizer, 6, 200).is_label.size() == 6);
  }

  TEST_CASE("tokenize: the end token stands behind a text as the sample says, and once") {
    LetterTokenizer tokenizer;
    Dataset::Sample sample_of{"data.jsonl:7", {{"ask", false}, {"cat", true}}, {}};
    sample_of.ends = false;
    CHECK(letters(tokenize(sample_of, tokenizer, 50, 200)) == "<askcat");
    sample_of.ends = true;
    const std::string message = message_of([&] { tokenize(sample_of, tokenizer, 50, 200); });
    for (const char* part : {"data.jsonl:7", "eos_token", "data.append_eos"})
      CHECK_MESSAGE(message.find(part) != std::string::npos, message);
    tokenizer.end = '!';
    CHECK(letters(tokenize(sample_of, tokenizer, 50, 200)) == "<askcat>!");
    CHECK(tokenize(sample_of, tokenizer, 50, 200).is_label == std::vector<uint8_t>{0, 0, 0, 0, 1, 1, 1, 1, 1});
    tokenizer.end = '>';                         // what the tokenizer puts behind every text
    CHECK(letters(tokenize(sample_of, tokenizer, 50, 200)) == "<askcat>");
    CHECK_FALSE(tokenize(sample_of, tokenizer, 8, 200).cut);
    CHECK(tokenize(sample_of, tokenizer, 7, 200).cut);
    CHECK(letters(tokenize(sample_of, tokenizer, 7, 200)) == "<askcat");
  }

  TEST_CASE("tokenize: a whole sample is one text, with nothing put around it") {
    const LetterTokenizer tokenizer;
    Dataset::Sample sample_of{"x", {{"ask", false}, {"", true}, {"cat", true}, {"b", false}, {"d", true}}, {}};
    sample_of.whole = true;
    const TokenizedText text = tokenize(sample_of, tokenizer, 50, 200);
    CHECK(letters(text) == "askcatbd");
    CHECK(text.is_label == std::vector<uint8_t>{0, 0, 0, 1, 1, 1, 0, 1});
    CHECK(tokenize(sample_of, tokenizer, 5, 200).is_label == std::vector<uint8_t>{0, 0, 0, 1, 1});
    sample_of.segments = {{"", false}};
    CHECK(tokenize(sample_of, tokenizer, 50, 200).ids.empty());
  }

  TEST_CASE("padding rows get an id that the model has an embedding for") {
    LetterTokenizer tokenizer;                   // pad_id 7
    CHECK(padding_id(tokenizer, 8) == 7);
    CHECK(padding_id(tokenizer, 7) == 0);
    tokenizer.end = 3;
    CHECK(padding_id(tokenizer, 7) == 3);
    CHECK(padding_id(tokenizer, 3) == 0);
  }

  TEST_CASE("tokenize: an id that the model has no embedding for is refused, with the sample's name") {
    const LetterTokenizer tokenizer;             // has 1000 ids; these texts use those below 123
    const Dataset::Sample sample_of{"tar:3.jpg", {{"zoo"}}, {}};
    CHECK(letters(tokenize(sample_of, tokenizer, 50, 123)) == "<zoo>");
    const std::string message = message_of([&] { tokenize(sample_of, tokenizer, 50, 122); });
    for (const char* part : {"tar:3.jpg", "id 122", "has 122 ids"})
      CHECK_MESSAGE(message.find(part) != std::string::npos, message);
    CHECK(letters(tokenize(sample_of, tokenizer, 1, 122)) == "<");  // what is cut off is not used
  }

  TEST_CASE("texts longer than the model's positions, and trained padding without an embedding, are refused") {
    Config config;
    config.file = "run.yaml";
    config.data.max_text_tokens = 60;
    const LetterTokenizer tokenizer;
    check_text_inputs(config, config.model.path, kEverything, tokenizer);
    config.data.max_text_tokens = 61;
    std::string message = message_of([&] { check_text_inputs(config, config.model.path, kEverything, tokenizer); });
    for (const char* part : {"run.yaml", "data.max_text_tokens", "61", "60", "63"})
      CHECK_MESSAGE(message.find(part) != std::string::npos, message);
    config.data.max_text_tokens = 10;
    ModelInputs small = kTextOnly;
    LetterTokenizer padded;
    padded.pad = small.text.vocabulary = 70;
    check_text_inputs(config, config.model.path, small, padded);         // nothing reads padding
    config.steps.loss_on_padding = true;
    message = message_of([&] { check_text_inputs(config, config.model.path, small, padded); });
    for (const char* part : {"run.yaml: train.loss_on_padding", "has id 70", "has 70 ids"})
      CHECK_MESSAGE(message.find(part) != std::string::npos, message);
    small.text.vocabulary = 71;
    check_text_inputs(config, config.model.path, small, padded);
  }
}
