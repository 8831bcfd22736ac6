// What a run that is resumed may change: hyper-parameters at will, the data that it is trained on by name, the model never.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "data/dataset.hpp"
#include "model/job.hpp"
#include "observe/config_difference.hpp"

namespace tessera::observe {

// What a run's samples and their order rest on, by key of train.yaml: "train.seed" -> "1". "data.source" stands for the stream of tokens,
// as a hash, wherever the text lies; "data.tokenizer" for the tokenizer. A run keeps this in its data.json.
using DataIdentity = std::map<std::string, std::string>;
DataIdentity data_identity(const model::JobSpec& job, const data::Dataset& dataset);
void write_data_identity(const std::filesystem::path& run, const DataIdentity& identity);

// Returns what `job`, whose resolved YAML is `yaml`, says otherwise than the run's train.yaml. Throws invalid_config where it has another
// model or fewer steps than the run has made, where the run has made all its steps and its training differs, where the data differ and
// neither the key nor a section that holds it is in `changed`
// ("train.seed", "data"), and where `changed` names what is no such key. Touches nothing.
std::vector<ConfigDifference> check_resumed(const model::JobSpec& job, const std::string& yaml, const data::Dataset& dataset,
                                            const std::filesystem::path& run, const std::vector<std::string>& changed);

// Tells the user of them: "train.optimizer.lr: 0.001, now 0.0005", one line each. Nothing where there are none.
void show_changes(const std::vector<ConfigDifference>& differences);

}  // namespace tessera::observe
