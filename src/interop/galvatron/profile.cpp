#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <set>

#include "interop/galvatron/inputs.hpp"

namespace tessera::interop::galvatron {
namespace {

namespace fs = std::filesystem;

// Gaussian elimination with partial pivoting; `rows` are [coefficients | right-hand side].
std::vector<double> solve(std::vector<std::vector<double>> rows) {
  const int size = static_cast<int>(rows.size());
  for (int column = 0; column < size; ++column) {
    int pivot = column;
    for (int r = column + 1; r < size; ++r)
      if (std::abs(rows[r][column]) > std::abs(rows[pivot][column])) pivot = r;
    std::swap(rows[column], rows[pivot]);
    ensure(rows[column][column] != 0, "a polynomial through too few points");
    for (int r = column + 1; r < size; ++r) {
      const double factor = rows[r][column] / rows[column][column];
      for (int c = column; c <= size; ++c) rows[r][c] -= factor * rows[column][c];
    }
  }
  std::vector<double> solution(size);
  for (int r = size - 1; r >= 0; --r) {
    double rest = rows[r][size];
    for (int c = r + 1; c < size; ++c) rest -= rows[r][c] * solution[c];
    solution[r] = rest / rows[r][r];
  }
  return solution;
}

Line fit_line(const Samples& samples) {
  const std::vector<double> coefficients = fit_polynomial(samples, 1);
  return {coefficients[1], coefficients[0]};
}

// Where Galvatron keeps such files: beside the model's scripts, in its `configs`, or in the hardware profiler's folder.
fs::path find_file(const Settings& settings, const std::string& what, const std::string& folder, const std::string& name, bool hardware) {
  if (!folder.empty()) return first_existing(what, {fs::path(folder) / name, settings.file.parent_path() / folder / name});
  const fs::path here = settings.file.parent_path();
  std::vector<fs::path> places = {here / name, here / "configs" / name, here / ".." / "configs" / name};
  if (hardware) {
    const fs::path profiler = fs::path("profile_hardware") / "hardware_configs" / name;
    places = {here / name, here / ".." / ".." / profiler, here / ".." / ".." / ".." / profiler};
  }
  return first_existing(what, places);
}

ConfigNode load_hardware(const Settings& settings, const std::string& what, const std::string& folder, const std::string& stem) {
  const std::string name = text(stem, '_', settings.nodes, "nodes_", settings.devices_per_node, "gpus_per_node.json");
  return ConfigNode::load(find_file(settings, what, folder, name, true));
}

double positive(const ConfigNode& node) {
  const double value = node.as_double();
  if (!(value > 0)) throw node.error(text("found ", node.as_string()), "a number above zero");
  return value;
}

// The digits of "..._bsz8_..." behind `mark`; nothing when it is not there.
std::optional<int> number_behind(const std::string& key, const std::string& mark) {
  const std::size_t at = key.rfind(mark);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t from = at + mark.size(), to = std::min(key.find_first_not_of("0123456789", from), key.size());
  if (to == from || to - from > 9) return std::nullopt;
  return std::stoi(key.substr(from, to - from));
}

std::size_t distinct(const Samples& samples) {
  std::set<double> xs;
  for (const auto& [x, y] : samples) xs.insert(x);
  return xs.size();
}

// Times of one kind of layer, per sample, from keys such as "layertype_0_bsz4_seq2048".
ComputeTime read_compute(const ConfigNode& file, const std::string& prefix, const Settings& settings, int degree_in_seq) {
  Samples by_batch, by_seq;
  std::optional<double> first;
  for (const std::string& key : file.keys()) {
    if (!key.starts_with(prefix)) continue;
    const double time = positive(file.at(key));
    if (!first) first = time;
    const auto batch = number_behind(key, "_bsz"), seq = number_behind(key, "_seq");
    if (!batch || !seq) throw file.at(key).error("is not understood", prefix + "bszN_seqN");
    if (*seq == settings.seq) by_batch.emplace_back(*batch, time * *batch);
    if (*batch == 1) by_seq.emplace_back(*seq, time);
  }
  if (!first)
    throw Error(ErrorCode::invalid_config, text("no time of '", prefix, "...' is in the profile"), {file.file(), 0, 0, -1, {}},
                prefix + "bszN_seqN");
  const auto need = [&](const Samples& samples, std::size_t least, const std::string& of) {
    if (distinct(samples) < least)
      throw Error(ErrorCode::invalid_config,
                  text("time_profile_mode ", settings.time_profile_mode, " needs ", least, " ", of, " of '", prefix, "...'; found ",
                       distinct(samples)),
                  {file.file(), 0, 0, -1, {}}, "a profile with more of them", "time_profile_mode=static takes the first time as it is");
  };
  if (settings.time_profile_mode == "static") return {*first, std::nullopt};
  if (settings.time_profile_mode == "batch") {
    need(by_batch, 8, text("batch sizes at sequence length ", settings.seq));
    return {0, fit_line(by_batch)};
  }
  need(by_seq, degree_in_seq + 1, "sequence lengths at batch size 1");
  double time = 0, power = 1;
  for (double coefficient : fit_polynomial(by_seq, degree_in_seq)) {
    time += coefficient * power;
    power *= settings.seq;
  }
  return {time, std::nullopt};
}

std::map<int, double> by_degree(const ConfigNode& node, double factor, std::optional<double>* checkpoint = nullptr) {
  std::map<int, double> values;
  for (const std::string& key : node.keys()) {
    const double value = node.at(key).as_double() * factor;
    if (key == "checkpoint" && checkpoint != nullptr)
      *checkpoint = value;
    else if (const auto degree = number_behind("_" + key, "_"))
      values[*degree] = value;
    else
      throw node.at(key).error("is no degree of parallelism", "an integer");
  }
  return values;
}

// The entry of a sequence length; in mode "sequence" the longest profiled one, to be scaled.
ConfigNode of_sequence(const ConfigNode& group, const Settings& settings, double& factor) {
  factor = 1;
  const std::vector<std::string> keys = group.keys();
  if (settings.memory_profile_mode == "static") {
    const std::string key = std::to_string(settings.seq);
    if (group.has(key)) return group.at(key);
    throw group.error(text("sequence length ", key, " was not profiled"), fmt::format("seq_length of {}", fmt::join(keys, ", ")),
                      "or memory_profile_mode=sequence, which scales");
  }
  int longest = 0;
  for (const std::string& key : keys) longest = std::max(longest, number_behind("_" + key, "_").value_or(0));
  if (longest == 0) throw group.error("holds no sequence length", "an integer as key");
  factor = static_cast<double>(settings.seq) / longest;
  return group.at(std::to_string(longest));
}

OtherMemory read_other(const ConfigNode& file, const std::string& name, const Settings& settings) {
  double factor = 1;
  const ConfigNode node = of_sequence(file.at(name), settings, factor);
  return {by_degree(node.at("model_states"), 1), by_degree(node.at("activation"), factor)};
}

void read_memory(const Settings& settings, Profile& profile) {
  const std::string name = text("memory_profiling_", settings.mixed_precision, "_", settings.model, "_all.json");
  const ConfigNode file = ConfigNode::load(find_file(settings, "the memory profile", settings.memory_folder, name, false));
  const std::string ending = settings.sequence_parallel ? "_sp" : "";
  double factor = 1;
  const ConfigNode layer = of_sequence(file.at("layertype_0" + ending), settings, factor);
  profile.layer_parameters = positive(layer.at("parameter_size"));  // the same at every sequence length
  profile.layer_activation = by_degree(layer.at("tp_activation_per_bsz_dict"), factor, &profile.checkpoint_activation);
  profile.alone = read_other(file, "other_memory_pp_off" + ending, settings);
  profile.first = read_other(file, "other_memory_pp_on_first" + ending, settings);
  profile.last = read_other(file, "other_memory_pp_on_last" + ending, settings);
}

// Bandwidths in GB/s are taken as MB per millisecond, as Galvatron does.
void read_links(const Settings& settings, Profile& profile) {
  const ConfigNode reduce = load_hardware(settings, "the all-reduce bandwidth", settings.all_reduce_folder, "allreduce_bandwidth");
  profile.adjacent[1] = profile.strided[1] = 0;
  for (int size = settings.devices(); size >= 2; size /= 2) {
    const auto rate = [&](int adjacent) { return 1 / positive(reduce.at(text("allreduce_size_", size, "_consec_", adjacent))); };
    profile.adjacent[size] = rate(1);
    profile.strided[size] = rate(size == settings.devices() ? 1 : 0);
  }
  const ConfigNode p2p = load_hardware(settings, "the point-to-point bandwidth", settings.p2p_folder, "p2p_bandwidth");
  for (const std::string& key : p2p.keys())
    if (const auto size = number_behind(key, "pp_size_")) profile.point_to_point[*size] = 1 / positive(p2p.at(key));
  const ConfigNode overlap =
      ConfigNode::load(find_file(settings, "the overlap coefficient", settings.overlap_folder, "overlap_coefficient.json", true));
  profile.overlap_slowdown = positive(overlap.at("overlap_coe"));
}

// "allreduce_size_4_64MB_time": milliseconds. `factor`: a gather or scatter is half an all-reduce.
std::map<int, MessageTime> read_messages(const ConfigNode& file, const std::string& operation, double factor) {
  std::map<int, MessageTime> times;
  std::map<int, Samples> samples;
  for (const std::string& key : file.keys()) {
    if (!key.starts_with(operation + "_size_")) continue;
    const auto size = number_behind(key, "_size_");
    const auto mb = number_behind(key.substr(0, key.rfind("MB_time")), "_");
    if (!size || !mb) throw file.at(key).error("is not understood", operation + "_size_N_NMB_time");
    const double time = positive(file.at(key)) * factor;
    times[*size].measured[*mb] = time;
    samples[*size].emplace_back(*mb, time);
  }
  for (auto& [size, points] : samples) {
    if (distinct(points) < 8)
      throw Error(ErrorCode::invalid_config, text(operation, " among ", size, " was measured at ", distinct(points), " sizes"),
                  {file.file(), 0, 0, -1, {}}, "at least 8");
    times[size].line = fit_line(points);
  }
  return times;
}

}  // namespace

std::vector<double> fit_polynomial(const Samples& samples, int degree) {
  double scale = 0;
  for (const auto& [x, y] : samples) scale = std::max(scale, std::abs(x));
  if (scale == 0) scale = 1;
  // The normal equations in x / scale, whose powers stay near one.
  std::vector<std::vector<double>> rows(degree + 1, std::vector<double>(degree + 2, 0.0));
  for (const auto& [x, y] : samples)
    for (int r = 0; r <= degree; ++r) {
      for (int c = 0; c <= degree; ++c) rows[r][c] += std::pow(x / scale, r + c);
      rows[r][degree + 1] += std::pow(x / scale, r) * y;
    }
  std::vector<double> coefficients = solve(std::move(rows));
  for (int power = 1; power <= degree; ++power) coefficients[power] /= std::pow(scale, power);
  return coefficients;
}

Inputs read_inputs(const fs::path& yaml, const std::vector<std::string>& overrides, Release release) {
  Inputs inputs{read_settings(yaml, overrides), {}};
  inputs.settings.release = release;
  const Settings& settings = inputs.settings;
  const std::string name = text("computation_profiling_", settings.mixed_precision, "_", settings.model, "_all.json");
  const ConfigNode times = ConfigNode::load(find_file(settings, "the computation profile", settings.time_folder, name, false));
  // Attention makes a layer's time quadratic in the sequence; embedding and head are linear.
  inputs.profile.layer = read_compute(times, "layertype_0_", settings, 2);
  inputs.profile.other = read_compute(times, "layertype_other_", settings, 1);
  read_memory(settings, inputs.profile);
  read_links(settings, inputs.profile);
  const ConfigNode messages = load_hardware(settings, "the time of collectives by size", settings.sp_time_folder, "sp_time");
  inputs.profile.all_gather = read_messages(messages, "allreduce", 0.5);
  inputs.profile.all_to_all = read_messages(messages, "all2all", 1);
  return inputs;
}

}  // namespace tessera::interop::galvatron
