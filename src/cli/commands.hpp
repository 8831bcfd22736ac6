// The subcommands of `tessera`. Each function hangs one (or one family) into the app; its callback runs when it was chosen.
// A callback reports failure by tessera::Error, or by CLI::RuntimeError(exit code) when everything has been printed.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace tessera::cli {

// The headings under which `tessera --help` lists the commands.
inline constexpr const char* kStartGroup = "Start here";
inline constexpr const char* kPlanGroup = "Plan";
inline constexpr const char* kTrainGroup = "Train";
inline constexpr const char* kUseGroup = "Use what was trained";
inline constexpr const char* kToolGroup = "Tools";

// What to type before a subcommand that is suggested: "tessera", or what TESSERA_COMMAND says (`./dev run` sets it).
std::string typed_command();

void add_doctor_command(CLI::App& app);
void add_init_command(CLI::App& app);
void add_completion_command(CLI::App& app);
void add_cluster_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_profile_command(CLI::App& app);
void add_calibrate_command(CLI::App& app);
void add_simulate_command(CLI::App& app);
void add_verify_command(CLI::App& app);
void add_train_command(CLI::App& app);
void add_worker_command(CLI::App& app);
void add_agent_command(CLI::App& app);
void add_ps_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_export_command(CLI::App& app);
void add_import_command(CLI::App& app);
void add_serve_table_command(CLI::App& app);
void add_data_command(CLI::App& app);
void add_runs_command(CLI::App& app);

}  // namespace tessera::cli
