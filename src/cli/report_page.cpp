#include "cli/report_page.hpp"

#include "cli/report_tools.hpp"

namespace tessera::cli {
namespace {

// Colours after Okabe and Ito (2008), which people with any kind of colour vision can tell apart.
constexpr const char* kHead = R"page(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>)page";
constexpr const char* kStyle = R"page(</title>
<style>
:root { --page: #fbfbfa; --card: #fff; --ink: #1d1f23; --soft: #5b6069; --line: #d9dbdf; --faint: #eeeff1; --mark: #b3261e; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #15171a; --card: #1d2024; --ink: #e8e9eb; --soft: #a5abb5; --line: #3a3f46; --faint: #282c31; --mark: #ff8a80; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 0 0 2px; }
p { margin: 0 0 10px; }
.soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px; margin-top: 16px; min-width: 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 16px 0 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.tiles dt { color: var(--soft); font-size: 13px; }
.tiles dd { margin: 0; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles dd small { display: block; font-size: 13px; font-weight: 400; color: var(--soft); }
.scroll { overflow-x: auto; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid #0072B2; outline-offset: 2px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--faint); vertical-align: top; }
th { font-weight: 600; }
thead th { color: var(--soft); font-size: 13px; vertical-align: bottom; }
td.number, th.number { text-align: right; white-space: nowrap; }
.wide { width: 100%; }
#others table { min-width: 860px; }
#others td:first-child { min-width: 190px; }
.mosaic { border-collapse: separate; border-spacing: 2px; font-size: 12px; width: 100%; }
.mosaic th, .mosaic td { border: 0; padding: 2px; text-align: center; vertical-align: middle; white-space: nowrap; }
.mosaic th[scope=row] { text-align: right; position: sticky; left: 0; background: var(--card); padding-right: 8px; font-weight: 400; }
.mosaic th[scope=row] small { display: block; color: var(--soft); }
.mosaic td { min-width: 32px; border-radius: 3px; background: var(--faint); color: var(--soft); }
.mosaic thead th, .mosaic td { white-space: normal; }
.mosaic td.on { font-weight: 600; }
.mosaic tr.first th, .mosaic tr.first td { border-top: 3px solid var(--card); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; margin: 8px 0 4px; padding: 0; list-style: none; }
.legend i { display: inline-block; width: 13px; height: 13px; border-radius: 3px; margin-right: 6px; vertical-align: -2px; border: 1px solid rgba(0, 0, 0, .25); }
details { margin-top: 10px; }
summary { cursor: pointer; color: var(--soft); font-size: 14px; }
svg { display: block; }
svg text { fill: var(--ink); font: 12px system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
svg text.soft { fill: var(--soft); }
svg .line { stroke: var(--line); }
svg .ground { fill: var(--faint); }
.note { border-left: 3px solid var(--mark); padding-left: 10px; margin: 10px 0 0; }
.notes { margin: 12px 0 0; padding: 0; list-style: none; }
.controls { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; margin: 8px 0; }
button { font: inherit; font-size: 13px; color: var(--ink); background: var(--faint); border: 1px solid var(--line); border-radius: 5px; padding: 2px 10px; cursor: pointer; }
button:focus-visible { outline: 2px solid #0072B2; outline-offset: 2px; }
.readout { display: block; min-height: 3em; font-size: 14px; font-variant-numeric: tabular-nums; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 10px 24px; }
.curves h3 { font-size: 14px; margin: 8px 0 0; }
.curves output { display: block; min-height: 1.5em; font-size: 13px; color: var(--soft); font-variant-numeric: tabular-nums; }
svg .lit { stroke: var(--ink); stroke-width: 2; }
svg.picks { touch-action: pan-y; cursor: crosshair; user-select: none; }
pre { overflow-x: auto; font: 12px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; }
@media (max-width: 600px) {
  main { padding: 16px 10px 32px; }
  section { padding: 12px; }
  h1 { font-size: 22px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .tiles dd { font-size: 18px; }
  .mosaic th[scope=row] { white-space: normal; min-width: 112px; max-width: 132px; }
}
@media print {
  body { background: #fff; font-size: 12px; }
  main { max-width: none; padding: 0; }
  section { break-inside: avoid; border: 0; padding: 0; }
  .scroll { overflow: visible; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
</style>
</head>
<body>
<main>
<header>
<h1>)page";
constexpr const char* kSubject = R"page(</h1>
<p class="soft" id="subject"></p>
<dl class="tiles" id="tiles"></dl>
</header>
)page";

}  // namespace

std::string html_escaped(const std::string& text) {
  std::string out;
  for (const char letter : text) {
    switch (letter) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += letter;
    }
  }
  return out;
}

std::string script_safe(const nlohmann::ordered_json& data) {
  const std::string json = data.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string out;
  // These stand in JSON's strings alone, where the escape means the same.
  for (const char letter : json) {
    switch (letter) {
      case '<': out += "\\u003c"; break;
      case '>': out += "\\u003e"; break;
      case '&': out += "\\u0026"; break;
      default: out += letter;
    }
  }
  return out;
}

std::string report_page(const Page& page) {
  const std::string title = html_escaped(page.title);
  return text(kHead, title, kStyle, title, kSubject, page.body, "</main>\n<script type=\"application/json\" id=\"", page.data_id, "\">",
              script_safe(page.data), "</script>\n<script>\n", kReportTools, page.script, "</script>\n</body>\n</html>\n");
}

}  // namespace tessera::cli
