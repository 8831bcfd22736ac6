// Internal to the compiler: what ZeRO-2 and ZeRO-3 add to the passes of a rank.
#pragma once

#include <map>

#include "program/passes.hpp"
#include "program/program.hpp"

namespace tessera::program {

// The program holds its buckets and passes and messages alone, and under a delayed exchange the steps that these wait for. Cuts each pass
// where a bucket under ZeRO-2 or 3 begins, and adds
//   - under ZeRO-3, a gather of each bucket before the passes that read it, at the earliest when the pass before the last one ends: a rank
//     holds the gathered parameters of two neighbouring passes at most; under a delayed exchange after the step of the bucket, too;
//   - under ZeRO-2 and 3, a reduce-scatter of each bucket after each micro-batch's backward pass, for which the next pass that adds to the
//     bucket waits.
// `loss_block`: whose forward pass adds to gradients, too; -1 where none does. Returns the last reduction of each such bucket; `passes`
// then says where its instructions stand now.
std::map<int, int> add_shard_exchanges(Program& program, PassResult& passes, int loss_block, Bytes element);

}  // namespace tessera::program
