// The values of a tensor of any device, on the host.
#pragma once

#include <cstring>
#include <vector>

#include "blipft/device.h"
#include "blipft/tensor.h"
#include "ops/bf16.h"

namespace blipft::testing {

/// Returns the values of an f32 or bf16 tensor, after all work of the device.
inline std::vector<float> host_values(Device& device, const Tensor& tensor) {
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
  device.copy(bytes.data(), tensor.data, tensor.bytes(), device.compute_stream());
  device.synchronize();
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  const auto* bf16 = reinterpret_cast<const uint16_t*>(bytes.data());
  if (tensor.dtype == DType::f32) std::memcpy(values.data(), bytes.data(), bytes.size());
  else for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_to_float(bf16[i]);
  return values;
}

}  // namespace blipft::testing
