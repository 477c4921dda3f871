// DeviceSampler: a thread that samples the state of the device and of the process periodically.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "blipft/monitor.h"

namespace blipft {

class DeviceSampler {
 public:
  /// Takes a sample now and then one every `seconds`. `take` receives each sample in the sampler's thread, without a
  /// time. `monitor` must outlive the sampler. A `take` that throws ends the sampling, not the program.
  DeviceSampler(const DeviceMonitor& monitor, double seconds, std::function<void(const DeviceRecord&)> take);
  /// Takes a sample now, in the calling thread.
  void sample();
  /// Ends the thread without waiting for the next sample.
  ~DeviceSampler();
  DeviceSampler(const DeviceSampler&) = delete;
  DeviceSampler& operator=(const DeviceSampler&) = delete;

 private:
  void run(double seconds);

  const DeviceMonitor& monitor_;
  std::function<void(const DeviceRecord&)> take_;
  std::mutex sampling_, mutex_;               // sampling_: one sample at a time; mutex_: guards ending_
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace blipft
