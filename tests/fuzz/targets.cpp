#include "fuzz/targets.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/config.hpp"
#include "base/file_system.hpp"
#include "base/folders.hpp"
#include "base/log.hpp"
#include "base/temporary_folder.hpp"
#include "cluster/cluster.hpp"
#include "cost/cost_model.hpp"
#include "fuzz/checks.hpp"
#include "model/hugging_face.hpp"
#include "model/job.hpp"
#include "profile/calibration.hpp"
#include "profile/profile.hpp"

namespace tessera::fuzz {

void must_be_equal(const std::string& first, const std::string& again, const std::string& what) {
  if (first != again) throw Defect(what + " is read back as something else:\n" + first + "\n--- again\n" + again);
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(kSourceFolder) + "/" + folder))
    if (entry.path().extension() == ".yaml" || entry.path().extension() == ".json") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> out;
  for (const auto& path : paths) out.push_back(read_whole(path));
  return out;
}

namespace {

// The first line is KEY=VALUE, as behind --set; the rest is the file.
Target config_target() {
  Target target;
  target.seeds = {
      "train.optimizer.lr=0.5\ntrain: {steps: 4, optimizer: {kind: adamw, lr: 1e-3}}\nparallel: auto\n",
      "parallel.dp={a: [1, 2]}\nparallel: auto\ntext: \"quoted \\n \\u00e9\"\nlist:\n  - &x {a: 1}\n  - *x\n  - |\n    block\n    text\n"};
  target.read = [](const std::string& input) {
    const std::size_t end = std::min(input.find('\n'), input.size());
    const std::string setting = input.substr(0, end);
    ConfigNode root = ConfigNode::parse(std::string_view(input).substr(std::min(end + 1, input.size())), "any.yaml");
    if (const std::size_t equals = setting.find('='); equals != std::string::npos)
      root = root.with_override(setting.substr(0, equals), setting.substr(equals + 1));
    const std::string json = root.to_json();
    root.to_yaml();
    const auto again = nlohmann::ordered_json::parse(json, nullptr, false);
    if (again.is_discarded()) throw Defect("to_json wrote no JSON: " + json);
  };
  return target;
}

void check_model(const model::ModelSpec& model) {
  if (model.parameter_count() < 0 || model.block_count() < 0) throw Defect("a model of negative size");
  if (!(model::training_flops_per_sample(model).value >= 0)) throw Defect("a model of negative work");
}

Target train_target() {
  Target target;
  target.seeds = files_of("tests/fuzz/seeds/train");
  target.seeds.push_back(read_whole(std::string(kSourceFolder) + "/examples/shakespeare/train.yaml"));
  target.read = [](const std::string& input) {
    const model::JobSpec job = model::read_job(ConfigNode::parse(input, "train.yaml"));
    check_model(job.model);
    for (const std::int64_t step : {std::int64_t{0}, job.train.steps / 2, job.train.steps - 1})
      if (!(model::learning_rate(job.train, step) >= 0))
        throw Defect(text("the learning rate of step ", step, " is ", model::learning_rate(job.train, step)));
    must_pass("the resolved train.yaml", [&] {
      const model::JobSpec again = model::read_job(ConfigNode::parse(job.resolved_yaml, "train.yaml"));
      must_be_equal(job.model.fingerprint(), again.model.fingerprint(), "the model");
      must_be_equal(job.resolved_yaml, again.resolved_yaml, "the job");
    });
  };
  return target;
}

// A config.json of Hugging Face, read as a job and as the model of one.
Target hugging_face_target() {
  Target target;
  target.seeds = files_of("tests/fuzz/seeds/hf");
  target.read = [folder = std::make_shared<TemporaryFolder>()](const std::string& input) {
    const log::Silence silence;
    const std::string file = folder->write("config.json", input).string();
    const auto config = ConfigNode::parse(input, file);
    if (!config.is_map() || !config.has("model_type") || config.has("model")) throw config.error("no config.json");
    const model::JobSpec job = model::read_job(file);
    check_model(job.model);
    must_pass("as the model of a job", [&] {
      const model::ModelSpec again = model::read_model(ConfigNode::parse("hf: \"" + file + "\"", "train.yaml"));
      must_be_equal(job.model.fingerprint(), again.fingerprint(), "the model");
    });
    model::hugging_face_yaml(file, model::ImportFor::computing);
    if (model::hugging_face_weights(file).further_layers < 0) throw Defect("fewer layers than none");
  };
  return target;
}

Target cluster_target() {
  Target target;
  target.seeds = files_of("tests/fuzz/seeds/cluster");
  target.read = [](const std::string& input) {
    const cluster::ClusterSpec cluster = cluster::read_cluster(ConfigNode::parse(input, "cluster.yaml"));
    if (cluster.device_count() < 1) throw Defect(text("a cluster of ", cluster.device_count(), " devices"));
    const int last = static_cast<int>(cluster.groups.size()) - 1;
    cluster::link_between(cluster, 0, 0, last, cluster.groups.back().nodes - 1);
    must_pass("what to_yaml wrote is refused", [&] {
      const std::string yaml = cluster::to_yaml(cluster);
      const cluster::ClusterSpec again = cluster::read_cluster(ConfigNode::parse(yaml, "again.yaml"));
      must_be_equal(yaml, cluster::to_yaml(again), "the cluster");
      must_be_equal(cluster.fingerprint(), again.fingerprint(), "the cluster's fingerprint");
    });
  };
  return target;
}

Target profile_target() {
  Target target;
  target.seeds = files_of("tests/fuzz/seeds/profile");
  target.read = [](const std::string& input) {
    const profile::Profile profile = profile::read_profile(ConfigNode::parse(input, "profile.json"));
    must_pass("what to_json wrote is refused", [&] {
      const std::string json = profile::to_json(profile);
      must_be_equal(json, profile::to_json(profile::read_profile(ConfigNode::parse(json, "again.json"))), "the profile");
    });
  };
  return target;
}

Target calibration_target() {
  const model::ModelSpec model = model::read_model(ConfigNode::parse("{preset: llama-3-8b}", "model.yaml"));
  const cluster::ClusterSpec cluster = cluster::read_cluster(ConfigNode::parse(
      "name: gpus\ngroups:\n  - {name: gpu, device: h100-sxm, nodes: 2, devices_per_node: 8, inside: nvlink4, network: rdma-400g}\n",
      "cluster.yaml"));
  Target target;
  target.seeds = files_of("src/profile/calibrations");
  target.read = [=](const std::string& input) {
    const profile::Calibration calibration = profile::read_calibration(ConfigNode::parse(input, "calibration.yaml"));
    must_pass("what to_yaml wrote is refused", [&] {
      const std::string yaml = profile::to_yaml(calibration);
      must_be_equal(yaml, profile::to_yaml(profile::read_calibration(ConfigNode::parse(yaml, "again.yaml"))), "the calibration");
    });
    must_pass("a plan cannot be priced with it", [&] {
      cost::Stack stack;
      stack.calibration = calibration;
      cost::CostModel cost_model(model, cluster, model::Precision::bf16, stack);
      const cost::BlockLoad load =
          cost_model.block(1, 0, {.dp = 4, .tp = 2, .zero = 1, .recompute = {}, .sequence_parallel = true, .context = {}}, 16);
      if (!(load.forward >= 0 && load.backward() >= 0 && load.exchange >= 0)) throw Defect("a negative time");
    });
  };
  return target;
}

constexpr std::pair<const char*, Target (*)()> kTargets[] = {{"config", config_target},
                                                             {"train", train_target},
                                                             {"hf", hugging_face_target},
                                                             {"cluster", cluster_target},
                                                             {"calibration", calibration_target},
                                                             {"plan", plan_target},
                                                             {"schedule", schedule_target},
                                                             {"trace", trace_target},
                                                             {"profile", profile_target},
                                                             {"galvatron", galvatron_target},
                                                             {"galvatron_plan", galvatron_plan_target},
                                                             {"safetensors", safetensors_target},
                                                             {"pickle", pickle_target},
                                                             {"manifest", manifest_target},
                                                             {"best", best_target},
                                                             {"weight_map", weight_map_target},
                                                             {"hf_tokens", special_tokens_target},
                                                             {"tokenizer", tokenizer_target},
                                                             {"sentencepiece", sentencepiece_target},
                                                             {"tokens", token_cache_target},
                                                             {"documents", documents_target},
                                                             {"click_log", click_log_target},
                                                             {"image", image_target},
                                                             {"idx", idx_target},
                                                             {"shard", shard_target},
                                                             {"ps_message", ps_message_target},
                                                             {"table_file", table_file_target},
                                                             {"saved_tables", saved_tables_target},
                                                             {"control", control_target},
                                                             {"rendezvous", rendezvous_target},
                                                             {"claim", claim_target},
                                                             {"hosts", hosts_target},
                                                             {"agent", agent_target}};

}  // namespace

std::vector<std::string> target_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kTargets) names.emplace_back(name);
  return names;
}

Target target_called(const std::string& name) {
  for (const auto& [known, make] : kTargets) {
    if (name != known) continue;
    Target target = make();
    target.name = name;
    return target;
  }
  throw Error(ErrorCode::not_found, "there is no target '" + name + "'");
}

Judgement judge(const Target& target, const std::string& input) {
  try {
    target.read(input);
    return {};
  } catch (const Error& error) {
    to_json(error);
    if (std::find(target.refusals.begin(), target.refusals.end(), error.code()) != target.refusals.end())
      return {Verdict::refused, error.what()};
    return {Verdict::defect, text("refused as ", name_of(error.code()), ", which is not for this file: ", error.what())};
  } catch (const Defect& defect) {
    return {Verdict::defect, defect.what()};
  } catch (const std::exception& other) {
    return {Verdict::defect, text("an exception that is no tessera::Error (", typeid(other).name(), "): ", other.what())};
  }
}

}  // namespace tessera::fuzz
