#include "cli/plan_report_parts.hpp"
#include "cli/plan_report_script.hpp"
#include "cli/report_page.hpp"

namespace tessera::cli {
namespace {

constexpr const char* kBody =
    R"page(<section aria-labelledby="mosaic-title"><h2 id="mosaic-title">Blocks and devices</h2><p class="soft" id="mosaic-note"></p><div class="scroll" tabindex="0" role="region" aria-labelledby="mosaic-title" id="mosaic"></div><ul class="legend" id="mosaic-legend"></ul></section>
<section aria-labelledby="timeline-title"><h2 id="timeline-title">One step in time</h2><p class="soft" id="timeline-note"></p><ul class="legend" id="timeline-legend"></ul><div class="scroll" tabindex="0" role="region" aria-labelledby="timeline-title" id="timeline"></div><details><summary>As a table</summary><div class="scroll" id="timeline-table"></div></details></section>
<section aria-labelledby="parts-title"><h2 id="parts-title">What the step is made of</h2><p class="soft" id="parts-note"></p><div id="parts"></div><div class="scroll" id="parts-table"></div></section>
<section aria-labelledby="memory-title"><h2 id="memory-title">Memory</h2><p class="soft" id="memory-note"></p><ul class="legend" id="memory-legend"></ul><div id="memory"></div><details><summary>As a table</summary><div class="scroll" id="memory-table"></div></details></section>
<section aria-labelledby="others-title"><h2 id="others-title">Other plans</h2><p class="soft" id="others-note"></p><div class="scroll" tabindex="0" role="region" aria-labelledby="others-title" id="others"></div></section>
<section aria-labelledby="front-title"><h2 id="front-title">Step time against memory</h2><p class="soft" id="front-note"></p><div class="scroll" id="front"></div><details><summary>As a table</summary><div class="scroll" id="front-table"></div></details></section>
<section aria-labelledby="text-title"><h2 id="text-title">The same as text</h2><details id="text"><summary>What <code>tessera plan</code> prints</summary><pre>)page";
constexpr const char* kBodyEnd = R"page(</pre></details></section>
)page";

}  // namespace

std::string plan_report_page(const std::string& title, const std::string& text, const nlohmann::ordered_json& data) {
  return report_page(
      {.title = title, .body = kBody + html_escaped(text) + kBodyEnd, .data_id = "plan", .data = data, .script = kReportScript});
}

}  // namespace tessera::cli
