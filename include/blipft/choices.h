// Choices: the enums that a run file sets, with the words that stand for their values there.
//
// Each enum is declared once, here, and used by the run file and by the code that acts on it. Only choice_word()
// and find_choice() convert between values and words, so no other code compares strings of a run file.
#pragma once

#include <array>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace blipft {

/// model.init: the source of the first weights.
enum class InitialWeights { pretrained, random };
/// model.quantize: the storage format of frozen layers' weights.
enum class WeightQuantization { none, nf4, int8, fp8 };
/// adapter.kind
enum class AdapterKind { none, lora };
/// adapter.dtype: the type of adapter weights, gradients and optimizer states.
enum class AdapterDtype { f32, bf16 };
/// data.format
enum class DatasetFormat { automatic, imagefolder, webdataset, json, csv };
/// data.transparency: composite transparent pixels over white, or ignore the alpha channel.
enum class Transparency { white, drop };
/// data.answers: how a prompt with several answers becomes samples. `draw` uses one answer in each pass, drawn by the
/// answers' weights; `all` makes a sample of each answer; `common` uses the answer of the largest weight, the first if
/// several have it.
enum class AnswerSelection { draw, all, common };
/// A switch that can be left to the program: data.append_eos, generate.do_sample.
enum class AutoSwitch { automatic, on, off };
/// data.text_padding
enum class TextPadding { automatic, packed, longest, max };
/// data.on_bad_sample, train.on_nonfinite: end the run, or continue without the sample or update.
enum class FaultAction { stop, skip };
/// train.lr_schedule: the learning rate after the warm-up.
enum class LearningRateCurve { constant, linear, cosine };
/// train.precision
enum class Precision { f32_true, bf16_true, bf16_mixed };
/// train.matmul_precision: f32 or TF32 products on GPUs with precision 32-true.
enum class MatmulPrecision { highest, high };
/// train.matmul: the type of the factors of layers' products.
enum class MatmulType { precision, fp8 };
/// train.fp8_gradients: the 8-bit float of output gradients.
enum class Fp8GradientType { e4m3, e5m2 };
/// train.fp8_keep_weights, train.fp8_keep_inputs: which 8-bit copies are kept for later use in the same step.
enum class Fp8Retention { automatic, all, none };
/// train.act_ckpt: the layers that recompute their forward pass in backward.
enum class LayerCheckpointing { none, half, full };
/// train.loss_normalization: mean over the tokens of a step, or mean of the micro-batches' means.
enum class LossNormalization { tokens, micro_batch };
/// parallel.device
enum class DeviceChoice { automatic, cpu, cuda };
/// parallel.strategy; automatic is single on one rank and ddp on several.
enum class StrategyKind { automatic, single, ddp, fsdp };
/// parallel.reshard: when fsdp frees gathered parameters.
enum class ReshardPolicy { automatic, always, step };
/// parallel.offload: what lies in page-locked host memory. The optimizer has states and master weights; activations are
/// the inputs of checkpointed layers.
enum class OffloadedData { optimizer, parameters, activations };
/// parallel.gemm_search
enum class GemmSearchTime { quick, thorough };
/// trace.spans
enum class SpanTracing { none, units };
/// trace.on_error
enum class TraceErrorAction { warn, stop };
/// output.save: all tensors of the model, or only the trained ones.
enum class SavedTensors { all, trained };
/// output.save_dtype
enum class SavedDtype { automatic, f32, bf16 };
/// checkpoint.resume, unless it is the path of a checkpoint.
enum class ResumeMode { never, automatic };
/// checkpoint.keep_best, unless it is the name of a metric.
enum class BestCriterion { none, loss };
/// checkpoint.time_limit, unless it is a duration.
enum class TimeLimit { none };
/// parallel.shard_ranks, unless it is a number.
enum class ShardGroup { all, node };
/// generate.weights, unless it is the path of a model, an adapter or a checkpoint.
enum class WeightsChoice { automatic, base };
/// data.prompt_style of instruction and input, unless it is a text with {instruction} in it.
enum class PromptStyle { alpaca, none, chat };
/// data.chat_template, unless it is the name of a format or the path of a template.
enum class TemplateChoice { automatic };
/// data.train_on: which answers of a conversation.
enum class TrainOn { all, last };
/// generate.early_stopping of beam search, with the meaning of transformers' generate().
enum class EarlyStopping { no, yes, never };

/// The words of an enum in a run file, in the order of its enumerators.
template <class E>
struct ChoiceWords;

#define BLIPFT_CHOICE_WORDS(type, ...)                            \
  template <>                                                     \
  struct ChoiceWords<type> {                                      \
    static constexpr std::array words = std::to_array<std::string_view>({__VA_ARGS__}); \
  }
BLIPFT_CHOICE_WORDS(InitialWeights, "pretrained", "random");
BLIPFT_CHOICE_WORDS(WeightQuantization, "none", "nf4", "int8", "fp8");
BLIPFT_CHOICE_WORDS(AdapterKind, "none", "lora");
BLIPFT_CHOICE_WORDS(AdapterDtype, "f32", "bf16");
BLIPFT_CHOICE_WORDS(DatasetFormat, "auto", "imagefolder", "webdataset", "json", "csv");
BLIPFT_CHOICE_WORDS(Transparency, "white", "drop");
BLIPFT_CHOICE_WORDS(AnswerSelection, "draw", "all", "common");
BLIPFT_CHOICE_WORDS(AutoSwitch, "auto", "true", "false");
BLIPFT_CHOICE_WORDS(TextPadding, "auto", "packed", "longest", "max");
BLIPFT_CHOICE_WORDS(FaultAction, "stop", "skip");
BLIPFT_CHOICE_WORDS(LearningRateCurve, "constant", "linear", "cosine");
BLIPFT_CHOICE_WORDS(Precision, "32-true", "bf16-true", "bf16-mixed");
BLIPFT_CHOICE_WORDS(MatmulPrecision, "highest", "high");
BLIPFT_CHOICE_WORDS(MatmulType, "default", "fp8");
BLIPFT_CHOICE_WORDS(Fp8GradientType, "e4m3", "e5m2");
BLIPFT_CHOICE_WORDS(Fp8Retention, "auto", "all", "none");
BLIPFT_CHOICE_WORDS(LayerCheckpointing, "none", "half", "full");
BLIPFT_CHOICE_WORDS(LossNormalization, "tokens", "micro_batch");
BLIPFT_CHOICE_WORDS(DeviceChoice, "auto", "cpu", "cuda");
BLIPFT_CHOICE_WORDS(StrategyKind, "auto", "single", "ddp", "fsdp");
BLIPFT_CHOICE_WORDS(ReshardPolicy, "auto", "always", "step");
BLIPFT_CHOICE_WORDS(OffloadedData, "optimizer", "parameters", "activations");
BLIPFT_CHOICE_WORDS(GemmSearchTime, "quick", "thorough");
BLIPFT_CHOICE_WORDS(SpanTracing, "none", "units");
BLIPFT_CHOICE_WORDS(TraceErrorAction, "warn", "stop");
BLIPFT_CHOICE_WORDS(SavedTensors, "all", "trained");
BLIPFT_CHOICE_WORDS(SavedDtype, "auto", "f32", "bf16");
BLIPFT_CHOICE_WORDS(EarlyStopping, "false", "true", "never");
BLIPFT_CHOICE_WORDS(ResumeMode, "never", "auto");
BLIPFT_CHOICE_WORDS(BestCriterion, "none", "loss");
BLIPFT_CHOICE_WORDS(TimeLimit, "none");
BLIPFT_CHOICE_WORDS(ShardGroup, "all", "node");
BLIPFT_CHOICE_WORDS(WeightsChoice, "auto", "base");
BLIPFT_CHOICE_WORDS(PromptStyle, "alpaca", "none", "chat");
BLIPFT_CHOICE_WORDS(TrainOn, "all", "last");
BLIPFT_CHOICE_WORDS(TemplateChoice, "auto");
#undef BLIPFT_CHOICE_WORDS

template <class E>
concept Choice = requires { ChoiceWords<E>::words; };

/// The word of `value` in a run file.
template <Choice E>
constexpr std::string_view choice_word(E value) {
  return ChoiceWords<E>::words[static_cast<size_t>(value)];
}

/// The value that `word` stands for; null if there is none.
template <Choice E>
constexpr std::optional<E> find_choice(std::string_view word) {
  for (size_t i = 0; i < ChoiceWords<E>::words.size(); ++i)
    if (ChoiceWords<E>::words[i] == word) return static_cast<E>(i);
  return std::nullopt;
}

/// Prints the word, so that messages can quote a setting.
template <Choice E>
std::ostream& operator<<(std::ostream& out, E value) {
  return out << choice_word(value);
}

/// The words of a list: "optimizer,parameters".
template <Choice E>
std::string choice_list(const std::vector<E>& values) {
  std::string text;
  for (const E value : values) text.append(text.empty() ? "" : ",").append(choice_word(value));
  return text;
}

/// A choice, or a user's text in its place: a path, a name, a number.
template <Choice E>
struct ChoiceOrText {
  std::string text;                          ///< the word of the choice, or the user's text

  ChoiceOrText(E value) : text(choice_word(value)) {}
  ChoiceOrText(std::string given) : text(std::move(given)) {}
  ChoiceOrText(const char* given) : text(given) {}
  bool operator==(E value) const { return text == choice_word(value); }
  bool operator==(const ChoiceOrText&) const = default;
};

template <Choice E>
std::ostream& operator<<(std::ostream& out, const ChoiceOrText<E>& value) {
  return out << value.text;
}

}  // namespace blipft
