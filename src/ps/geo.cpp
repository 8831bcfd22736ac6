#include "ps/geo.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "ps/batch.hpp"
#include "ps/key_index.hpp"
#include "ps/update.hpp"

namespace tessera::ps {
namespace {

// What a round has used so far.
struct Round {
  KeyIndex places;  // of the keys among `keys`
  std::vector<Key> keys;
  std::vector<float> base;  // [keys, shared]: what the servers' rows were, as far as this worker knows
  std::vector<bool> fresh;  // fetched in this round
};

TableSpec copy_of(TableSpec spec) {
  if (spec.optimizer.rule == Rule::ftrl)
    throw Error(ErrorCode::invalid_config, text("table ", spec.name, ": workers cannot exchange differences of rows that FTRL trains"), {},
                "AdaGrad, Adam or SGD");
  spec.type = RowType::fp32;  // the servers round
  return spec;
}

TableSpec squares_of(const TableSpec& spec) {
  TableSpec squares = exchanged(spec);
  squares.name += "/squares";
  squares.dimension = static_cast<int>(state_floats(spec.optimizer, spec.dimension));
  squares.type = RowType::fp32;
  squares.initializer = {.kind = InitialValues::zero};
  return squares;
}

}  // namespace

TableSpec exchanged(const TableSpec& spec) {
  return {.name = spec.name,
          .dimension = spec.dimension,
          .type = spec.type,
          .optimizer = {.rule = Rule::add},
          .initializer = spec.initializer,
          .consistency = Consistency::synchronous};
}

struct GeoTable::Impl {
  Impl(Client& of, const TableSpec& spec)
      : client(of),
        copy(copy_of(spec)),
        dimension(static_cast<std::size_t>(spec.dimension)),
        squares(spec.optimizer.rule == Rule::adagrad ? state_floats(spec.optimizer, spec.dimension) : 0),
        shared(dimension + squares),
        stored(copy.stored_row_bytes() / sizeof(float)),
        values_table(client.open(exchanged(spec))),
        squares_table(squares > 0 ? client.open(squares_of(spec)) : values_table) {}

  // The copy's rows as they are stored, [keys, stored]: values, then the optimizer's state, of which the first `squares` are shared.
  std::vector<float> rows_of(std::span<const Key> keys) {
    std::vector<float> rows(keys.size() * stored);
    copy.copy_stored(keys, std::as_writable_bytes(std::span(rows)));
    return rows;
  }

  // [keys, shared].
  std::vector<float> servers_rows(std::span<const Key> keys) {
    std::vector<float> values(keys.size() * dimension);
    client.pull(values_table, keys, values);
    if (squares == 0) return values;
    std::vector<float> sums(keys.size() * squares), rows(keys.size() * shared);
    client.pull(squares_table, keys, sums);
    const float initial = copy.spec().optimizer.initial_moment;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      float* const row = rows.data() + i * shared;
      std::copy_n(values.data() + i * dimension, dimension, row);
      for (std::size_t d = 0; d < squares; ++d) row[dimension + d] = initial + sums[i * squares + d];
    }
    return rows;
  }

  // The key's place in the round, and whether it is new there.
  std::pair<std::size_t, bool> place_of(Key key) {
    if (const std::uint32_t known = round.places.find(key); known != KeyIndex::kNone) return {known, false};
    const std::size_t place = round.keys.size();
    round.places.insert(key, static_cast<std::uint32_t>(place));
    round.keys.push_back(key);
    round.base.resize(round.base.size() + shared);
    round.fresh.push_back(false);
    return {place, true};
  }

  std::span<const Key> told_apart(std::span<const Key> keys) {
    batch.start(keys, 1);
    batch.deal(keys.size());
    return batch.parts().front().keys;
  }

  void fetch(std::span<const Key> keys) {
    std::vector<Key> wanted;
    for (const Key key : told_apart(keys)) {
      const std::uint32_t known = round.places.find(key);
      if (known == KeyIndex::kNone || !round.fresh[known]) wanted.push_back(key);
    }
    if (wanted.empty()) return;
    const std::vector<float> there = servers_rows(wanted);
    std::vector<float> here = rows_of(wanted);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const auto [place, is_new] = place_of(wanted[i]);
      const float* const from = there.data() + i * shared;
      float* const row = here.data() + i * stored;
      float* const base = round.base.data() + place * shared;
      for (std::size_t d = 0; d < shared; ++d) {
        row[d] = is_new ? from[d] : from[d] + (row[d] - base[d]);
        base[d] = from[d];
      }
      round.fresh[place] = true;
    }
    copy.restore(wanted, std::as_bytes(std::span(here)));
  }

  // So that differences of rows that have not been fetched in this round are known, too.
  void note_bases(std::span<const Key> keys) {
    std::vector<Key> unknown;
    for (const Key key : keys)
      if (round.places.find(key) == KeyIndex::kNone) unknown.push_back(key);
    if (unknown.empty()) return;
    const std::vector<float> rows = rows_of(unknown);
    for (std::size_t i = 0; i < unknown.size(); ++i) {
      const std::size_t place = place_of(unknown[i]).first;  // which moves the bases
      std::copy_n(rows.data() + i * stored, shared, round.base.data() + place * shared);
    }
  }

  void exchange() {
    const std::vector<float> rows = rows_of(round.keys);
    std::vector<Key> changed;
    std::vector<float> values, sums;
    for (std::size_t i = 0; i < round.keys.size(); ++i) {
      const float* const row = rows.data() + i * stored;
      const float* const base = round.base.data() + i * shared;
      if (std::equal(row, row + shared, base)) continue;
      changed.push_back(round.keys[i]);
      for (std::size_t d = 0; d < dimension; ++d) values.push_back(row[d] - base[d]);
      for (std::size_t d = dimension; d < shared; ++d) sums.push_back(row[d] - base[d]);
    }
    client.push(values_table, changed, values);
    if (squares > 0) client.push(squares_table, changed, sums);
    client.end_step();
    round = {};
  }

  Client& client;
  Table copy;
  const std::size_t dimension, squares;  // values of a row, and sums of squares
  const std::size_t shared, stored;      // floats of a row that are exchanged, and of one of the copy
  const Client::TableId values_table, squares_table;
  Round round;
  Batch batch;
};

GeoTable::GeoTable(Client& client, const TableSpec& spec) : impl_(std::make_unique<Impl>(client, spec)) {}
GeoTable::~GeoTable() = default;

void GeoTable::fetch(std::span<const Key> keys) { impl_->fetch(keys); }

void GeoTable::pull(std::span<const Key> keys, std::span<float> values) {
  impl_->fetch(keys);
  impl_->copy.pull(keys, values);
}

PushResult GeoTable::push(std::span<const Key> keys, std::span<const float> gradients) {
  const std::span<const Key> different = impl_->told_apart(keys);
  impl_->note_bases(different);
  std::vector<float> sums(different.size() * impl_->dimension);
  impl_->batch.add_up(impl_->batch.parts().front(), 0, different.size(), gradients, sums);
  return impl_->copy.push(different, sums);
}

void GeoTable::set_learning_rate(float learning_rate) { impl_->copy.set_learning_rate(learning_rate); }

void GeoTable::exchange() { impl_->exchange(); }

}  // namespace tessera::ps
