// NVML functions loaded by name; see nvml.h. The declarations follow NVML's manual; its binary interface is stable.
#include "cuda/device/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <vector>

namespace blipft {

namespace {

constexpr int kSuccess = 0, kInsufficientSize = 7;
constexpr unsigned kClockSm = 1, kClockMemory = 2, kTemperatureGpu = 0;
constexpr unsigned long long kNotAvailable = ~0ull;

struct Utilization {
  unsigned gpu, memory;                    // percent of time
};
struct Memory {
  unsigned long long total, free, used;
};
struct Process {                           // struct of the _v3 function
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

struct Nvml::Functions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device)(const char*, void**) = nullptr;
  int (*utilization)(void*, Utilization*) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;
  int (*energy)(void*, unsigned long long*) = nullptr;
  int (*clock)(void*, unsigned, unsigned*) = nullptr;
  int (*temperature)(void*, unsigned, unsigned*) = nullptr;
  int (*memory)(void*, Memory*) = nullptr;
  int (*processes)(void*, unsigned*, Process*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
};

Nvml::Nvml(void* library, std::unique_ptr<Functions> functions) : library_(library), functions_(std::move(functions)) {}

Nvml::~Nvml() {
  functions_->shutdown();
  dlclose(library_);
}

std::unique_ptr<Nvml> Nvml::open(const std::string& pci_bus_id) {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return nullptr;
  auto f = std::make_unique<Functions>();
  // These three functions are required; each of the others may be missing.
  if (!find(library, "nvmlInit_v2", f->init) || !find(library, "nvmlShutdown", f->shutdown) ||
      !find(library, "nvmlDeviceGetHandleByPciBusId_v2", f->device) || f->init() != kSuccess) {
    dlclose(library);
    return nullptr;
  }
  find(library, "nvmlDeviceGetUtilizationRates", f->utilization);
  find(library, "nvmlDeviceGetPowerUsage", f->power);
  find(library, "nvmlDeviceGetTotalEnergyConsumption", f->energy);
  find(library, "nvmlDeviceGetClockInfo", f->clock);
  find(library, "nvmlDeviceGetTemperature", f->temperature);
  find(library, "nvmlDeviceGetMemoryInfo", f->memory);
  find(library, "nvmlDeviceGetComputeRunningProcesses_v3", f->processes);
  find(library, "nvmlSystemGetDriverVersion", f->driver_version);
  std::unique_ptr<Nvml> nvml(new Nvml(library, std::move(f)));
  if (nvml->functions_->device(pci_bus_id.c_str(), &nvml->device_) != kSuccess) return nullptr;
  return nvml;
}

bool Nvml::utilization(double& percent) const {
  Utilization answer{};
  if (!functions_->utilization || functions_->utilization(device_, &answer) != kSuccess) return false;
  percent = answer.gpu;
  return true;
}

bool Nvml::power(double& watts) const {
  unsigned milliwatts = 0;
  if (!functions_->power || functions_->power(device_, &milliwatts) != kSuccess) return false;
  watts = milliwatts * 1e-3;
  return true;
}

bool Nvml::energy(double& joules) const {
  unsigned long long millijoules = 0;
  if (!functions_->energy || functions_->energy(device_, &millijoules) != kSuccess) return false;
  joules = static_cast<double>(millijoules) * 1e-3;
  return true;
}

bool Nvml::clocks(double& sm_mhz, double& memory_mhz) const {
  unsigned sm = 0, memory = 0;
  if (!functions_->clock || functions_->clock(device_, kClockSm, &sm) != kSuccess ||
      functions_->clock(device_, kClockMemory, &memory) != kSuccess)
    return false;
  sm_mhz = sm;
  memory_mhz = memory;
  return true;
}

bool Nvml::temperature(double& celsius) const {
  unsigned answer = 0;
  if (!functions_->temperature || functions_->temperature(device_, kTemperatureGpu, &answer) != kSuccess) return false;
  celsius = answer;
  return true;
}

bool Nvml::memory_used(int64_t& bytes) const {
  Memory answer{};
  if (!functions_->memory || functions_->memory(device_, &answer) != kSuccess) return false;
  bytes = static_cast<int64_t>(answer.used);
  return true;
}

bool Nvml::process_memory(int64_t& bytes) const {
  if (!functions_->processes) return false;
  std::vector<Process> processes(64);
  int status = kInsufficientSize;
  for (int i = 0; i < 4 && status == kInsufficientSize; ++i) {  // other processes may start in between
    unsigned count = static_cast<unsigned>(processes.size());
    status = functions_->processes(device_, &count, processes.data());
    processes.resize(status == kInsufficientSize ? count + 16 : count);
  }
  if (status != kSuccess) return false;
  const unsigned self = static_cast<unsigned>(getpid());
  for (const Process& process : processes) {
    if (process.pid != self || process.used_memory == kNotAvailable) continue;
    bytes = static_cast<int64_t>(process.used_memory);
    return true;
  }
  return false;
}

std::string Nvml::driver_version() const {
  char text[96] = "";
  if (!functions_->driver_version || functions_->driver_version(text, sizeof text) != kSuccess) return "";
  return text;
}

}  // namespace blipft
