#include "ps/metrics.hpp"

#include <functional>
#include <sstream>

namespace tessera::ps {
namespace {

std::string escaped(const std::string& words) {
  std::string out;
  for (const char letter : words) {
    if (letter == '\\' || letter == '"') out += '\\';
    out += letter == '\n' ? std::string("\\n") : std::string(1, letter);
  }
  return out;
}

class Page {
 public:
  explicit Page(std::span<const ObservedServer> servers) : servers_(servers) {
    out_.precision(15);  // a sum of seconds grows for months, and its rate has to be seen
  }

  void of_tables(const char* name, const char* type, const char* help, const std::function<std::uint64_t(const TableStatus&)>& value) {
    begin(name, type, help);
    for (const ObservedServer& server : servers_)
      if (server.status)
        for (const TableStatus& table : server.status->tables)
          out_ << name << "{server=\"" << escaped(server.place) << "\",table=\"" << escaped(table.name) << "\"} " << value(table) << "\n";
  }
  void of_servers(const char* name, const char* help, const std::function<std::optional<std::int64_t>(const ObservedServer&)>& value) {
    begin(name, "gauge", help);
    for (const ObservedServer& server : servers_)
      if (const std::optional<std::int64_t> one = value(server))
        out_ << name << "{server=\"" << escaped(server.place) << "\"} " << *one << "\n";
  }
  void latencies(const char* name, const char* help, const Latencies AnswerLatencies::*which) {
    begin(name, "histogram", help);
    for (const ObservedServer& server : servers_) {
      if (!server.status) continue;
      for (const TableStatus& table : server.status->tables) {
        const Latencies& all = table.latencies.*which;
        const std::string label = "{server=\"" + escaped(server.place) + "\",table=\"" + escaped(table.name) + "\"";
        std::uint64_t up_to = 0;
        for (std::size_t place = 0; place < Latencies::kEnds; ++place) {
          up_to += all.counts[place];
          if (is_shown(place)) out_ << name << "_bucket" << label << ",le=\"" << Latencies::end(place) << "\"} " << up_to << "\n";
        }
        out_ << name << "_bucket" << label << ",le=\"+Inf\"} " << all.count() << "\n";
        out_ << name << "_sum" << label << "} " << all.sum.value << "\n" << name << "_count" << label << "} " << all.count() << "\n";
      }
    }
  }
  std::string text() const { return out_.str(); }

 private:
  // Of a decade 1, 2.5 and 5: each class is a series of its own for Prometheus.
  static bool is_shown(std::size_t place) {
    const double first = Latencies::kInDecade[place % Latencies::kInDecade.size()];
    return first == 1 || first == 2.5 || first == 5;
  }
  void begin(const char* name, const char* type, const char* help) {
    out_ << "# HELP " << name << " " << help << "\n# TYPE " << name << " " << type << "\n";
  }

  std::span<const ObservedServer> servers_;
  std::ostringstream out_;
};

std::uint64_t bytes(Bytes count) { return static_cast<std::uint64_t>(count.value); }

}  // namespace

std::string metrics_text(std::span<const ObservedServer> servers) {
  Page page(servers);
  page.of_servers("tessera_ps_leads", "1 where the server answers clients, 0 where it stands by or does not answer.",
                  [](const ObservedServer& server) { return std::optional<std::int64_t>(server.status ? 1 : 0); });
  page.of_servers("tessera_ps_has_backup",
                  "Of one of a pair that leads: 1 where the other one has everything of it, 0 where it goes on alone.",
                  [](const ObservedServer& server) -> std::optional<std::int64_t> {
                    if (!server.status || !server.status->backup) return {};
                    return server.status->backup->empty() ? 0 : 1;
                  });
  const auto workers = [&](const char* name, const char* help, auto ServerStatus::*member) {
    page.of_servers(name, help, [member](const ObservedServer& server) {
      return server.status ? std::optional<std::int64_t>((*server.status).*member) : std::nullopt;
    });
  };
  workers("tessera_ps_workers", "Workers that train together.", &ServerStatus::workers);
  workers("tessera_ps_slowest_worker_steps", "Steps that the slowest worker has ended.", &ServerStatus::slowest);
  workers("tessera_ps_fastest_worker_steps", "Steps that the fastest worker has ended.", &ServerStatus::fastest);
  page.of_tables("tessera_ps_rows", "gauge", "Rows of the table.", [](const TableStatus& table) { return table.rows; });
  page.of_tables("tessera_ps_index_bytes", "gauge", "Memory that finds rows.",
                 [](const TableStatus& table) { return bytes(table.memory.index); });
  page.of_tables("tessera_ps_row_bytes", "gauge", "Memory of rows.", [](const TableStatus& table) { return bytes(table.memory.rows); });
  page.of_tables("tessera_ps_disk_bytes", "gauge", "Rows on disk.", [](const TableStatus& table) { return bytes(table.memory.disk); });
  page.of_tables("tessera_ps_memory_hits_total", "counter", "Keys whose rows were in memory.",
                 [](const TableStatus& table) { return table.memory.hits; });
  page.of_tables("tessera_ps_memory_misses_total", "counter", "Keys whose rows were on disk.",
                 [](const TableStatus& table) { return table.memory.misses; });
  page.of_tables("tessera_ps_keys_pulled_total", "counter", "Keys that were pulled.",
                 [](const TableStatus& table) { return table.keys_pulled; });
  page.of_tables("tessera_ps_keys_pushed_total", "counter", "Keys that were pushed.",
                 [](const TableStatus& table) { return table.keys_pushed; });
  page.of_tables("tessera_ps_gradients_refused_total", "counter", "Gradients that were not finite and changed nothing.",
                 [](const TableStatus& table) { return table.gradients_refused; });
  const auto counted = [](std::uint64_t LifecycleCounts::*count) {
    return [count](const TableStatus& table) { return table.lifecycle ? table.lifecycle->counts.*count : 0; };
  };
  page.of_tables("tessera_ps_rows_admitted_total", "counter", "Keys that got a row, where rows come and go.",
                 counted(&LifecycleCounts::admitted));
  page.of_tables("tessera_ps_pushes_held_back_total", "counter", "Gradients of keys without a row yet.",
                 counted(&LifecycleCounts::held_back));
  page.of_tables("tessera_ps_rows_evicted_total", "counter", "Rows that went.", counted(&LifecycleCounts::evicted));
  page.latencies("tessera_ps_pull_seconds", "From a pull's arrival to its answer, waiting for other workers included.",
                 &AnswerLatencies::pulls);
  page.latencies("tessera_ps_push_seconds", "From a push's arrival to its answer.", &AnswerLatencies::pushes);
  return page.text();
}

}  // namespace tessera::ps
