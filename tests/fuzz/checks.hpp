// What targets ask of a reader.
#pragma once

#include <string>
#include <vector>

#include "fuzz/targets.hpp"

namespace tessera::fuzz {

void must_be_equal(const std::string& first, const std::string& again, const std::string& what);

// What our own writer wrote must be read, so that no refusal may leave `action`.
template <typename Action>
void must_pass(const std::string& what, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    throw Defect(what + ": " + error.what());
  }
}

// The .yaml and .json files of a folder of the repository, in the order of their names.
std::vector<std::string> files_of(const std::string& folder);

Target plan_target();
Target schedule_target();
Target trace_target();
Target control_target();
Target rendezvous_target();
Target claim_target();
Target hosts_target();
Target agent_target();
Target galvatron_target();
Target galvatron_plan_target();
Target safetensors_target();
Target pickle_target();
Target manifest_target();
Target best_target();
Target weight_map_target();
Target special_tokens_target();
Target tokenizer_target();
Target sentencepiece_target();
Target token_cache_target();
Target documents_target();
Target click_log_target();
Target image_target();
Target idx_target();
Target shard_target();
Target ps_message_target();
Target table_file_target();
Target saved_tables_target();

}  // namespace tessera::fuzz
