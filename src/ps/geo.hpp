// Tables that workers train on copies of their own, and whose differences they exchange from time to time: geo-SGD, as PaddlePaddle's
// parameter server names it.
#pragma once

#include <memory>
#include <span>

#include "ps/client.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

// The table on the servers that belongs to one whose workers train copies: `spec`'s rows, to which differences are added. Of a round,
// which is what a client's step (Client::end_step) is to it, those of all workers are added at once, in the workers' order. So a run's
// rows do not depend on who comes first.
TableSpec exchanged(const TableSpec& spec);

// A worker's copy of the rows that it has used, which grows with them, stepped by `spec.optimizer` where they lie. For each row that has
// changed in a round, exchange() sends the servers the row less what it was when the round first used it. These differences are added up,
// not divided by the number of workers: with SGD the servers' rows then move by the gradients of all workers, as those of a synchronous
// table do, and a row that a single worker has used moves as far as that worker has moved it. (PaddlePaddle divides, by which the rows of
// rare keys learn the less the more workers there are.)
//
// AdaGrad's sums of squared gradients are exchanged in the same way, through a second table named spec.name + "/squares": each worker then
// steps with those of all, as the pushes to an asynchronous table do, and they are among what the servers save. Adam's moments are no sums;
// each worker keeps its own, and a copy that begins anew begins with none, for which Adam's correction of the bias accounts.
//
// Other workers' rounds are seen where a row is used for the first time in a round: then it is fetched from the servers, and what the copy
// has changed meanwhile is put on top. Not thread-safe, and no other call goes to the client meanwhile.
class GeoTable {
 public:
  // Opens the tables. `client` is a worker, outlives this, and makes no other steps. Throws invalid_config for FTRL, which works out rows
  // from sums of its own gradients and would undo what others have changed; and as Client::open.
  GeoTable(Client& client, const TableSpec& spec);
  ~GeoTable();
  GeoTable(const GeoTable&) = delete;
  GeoTable& operator=(const GeoTable&) = delete;

  // Brings those of the keys' rows that this round has not used yet from the servers. Waits until all workers have exchanged as often.
  void fetch(std::span<const Key> keys);
  // The copy's rows, fetched where they have to be. `values`: [keys, dimension].
  void pull(std::span<const Key> keys, std::span<float> values);
  // Steps the copy's rows. `gradients`: [keys, dimension]; those of a key that repeats are added up first.
  PushResult push(std::span<const Key> keys, std::span<const float> gradients);
  // Sets the learning rate of this worker's pushes that follow.
  void set_learning_rate(float learning_rate);

  // Sends the round's differences, and begins another round. All workers exchange equally often.
  void exchange();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::ps
