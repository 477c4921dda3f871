// Argument checks of the ops that compute a model's input rows (see ops_check.h).
#include "blipft/patch_ops.h"
#include "ops/checker.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

/// Checks the shapes of VisionEmbed; the dtypes of its tables differ between forward and backward.
void check_vision(const Checker& check, const VisionEmbed& args) {
  check.floating(args.x, "x");
  check.dtype(args.patches, "patches", args.x.dtype);
  const int64_t n = args.x.cols();
  check.require(args.patches.cols() == n, "patches and x have different row sizes");
  // x has one row more for each sample than patches, so their difference is the number of samples.
  const int64_t samples = args.x.rows() - args.patches.rows();
  if (samples < 1 || args.patches.rows() % samples != 0) [[unlikely]]
    check.fail(concat("x has ", args.x.rows(), " rows for ", args.patches.rows(), " patches: not one more per sample"));
  const int64_t positions = args.patches.rows() / samples + 1;
  if (args.class_embedding) check.count(args.class_embedding, "class_embedding", n);
  if (args.positions) check.matrix(args.positions, "positions", positions, n);
}

void check_table(const Checker& check, const PositionTable& args) {
  check.floating(args.x, "x");
  check.require(args.side > 0, "side is not positive");
  check.vector(args.positions, "positions", DType::i32, 4 * args.x.rows());
  check.matrix(args.table, "table", args.side * args.side, args.x.cols());
}

void check_text(const Checker& check, const TextEmbed& args) {
  check.floating(args.x, "x");
  check.dtype(args.ids, "ids", DType::i32);
  const int64_t n = args.x.cols(), samples = args.ids.rows(), tokens = args.ids.cols();
  check.require(args.prefix_rows >= 0, "prefix_rows is negative");
  check.require(args.token_scale > 0, "token_scale is not positive");
  if (args.row_positions) {
    check.vector(args.row_positions, "row_positions", DType::i32, samples);
    check.require(tokens == 1 && args.prefix_rows == 0 && !args.packing,
                  "row_positions goes with one id a sample, without prefix and packing");
  } else {
    check.vector(args.lengths, "lengths", DType::i32, samples);
  }
  const int64_t rows = args.packing ? args.x.rows() : samples * (args.prefix_rows + tokens);
  check.matrix(args.x, "x", rows, n);
  check.packing(args.packing, samples, args.prefix_rows + tokens, rows);
  if (rows < samples * args.prefix_rows) [[unlikely]]
    check.fail(concat("x has ", rows, " rows, fewer than ", samples, " samples with ", args.prefix_rows,
                      " prefix rows each"));
  if (args.prefix_of_row) {
    check.vector(args.prefix_of_row, "prefix_of_row", DType::i32, rows);
    check.vector(args.row_of_prefix, "row_of_prefix", DType::i32, args.row_of_prefix.numel());
    check.require(args.prefix_rows == 0 && !args.row_positions, "prefix_of_row goes without prefix_rows and row_positions");
  }
  const int64_t prefix = args.prefix_of_row ? args.row_of_prefix.numel() : samples * args.prefix_rows;
  if (args.prefix) check.matrix(args.prefix, "prefix", args.x.dtype, prefix, n);
  if (args.tokens) check.require(args.tokens.cols() == n, "tokens and x have different row sizes");
  if (args.positions) {
    check.require(args.positions.cols() == n, "positions and x have different row sizes");
    if (args.positions.rows() < args.prefix_rows + tokens + 2) [[unlikely]]
      check.fail(concat("positions has ", args.positions.rows(), " rows, but ", args.prefix_rows + tokens,
                        " tokens need ", args.prefix_rows + tokens + 2));
  }
}

}  // namespace

void check_args(const Patchify& args) {
  const Checker check{"patchify"};
  check.dtype(args.pixels, "pixels", DType::u8);
  check.floating(args.patches, "patches");
  const Shape& s = args.pixels.shape;
  if (s.rank != 4 || s[1] != s[2] || s[3] != 3) [[unlikely]]
    check.fail(concat("pixels has shape ", s.str(), ", expected [B, S, S, 3]"));
  if (args.patch < 1 || args.patch > s[1]) [[unlikely]]
    check.fail(concat("patch ", args.patch, " does not fit into the image size ", s[1]));
  const int64_t side = s[1] / args.patch;
  check.matrix(args.patches, "patches", s[0] * side * side, 3 * args.patch * args.patch);
  for (float deviation : args.std) check.require(deviation != 0, "std is 0");
}

void check_args(const PatchValues& args) {
  const Checker check{"patch_values"};
  check.dtype(args.pixels, "pixels", DType::u8);
  check.floating(args.values, "values");
  check.require(args.time > 0 && args.pixels.cols() % 3 == 0, "pixels have three colours, and patches at least one slice");
  check.matrix(args.values, "values", args.pixels.rows(), args.time * args.pixels.cols());
  for (float deviation : args.std) check.require(deviation != 0, "std is 0");
}

void check_args(const PositionTable& args) {
  const Checker check{"position_table_forward"};
  check_table(check, args);
  check.dtype(args.table, "table", args.x.dtype);
}

void check_backward_args(const PositionTable& args) {
  const Checker check{"position_table_backward"};
  check_table(check, args);
  check.parameter_gradient(args.table, "table", args.x.dtype);
}

void check_args(const VisionEmbed& args) {
  const Checker check{"vision_embed_forward"};
  check_vision(check, args);
  check.dtype(args.class_embedding, "class_embedding", args.x.dtype);
  check.dtype(args.positions, "positions", args.x.dtype);
}

void check_backward_args(const VisionEmbed& args) {
  const Checker check{"vision_embed_backward"};
  check_vision(check, args);
  if (!args.parameters) return;
  check.parameter_gradient(args.class_embedding, "class_embedding", args.x.dtype);
  check.parameter_gradient(args.positions, "positions", args.x.dtype);
}

void check_args(const TextEmbed& args) {
  const Checker check{"text_embed_forward"};
  check_text(check, args);
  check.require((args.prefix_rows == 0 && !args.prefix_of_row) || args.prefix, "prefix is missing");
  check.dtype(args.tokens, "tokens", args.x.dtype);
  if (args.positions) check.dtype(args.positions, "positions", args.x.dtype);
}

void check_backward_args(const TextEmbed& args) {
  const Checker check{"text_embed_backward"};
  check_text(check, args);
  check.require(!args.row_positions, "row_positions goes with forward only");
  if (args.tokens) check.parameter_gradient(args.tokens, "tokens", args.x.dtype);
  if (args.positions) check.parameter_gradient(args.positions, "positions", args.x.dtype);
}

}  // namespace blipft
