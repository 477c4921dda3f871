// Conversion of a Config to the settings of the folders below, which do not depend on Config.
#pragma once

#include "blipft/config.h"
#include "blipft/loading.h"
#include "engine/engine_settings.h"
#include "weights/adapter_files.h"

namespace blipft {

EngineSettings engine_settings(const Config& config);
StorageSettings storage_settings(const Config& config);
PeerMemorySettings peer_memory(const Config& config);
LoadingSettings loading_settings(const Config& config);
AdapterFiles adapter_files(const Config& config);

}  // namespace blipft
