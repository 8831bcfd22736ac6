// Click logs, each input in every format of lines.
#include <memory>
#include <optional>

#include "base/temporary_folder.hpp"
#include "data/clicks/keys.hpp"
#include "data/dataset.hpp"
#include "fuzz/checks.hpp"

namespace tessera::fuzz {
namespace {

constexpr std::int64_t kRows = 40;

// Every sample that was read is one, and is read again as the same.
void use(const data::Dataset& dataset) {
  std::int32_t label = -1;
  float dense = 0;
  std::vector<std::uint64_t> keys(4), history(2);
  const std::vector<data::Row> rows = {std::span(&label, 1), std::span(&dense, 1), std::span(keys), std::span(history)};
  const std::vector<data::Row> some(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(dataset.fields().size()));
  for (std::int64_t sample = 0; sample < dataset.train_samples(); ++sample) {
    must_pass("a sample cannot be read again", [&] { dataset.fill({sample, 0}, some); });
    if (label != 0 && label != 1) throw Defect(text("label ", label));
    for (const auto* list : {&keys, &history})
      for (const std::uint64_t key : *list) {
        if (key == data::kNoKey) continue;
        if (data::table_of(key) > 1) throw Defect(text("table ", data::table_of(key)));
        if (data::table_of(key) == 1 && data::id_of(key) != data::kEmptyId && data::id_of(key) >= kRows)
          throw Defect(text("row ", data::id_of(key)));
      }
  }
}

}  // namespace

Target click_log_target() {
  Target target;
  target.refusals = {ErrorCode::invalid_config, ErrorCode::corrupt};
  target.seeds = {"click,price,user,item,seen\n1,2.5,ann|bob,7,1|2|3\n0,,\"a, \"\"b\"\"\",,\n1,1,ann,5,\n0,3,,1|2,4\n",
                  "1 1 1 0.5 2 7 8 1 5 2 1 2\n1 0 1 -3 0 1 6 0\r\n1 1 1 2 1 9 0 1 3\n1 0 1 0 0 0 0\n",
                  "+1 1:0.5 9:1 7:1 11:1 12:1\n-1 2:1\n0\n1 1:-3 5:1\n"};
  target.short_run = 800;
  target.read = [folder = std::make_shared<TemporaryFolder>()](const std::string& input) {
    const auto path = folder->write("log", input);
    const std::string columns =
        "label: click, dense: [price], categories: [{name: user, ids: vocabulary}, {name: item, ids: number}], history: seen";
    const std::string model = text("dim: 2, hidden: [2], tables: [0, ", kRows, "], lookups: 2, dense: 1");
    const auto read = [&](const std::string& data, const std::string& arch) {
      const model::JobSpec job = model::read_job(ConfigNode::parse(
          text("name: c\nmodel: {", arch, ", ", model, "}\ndata: {source: '", path.string(), "', split: {train: 1.0}, ", data, "}\n"),
          "train.yaml"));
      use(*data::open_dataset(job.data, job.model, 1));
    };
    // Refused where all formats refuse it.
    std::optional<Error> refusal;
    bool was_read = false;
    const auto try_read = [&](const std::string& data, const std::string& arch) {
      try {
        read(data, arch);
        was_read = true;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_config && error.code() != ErrorCode::corrupt) throw;
        refusal = error;
      }
    };
    try_read("format: multislot, on_error: skip, columns: {names: [click, price, user, item, seen], " + columns + "}",
             "arch: din, target: 1, history: 2");
    try_read("format: libsvm, on_error: skip", "arch: deepfm");
    try_read("format: libffm, on_error: skip", "arch: deepfm");
    try_read("format: csv, on_error: skip, columns: {" + columns + "}", "arch: din, target: 1, history: 2");
    if (!was_read) throw *refusal;
  };
  return target;
}

}  // namespace tessera::fuzz
