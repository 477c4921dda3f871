// The state of DecodeProgram on the device and its copies on the host. Only decode_program.cpp includes this file.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/decode/decode_program.h"

namespace blipft {

// Consecutive tensors in a block of memory. Without memory it only counts bytes.
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
  // One copy from the host before prompts are read: the batch, then the cache positions of its rows and slots of texts.
  Tensor batch;                            // u8
  Tensor row_slots, row_positions;            // i32 [R]
  Tensor last_rows, prompt_slots, prompt_limits;  // i32 [G, 1], [G], [G]; prompt_slots: slot / B
  Tensor prompt_deltas;                    // i32 [G], with positions on three axes: see BeginTexts::deltas
  Tensor memory_slots, memory_positions;      // i32 [N], per encoder row: slot / B and cache position
  int64_t prompt_bytes = 0;                // bytes of this copy
  DecodeState decode;
  Tensor ends;                             // i32 [E]
  Tensor tokens, row_of_slot, lengths;     // i32 [S, 1], [S], [S]: inputs of a decode pass
  Tensor slot_deltas, rotary_positions;    // i32 [S], with positions on three axes: see NextRows
  Tensor scores, log_probs;                // f32 [S, V] scratch; [S, L]
  Tensor row_loss, loss, loss_weight;      // f32 [labels], [1], [1]: for scored texts
  // Beam search:
  Tensor sources, sources_before, ids_before;  // i32 [S, C], [S, C], [S, L]
  Tensor beam_scores, finished_scores;     // f32 [S / B, B]
  Tensor finished_ids, finished_lengths, closed;  // i32 [S / B, B, L], [S / B, B], [S / B]
  std::vector<KvCache> layers;
  // Models with an encoder; the beams of a text share the encoder's output:
  Tensor memory_lengths, memory_sources;   // i32 [S], [S, P]
  std::vector<KvCache> memory_layers;      // S / B slots each
};

// A copy of the state in host memory, complete when `done` is reached.
struct DecodeProgram::Readback {
  Readback(Device& device, int64_t bytes) : memory(device, bytes), done(device.create_event()) {}
  HostMemory memory;
  Event done;
};

}  // namespace blipft
