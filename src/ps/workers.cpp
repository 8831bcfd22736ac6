#include "ps/workers.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/units.hpp"
#include "ps/parsed.hpp"

namespace tessera::ps {

Workers::Client& Workers::join(ClientNumber number, const Joining& joining) {
  const std::optional<Worker>& worker = joining.worker;
  if (const auto known = clients_.find(number); known != clients_.end()) return known->second;
  if (worker) {
    if (worker->index < 0 || worker->index >= worker->count)
      throw Error(ErrorCode::invalid_config, text("there is no worker ", worker->index, " of ", worker->count));
    if (worker->run != run_ || ended_.empty()) {
      std::erase_if(clients_, [](const auto& client) { return client.second.worker.has_value(); });
      run_ = worker->run;
      name_ = worker->name;
      ended_.assign(static_cast<std::size_t>(worker->count), worker->first_step);
    }
    if (worker->count != count())
      throw Error(ErrorCode::invalid_config, text("worker ", worker->index, " says that there are ", worker->count, " workers"), {},
                  text(count(), ", as the first one of this run has said"));
    std::erase_if(clients_, [&](const auto& client) { return client.second.worker == worker->index; });
  }
  Client client{.number = number, .patience = joining.patience};
  if (worker) client.worker = worker->index;
  return clients_.emplace(number, client).first->second;
}

std::vector<Workers::ClientNumber> Workers::in_the_way_of(const Worker& worker) const {
  std::vector<ClientNumber> numbers;
  if (worker.run == run_ || worker.name == name_) return numbers;
  for (const auto& [number, client] : clients_)
    if (client.worker) numbers.push_back(number);
  return numbers;
}

Workers::Client& Workers::at(ClientNumber number) {
  const auto known = clients_.find(number);
  if (known == clients_.end())
    throw Error(ErrorCode::not_found, "this server does not know this client", {}, "",
                "the server has begun anew, or another run or worker has taken the client's place: go on from the last checkpoint");
  return known->second;
}

std::string Workers::json() const {
  nlohmann::json clients = nlohmann::json::array();
  for (const auto& [number, client] : clients_) {
    nlohmann::json results = nlohmann::json::array();
    for (const std::optional<PushResult>& result : client.results)
      results.push_back(result ? nlohmann::json{result->applied, result->refused} : nlohmann::json());
    clients.push_back({{"number", number},
                       {"worker", client.worker ? nlohmann::json(*client.worker) : nlohmann::json()},
                       {"patience", client.patience.value},
                       {"applied", client.applied},
                       {"results", std::move(results)}});
  }
  return nlohmann::json{{"run", run_}, {"name", name_}, {"ended", ended_}, {"clients", std::move(clients)}}.dump();
}

Workers Workers::from_json(const std::string& words) {
  return parsed(words, "what a server says of its clients", [](const nlohmann::json& in) {
    Workers workers;
    workers.run_ = in.at("run");
    workers.name_ = in.value("name", "");
    workers.ended_ = in.at("ended").get<std::vector<std::int64_t>>();
    for (const nlohmann::json& told : in.at("clients")) {
      Client client{.number = told.at("number"), .patience = Seconds(told.at("patience")), .applied = told.at("applied")};
      if (!told.at("worker").is_null()) client.worker = told.at("worker").get<int>();
      for (std::size_t i = 0; i < client.results.size(); ++i)
        if (const nlohmann::json& result = told.at("results").at(i); !result.is_null())
          client.results[i] = PushResult{.applied = result.at(0), .refused = result.at(1)};
      workers.clients_.emplace(client.number, client);
    }
    return workers;
  });
}

std::int64_t Workers::slowest() const { return ended_.empty() ? 0 : *std::ranges::min_element(ended_); }
std::int64_t Workers::fastest() const { return ended_.empty() ? 0 : *std::ranges::max_element(ended_); }
int Workers::slowest_worker() const { return static_cast<int>(std::ranges::min_element(ended_) - ended_.begin()); }

}  // namespace tessera::ps
