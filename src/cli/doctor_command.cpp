#include <unistd.h>
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/table.hpp"
#include "base/terminal.hpp"
#include "cli/commands.hpp"
#include "cli/doctor_checks.hpp"
#include "data/data.hpp"

namespace tessera::cli {
namespace {

const char* name_of(Status status) {
  switch (status) {
    case Status::ok: return "ok";
    case Status::absent: return "absent";
    case Status::missing: return "missing";
  }
  return "missing";
}

std::vector<Finding> examine() {
  std::vector<Finding> findings = {
      check_cpu(),
      check_instructions(),
      check_memory(),
      check_shared_memory(),
      check_huge_pages(),
      check_open_files(),
      check_locked_memory(),
      check_disk("."),
      check_writable("runs", "runs", "change to a folder that you may write to"),
      check_writable("cache", data::default_cache_dir(), "name a folder that you may write to in TESSERA_CACHE")};
  for (Finding& finding : check_network()) findings.push_back(std::move(finding));
  findings.push_back(check_accelerators());
  findings.push_back(check_ucx());
  findings.push_back(check_worker(find_worker(), Seconds(30)));
  findings.push_back(check_program("slurm", "srun", "only to start workers by Slurm"));
  return findings;
}

void print_table(const std::vector<Finding>& findings) {
  Table table({{""}, {""}, {"", Table::Align::wrapped}});
  for (const Finding& finding : findings) {
    table.add({name_of(finding.status), finding.name, finding.value});
    if (!finding.advice.empty()) table.add({"", "", finding.advice});
  }
  std::cout << table.text(columns_of(STDOUT_FILENO));
}

void print_json(const std::vector<Finding>& findings, bool ready) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    nlohmann::ordered_json check = {{"name", finding.name}, {"status", name_of(finding.status)}, {"value", finding.value}};
    if (!finding.advice.empty()) check["advice"] = finding.advice;
    checks.push_back(std::move(check));
  }
  const nlohmann::ordered_json report = {{"ready", ready}, {"checks", std::move(checks)}};
  std::cout << report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

void doctor(bool json) {
  const std::vector<Finding> findings = examine();
  std::size_t missing = 0;
  for (const Finding& finding : findings) missing += finding.status == Status::missing;
  if (json) {
    print_json(findings, missing == 0);
  } else {
    print_table(findings);
    std::cout << (missing == 0 ? "\nready to train here\n" : "\n" + std::to_string(missing) + " needed on this host and missing\n");
  }
  if (missing > 0) throw CLI::RuntimeError(1);
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "What this host has, what is missing, and how to get it")->group(kStartGroup);
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  command->footer("Exits with 1 when something needed is missing.");
  command->callback([json] { doctor(*json); });
}

}  // namespace tessera::cli
