// internal: reading fields of a parsed JSON file with errors that name the file and the field.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "data/in_file.hpp"

namespace tessera::data {

[[noreturn]] inline void bad_tokenizer(const std::string& file, const std::string& message) {
  throw Error(ErrorCode::corrupt, message, in_file(file), "a tokenizer.json as the `tokenizers` package writes it",
              "fetch or save the file again");
}

[[noreturn]] inline void unsupported_component(const std::string& file, const std::string& place, const std::string& name) {
  throw Error(ErrorCode::invalid_config, text("the ", place, " of this tokenizer has the component ", name, ", which is not supported"),
              in_file(file), "byte-level BPE as GPT-2, Llama-3 or Qwen2 have it",
              "use another tokenizer, or train one with `tessera data tokenizer`");
}

// The member `name` of an object as T, or `fallback` when it is missing or null.
template <typename T>
T json_field(const nlohmann::json& object, const char* name, T fallback, const std::string& file) {
  if (!object.is_object()) bad_tokenizer(file, text("an object with the field ", name, " is missing"));
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return fallback;
  bool fits = false;
  if constexpr (std::is_same_v<T, bool>) {
    fits = found->is_boolean();
  } else if constexpr (std::is_integral_v<T>) {
    fits = found->is_number_integer();
  } else {
    fits = found->is_string();
  }
  if (!fits) bad_tokenizer(file, text("the field ", name, " has the wrong type"));
  return found->template get<T>();
}

}  // namespace tessera::data
