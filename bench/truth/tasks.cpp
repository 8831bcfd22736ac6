#include "tasks.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "calibrate/extent.hpp"
#include "calibrate/fit.hpp"

namespace tessera::truth {

profile::Calibration fitted(const Task& task) {
  profile::Calibration out = calibrate::fitted(task.start, task.parameters, task.rows);
  out.measured = std::make_shared<const profile::Extent>(calibrate::extent_of(task.priced));
  return out;
}

std::vector<Task> read_tasks(const std::filesystem::path& path, const std::vector<Row>& rows) {
  std::vector<Task> out;
  for (const ConfigNode& node : ConfigNode::load(path).items()) {
    node.allow_only({"start", "fit", "rows"});
    Task& task = out.emplace_back();
    task.start = profile::read_calibration(node.at("start"));
    for (const ConfigNode& name : node.at("fit").items()) {
      task.parameters.push_back(name.as_string());
      const double* value = profile::parameter(task.start, name.as_string());
      if (value == nullptr) throw name.error("no parameter of a calibration has this name");
      if (*value == 0) throw name.error("a parameter that starts at 0 cannot be fitted by a factor");
    }
    for (const Row& row : rows)
      if (row.skipped.empty() && row.group.stack == task.start.stack && profile::family_of(row.group.device.name) == task.start.accelerator)
        task.priced.push_back(&row);
    const ConfigNode wanted = node.at("rows");
    for (const std::string& source : wanted.keys()) {
      for (const ConfigNode& item : wanted.at(source).items()) {
        const std::int64_t line = item.as_int();
        const auto found = std::find_if(rows.begin(), rows.end(),
                                        [&](const Row& row) { return row.source == source && row.number == line && row.skipped.empty(); });
        if (found == rows.end()) throw item.error(text("there is no row ", line, " that can be priced in ", source));
        task.rows.push_back(&*found);
      }
    }
  }
  return out;
}

}  // namespace tessera::truth
