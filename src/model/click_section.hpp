// Internal: the keys of a `data:` section that are said of click logs.
#pragma once

#include "model/job.hpp"

namespace tessera::model {

// `format`, `columns` and `negatives`. Throws invalid_config.
void read_clicks(const ConfigNode& node, DataSpec& data);
// Throws invalid_config where these do not fit one another or a model that reads clicks.
void check_clicks(const ConfigNode& node, const DataSpec& data, const ModelSpec& model);

}  // namespace tessera::model
