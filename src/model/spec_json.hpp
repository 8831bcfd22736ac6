// A model as JSON, all of it: what one program hands to another.
#pragma once

#include <string>

#include "model/model.hpp"

namespace tessera::model {

std::string to_json(const ModelSpec& model);
// Throws corrupt, naming `file`, where it is no such text.
ModelSpec model_from_json(const std::string& json, const std::string& file);

}  // namespace tessera::model
