// The traffic of a plan's ranks in one step, by its programs: their instructions and the exchanges inside passes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "program/program.hpp"

namespace tessera::program {

// Why a group exchanges, by its name: "data", "sharding" (of parts of the replicas), "tensor", "context", "expert", "pipeline" (messages
// between stages), "tied" (a parameter that stages share); empty for others, such as that of all ranks and those of evaluations.
std::string dimension_of(const std::string& group);
// Of the messages between stages.
inline constexpr const char* kPipelineGroup = "pipeline";

struct Exchanged {
  std::string dimension;
  std::string operation;  // "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send"
  int ranks = 1;          // of the group; 1 of a message
  Bytes bytes;            // of one: as Instruction::bytes and model::Exchange::bytes have them
  auto operator<=>(const Exchanged&) const = default;
};

// How often each happens in a step, over all ranks: a collective once for each of its ranks, a message once. Without what all ranks sum at
// the step's end. Rows that go to experts on other ranks count as spread evenly. `programs` are those of all ranks, unfolded.
std::map<Exchanged, std::int64_t> exchanged_in_step(const std::vector<Program>& programs, const model::ModelSpec& model,
                                                    model::Precision precision);

}  // namespace tessera::program
