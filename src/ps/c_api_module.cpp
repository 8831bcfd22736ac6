// libtessera_ps.so: tessera_ps.h over Client.
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/secret.hpp"
#include "ps/client.hpp"
#include "ps/messages.hpp"
#include "ps/tessera_ps.h"

using tessera::Error;
using tessera::ErrorCode;
using tessera::text;
namespace ps = tessera::ps;

struct tessera_ps_client {
  ps::Client client;
  std::vector<std::size_t> dimensions = {};  // by table
  std::vector<bool> lives = {};              // by table: whether it has a lifecycle
  std::string status = {};
};

namespace {

thread_local std::string last_error;

int code_of(ErrorCode code) { return static_cast<int>(code) + 1; }
static_assert(static_cast<int>(ErrorCode::invalid_config) + 1 == TESSERA_PS_INVALID);
static_assert(static_cast<int>(ErrorCode::internal) + 1 == TESSERA_PS_INTERNAL);

template <typename Call>
int guarded(const Call& call) noexcept {
  try {
    call();
    return TESSERA_PS_OK;
  } catch (const Error& error) {
    last_error = error.what();
    return code_of(error.code());
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";
    return TESSERA_PS_EXHAUSTED;
  } catch (const std::exception& error) {
    last_error = error.what();
    return TESSERA_PS_INTERNAL;
  } catch (...) {
    last_error = "something was thrown that is no error";
    return TESSERA_PS_INTERNAL;
  }
}

void need(bool holds, const char* what) {
  if (!holds) throw Error(ErrorCode::invalid_config, text(what, " is missing"), {}, "as tessera_ps.h says");
}

std::size_t dimension_of(const tessera_ps_client& client, std::uint64_t table) {
  if (table >= client.dimensions.size())
    throw Error(ErrorCode::not_found, text("this client has not opened a table ", table), {}, "what tessera_ps_open_table gave");
  return client.dimensions[table];
}

void need_lifecycle(const tessera_ps_client& client, std::uint64_t table) {
  dimension_of(client, table);
  if (!client.lives[table])
    throw Error(ErrorCode::invalid_config, text("table ", table, " has no lifecycle"), {}, "a table whose description has a lifecycle");
}

// Of what `given` says, all that means something and was understood: words become what TableSpec has, and others its first choice.
void check_understood(const nlohmann::json& given, const nlohmann::json& understood, const std::string& where) {
  for (const auto& [key, value] : given.items()) {
    const auto known = understood.find(key);
    if (known == understood.end() && value.is_array() && value.empty()) continue;
    if (known == understood.end())
      throw Error(ErrorCode::invalid_config, text("a table has no '", where, key, "'"), {}, "the members that tessera_ps.h lists");
    if (value.is_object())
      check_understood(value, *known, where + key + ".");
    else if (value.is_array())
      for (std::size_t i = 0; i < value.size(); ++i) check_understood(value[i], known->at(i), where + key + ".");
    else if (value.is_string() && value != *known)
      throw Error(ErrorCode::invalid_config, text("a table's ", where, key, " cannot be ", value.dump()), {}, "what tessera_ps.h lists");
  }
}

// What a table has where its description has a lifecycle, for what that one does not say.
nlohmann::json with_lifecycle(nlohmann::json given) {
  nlohmann::json& lifecycle = given.at("lifecycle");
  nlohmann::json whole = nlohmann::json::parse(ps::to_json(ps::TableSpec{.lifecycle = ps::Lifecycle()})).at("lifecycle");
  whole.merge_patch(lifecycle);
  for (nlohmann::json& slot : whole.at("slots")) {
    if (!slot.is_object()) continue;
    slot.emplace("learning_rate_scale", 1);
    if (const auto admission = slot.find("admission"); admission != slot.end() && admission->is_object()) admission->emplace("after", 1);
  }
  lifecycle = std::move(whole);
  return given;
}

ps::TableSpec spec_of(const char* description) {
  const nlohmann::json given = nlohmann::json::parse(description, nullptr, false);
  if (!given.is_object() || !given.contains("name") || !given.contains("dimension"))
    throw Error(ErrorCode::invalid_config, "a table's description cannot be read", {}, "a JSON object with name and dimension");
  nlohmann::json whole = nlohmann::json::parse(ps::to_json(ps::TableSpec()));
  const auto lifecycle = given.find("lifecycle");
  whole.merge_patch(lifecycle != given.end() && lifecycle->is_object() ? with_lifecycle(given) : given);
  try {
    const ps::TableSpec spec = ps::spec_from_json(whole.dump());
    check_understood(given, nlohmann::json::parse(ps::to_json(spec)), "");
    return spec;
  } catch (const Error& error) {
    throw Error(ErrorCode::invalid_config, error.message(), {}, error.expected(), error.hint());
  }
}

}  // namespace

int tessera_ps_open(const char* const* servers, size_t count, const tessera_ps_worker* worker, double deadline_seconds,
                    tessera_ps_client** client) {
  return guarded([&] {
    need(servers != nullptr && count > 0, "a list of servers");
    need(client != nullptr, "where the client goes");
    ps::ClientOptions options;
    if (deadline_seconds > 0) options.deadline = tessera::Seconds(deadline_seconds);
    if (worker != nullptr)
      options.worker = {.index = worker->index, .count = worker->count, .run = worker->run, .first_step = worker->first_step};
    std::vector<std::string> places(servers, servers + count);
    *client = new tessera_ps_client{ps::Client(std::move(places), tessera::servers_secret_from_environment(), options)};
  });
}

void tessera_ps_close(tessera_ps_client* client) { delete client; }

int tessera_ps_open_table(tessera_ps_client* client, const char* description, uint64_t* table) {
  return guarded([&] {
    need(client != nullptr && description != nullptr && table != nullptr, "a client, a description or where the table goes");
    const ps::TableSpec spec = spec_of(description);
    *table = client->client.open(spec);
    client->dimensions.push_back(static_cast<std::size_t>(spec.dimension));
    client->lives.push_back(spec.lifecycle.has_value());
  });
}

int tessera_ps_pull(tessera_ps_client* client, uint64_t table, const uint64_t* keys, size_t count, float* values, int create) {
  return guarded([&] {
    need(client != nullptr && (count == 0 || (keys != nullptr && values != nullptr)), "a client, keys or room for values");
    const std::size_t dimension = dimension_of(*client, table);
    client->client.pull(table, {keys, count}, {values, count * dimension}, create != 0 ? ps::Absent::create : ps::Absent::zeros);
  });
}

int tessera_ps_push(tessera_ps_client* client, uint64_t table, const uint64_t* keys, size_t count, const float* gradients,
                    uint64_t* refused) {
  return guarded([&] {
    need(client != nullptr && (count == 0 || (keys != nullptr && gradients != nullptr)), "a client, keys or gradients");
    const ps::PushResult result = client->client.push(table, {keys, count}, {gradients, count * dimension_of(*client, table)});
    if (refused != nullptr) *refused = static_cast<std::uint64_t>(result.refused);
  });
}

int tessera_ps_push_impressions(tessera_ps_client* client, uint64_t table, const uint64_t* keys, size_t count, const float* gradients,
                                const tessera_ps_impressions* impressions, uint64_t* refused) {
  return guarded([&] {
    need(client != nullptr && (count == 0 || (keys != nullptr && gradients != nullptr && impressions != nullptr)),
         "a client, keys, gradients or impressions");
    need_lifecycle(*client, table);
    std::vector<ps::Impressions> seen(count);
    for (std::size_t i = 0; i < count; ++i) seen[i] = {.shows = impressions[i].shows, .clicks = impressions[i].clicks};
    const ps::PushResult result = client->client.push(table, {keys, count}, {gradients, count * dimension_of(*client, table)}, seen);
    if (refused != nullptr) *refused = static_cast<std::uint64_t>(result.refused);
  });
}

int tessera_ps_end_period(tessera_ps_client* client, uint64_t table, uint64_t* evicted) {
  return guarded([&] {
    need(client != nullptr, "a client");
    need_lifecycle(*client, table);
    const std::uint64_t went = client->client.end_period(table);
    if (evicted != nullptr) *evicted = went;
  });
}

int tessera_ps_set_learning_rate(tessera_ps_client* client, uint64_t table, float learning_rate) {
  return guarded([&] {
    need(client != nullptr, "a client");
    dimension_of(*client, table);
    client->client.set_learning_rate(table, learning_rate);
  });
}

int tessera_ps_end_step(tessera_ps_client* client) {
  return guarded([&] {
    need(client != nullptr, "a client");
    client->client.end_step();
  });
}

int tessera_ps_status(tessera_ps_client* client, const char** json) {
  return guarded([&] {
    need(client != nullptr && json != nullptr, "a client or where the text goes");
    nlohmann::json all = nlohmann::json::array();
    for (const ps::ServerStatus& server : client->client.status()) all.push_back(nlohmann::json::parse(ps::to_json(server)));
    client->status = all.dump();
    *json = client->status.c_str();
  });
}

const char* tessera_ps_last_error(void) { return last_error.c_str(); }
