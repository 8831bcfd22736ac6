#include "cli/run_report_page.hpp"

#include "cli/report_page.hpp"
#include "cli/run_report_script.hpp"

namespace tessera::cli {
namespace {

constexpr const char* kBody = R"page(<ul class="notes" id="notes"></ul>
<section aria-labelledby="timeline-title"><h2 id="timeline-title">One step in time, measured and predicted</h2><p class="soft" id="timeline-note"></p><ul class="legend" id="timeline-legend"></ul><div class="controls" id="timeline-controls"></div><div class="scroll" tabindex="0" role="region" aria-labelledby="timeline-title" id="timeline"></div><output class="readout" id="timeline-readout"></output></section>
<section aria-labelledby="kinds-title"><h2 id="kinds-title">Instructions by kind</h2><p class="soft" id="kinds-note"></p><div class="scroll" tabindex="0" role="region" aria-labelledby="kinds-title" id="kinds"></div></section>
<section aria-labelledby="ranks-title"><h2 id="ranks-title">Ranks</h2><p class="soft" id="ranks-note"></p><div class="scroll" tabindex="0" role="region" aria-labelledby="ranks-title" id="ranks"></div></section>
<section aria-labelledby="memory-title"><h2 id="memory-title">Memory</h2><p class="soft" id="memory-note"></p><ul class="legend" id="memory-legend"></ul><div id="memory"></div></section>
<section aria-labelledby="tables-title"><h2 id="tables-title">Tables</h2><p class="soft" id="tables-note"></p><div class="scroll" tabindex="0" role="region" aria-labelledby="tables-title" id="tables"></div></section>
<section aria-labelledby="curves-title"><h2 id="curves-title">Curves</h2><p class="soft" id="curves-note"></p><ul class="legend" id="curves-legend"></ul><div class="curves"><div><h3>Loss</h3><div id="loss"></div><output id="loss-readout"></output></div><div><h3>Speed</h3><div id="throughput"></div><output id="throughput-readout"></output></div><div><h3>Gradient norm</h3><div id="grad-norm"></div><output id="grad-norm-readout"></output></div></div></section>
)page";

}  // namespace

std::string run_report_page(const std::string& title, const nlohmann::ordered_json& data) {
  return report_page({.title = title, .body = kBody, .data_id = "run", .data = data, .script = kRunReportScript});
}

}  // namespace tessera::cli
