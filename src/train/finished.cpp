#include "train/finished.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/weights.hpp"
#include "model/forms.hpp"
#include "train/tables.hpp"

namespace tessera::train {
namespace {

constexpr const char *kServingFile = "serving.json", *kCheckpoints = "checkpoints", *kYaml = "train.yaml";

// Only what an export wrote may be replaced.
void check_target(const std::filesystem::path& to) {
  if (!std::filesystem::exists(to) || std::filesystem::exists(to / kServingFile)) return;
  if (std::filesystem::is_directory(to) && std::filesystem::is_empty(to)) return;
  throw Error(ErrorCode::invalid_config, "the folder will not be replaced: it was not exported from here",
              {.file = to.string(), .block = {}}, "a new folder, or an earlier export");
}

const char* name_of(ps::RowType type) { return type == ps::RowType::fp32 ? "fp32" : type == ps::RowType::bf16 ? "bf16" : "int8"; }

// Goes with the object, unless it has been renamed.
struct Unfinished {
  std::filesystem::path path;
  ~Unfinished() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

std::optional<ps::ServingTable> finished_rows(const std::filesystem::path& folder, const std::filesystem::path& checkpoint,
                                              const model::JobSpec& job) {
  if (std::filesystem::exists(folder / kServingFile)) return ps::ServingTable(folder / ps::kServingTableFile);
  const std::filesystem::path saved = tables_folder(checkpoint.parent_path(), checkpoint::Reader(checkpoint).state().step);
  if (!std::filesystem::exists(saved)) return {};
  const Unfinished laid_out{saved / text("looked-at-by-", ::getpid(), ".table")};
  ps::write_serving_table(real_file_system(), saved, job.name, {}, laid_out.path);
  return ps::ServingTable(laid_out.path);
}

ServingReport export_serving(const std::filesystem::path& folder, const std::filesystem::path& checkpoint, const model::JobSpec& job,
                             std::optional<ps::RowType> type, const std::filesystem::path& to) {
  if (!model::reads_clicks(job.model))
    throw Error(ErrorCode::invalid_config, "a model of kind " + job.model.arch + " has no tables to serve", {},
                "a model that reads click logs, such as dlrm or deepfm");
  check_target(to);
  ServingReport report{.step = checkpoint::Reader(checkpoint).state().step};
  const std::filesystem::path saved = tables_folder(checkpoint.parent_path(), report.step);
  if (!std::filesystem::exists(saved))
    throw Error(ErrorCode::not_found, text("the rows of the model's tables are not beside ", checkpoint.string()),
                {.file = saved.string(), .block = {}}, "what the servers have saved with the checkpoint");
  FileSystem& disk = real_file_system();
  const std::filesystem::path target = std::filesystem::absolute(to).lexically_normal();
  const std::filesystem::path whole = target.has_filename() ? target : target.parent_path();
  const Unfinished made{whole.string() + ".tmp"};
  disk.remove_all(made.path);
  disk.create_directories(made.path);
  checkpoint::copy_weights(checkpoint, job.model, made.path / kCheckpoints);
  report.rows = ps::write_serving_table(disk, saved, job.name, type, made.path / ps::kServingTableFile);
  const ps::ServingTable table(made.path / ps::kServingTableFile);
  write_whole(disk, made.path / kYaml, read_whole(folder / kYaml));
  write_whole(disk, made.path / kServingFile,
              nlohmann::ordered_json{{"format", "tessera-serving"},
                                     {"version", 1},
                                     {"run", job.name},
                                     {"step", report.step},
                                     {"dense", "checkpoints/step-000000/rank-00000.safetensors"},
                                     {"table", ps::kServingTableFile},
                                     {"rows", table.rows()},
                                     {"dimension", table.dimension()},
                                     {"type", name_of(table.type())}}
                      .dump(2) +
                  "\n");
  if (std::filesystem::exists(whole)) disk.remove_all(whole);
  disk.rename(made.path, whole);
  disk.sync_directory(whole.parent_path());
  return report;
}

}  // namespace tessera::train
