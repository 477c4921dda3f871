// What DecodeProgram keeps on the device, and on its way to the host: for decode_program.cpp alone.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/decode/decode_program.h"

namespace blipft {

// Tensors laid out one after the other; without memory it only counts.
class DecodeProgram::Block {
 public:
  static constexpr int64_t kAlignment = 256;
  explicit Block(void* memory = nullptr) : memory_(static_cast<char*>(memory)) {}
  Tensor add(DType dtype, const Shape& shape) {
    const Tensor tensor{memory_ ? memory_ + bytes_ : nullptr, dtype, shape};
    bytes_ += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    return tensor;
  }
  int64_t bytes() const { return std::max(bytes_, kAlignment); }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

struct DecodeProgram::State {
  // What is copied from the host for a reading of prompts, as one: the batch, then places of rows and slots of texts.
  Tensor batch;                            // u8
  Tensor row_slots, row_places;            // i32 [R]
  Tensor last_rows, prompt_slots, prompt_limits;  // i32 [G, 1], [G], [G]; prompt_slots: with beams the text's number
  Tensor memory_slots, memory_places;      // i32 [N]: of the encoder's rows, the number of their text, and their place
  int64_t prompt_bytes = 0;                // of all of it
  DecodeState decode;
  Tensor ends;                             // i32 [E]
  Tensor tokens, row_of_slot, lengths;     // i32 [S, 1], [S], [S]: of a step
  Tensor scores, log_probs;                // f32 [S, V] scratch; [S, L]
  Tensor row_loss, loss, loss_weight;      // f32 [labels], [1], [1]: of scored texts
  // Of beams.
  Tensor sources, sources_before, ids_before;  // i32 [S, C], [S, C], [S, L]
  Tensor beam_scores, finished_scores;     // f32 [S / B, B]
  Tensor finished_ids, finished_lengths, closed;  // i32 [S / B, B, L], [S / B, B], [S / B]
  std::vector<KvCache> layers;
  // Of models with an encoder: a text's beams share what it made of their prompt.
  Tensor memory_lengths, memory_sources;   // i32 [S], [S, P]
  std::vector<KvCache> memory_layers;      // of S / B slots
};

// Copies of the state on their way to the host.
struct DecodeProgram::Readback {
  Readback(Device& device, int64_t bytes) : memory(device, bytes), done(device.create_event()) {}
  HostMemory memory;
  Event done;
};

}  // namespace blipft
