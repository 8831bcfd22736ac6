#include "train/relabel.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "train/held_state.hpp"

namespace tessera::train {
namespace {

using checkpoint::Piece;

// Whose first dimension counts experts: their weights, and the router's rows and biases.
bool is_of_experts(const model::BlockSpec& block, const model::ParameterSpec& parameter) {
  return parameter.expert_dim == 0 ||
         (parameter.shape.front() == block.dim("experts") && parameter.name.find(".gate.") != std::string::npos);
}

// Of a tensor of experts, what a piece holds of each, in its new place and in memory of its own.
void add_relabelled(std::vector<Piece>& out, const Piece& piece, const std::vector<int>& labels) {
  const std::int64_t each = std::accumulate(piece.shape.begin() + 1, piece.shape.end(), std::int64_t{1}, std::multiplies<>());
  for (std::int64_t begin = piece.flat_begin; begin < piece.flat_end;) {
    const std::int64_t expert = begin / each;
    const std::int64_t end = std::min(piece.flat_end, (expert + 1) * each);
    const std::int64_t shift = (labels.at(static_cast<std::size_t>(expert)) - expert) * each;
    Piece& part = out.emplace_back(piece);
    part.flat_begin = begin + shift;
    part.flat_end = end + shift;
    part.data = piece.data.narrow(0, begin - piece.flat_begin, end - begin).clone();
    begin = end;
  }
}

}  // namespace

void relabel_experts(Store& store, comm::Communicator& comm, const model::ModelSpec& model, const ExpertLabels& labels) {
  std::set<std::string> parameters;
  std::map<std::string, const std::vector<int>*> labels_of;  // by a piece's name
  const auto blocks = model.blocks();
  for (const auto& [index, of_block] : labels) {
    const model::BlockInstance& block = blocks.at(static_cast<std::size_t>(index));
    for (const model::ParameterSpec& parameter : block.spec->parameters) {
      if (!is_of_experts(*block.spec, parameter)) continue;
      const std::string name = block.parameter_name(parameter);
      parameters.insert(name);
      for (const char* suffix : {"", ".exp_avg", ".exp_avg_sq", ".momentum"}) labels_of[name + suffix] = &of_block;
    }
  }
  std::vector<Piece> held;
  for (int bucket = 0; bucket < store.bucket_count(); ++bucket)
    for (const Piece& piece : store.pieces(bucket, Holds::all))
      if (const auto found = labels_of.find(piece.name); found != labels_of.end()) add_relabelled(held, piece, *found->second);
  store.load([&](std::vector<Piece>& wanted) { fill_from_all(comm, held, wanted); }, true, parameters);
}

}  // namespace tessera::train
